//! Who is in a group: its name, its ranks in order, its timeout, and how long it is valid.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

/// Who is in a group. Every member makes the group from an equal description.
///
/// ```
/// use std::time::Duration;
/// use evener_mesh::comm::Members;
///
/// let members = Members::new("tp_0", [2, 3]).timeout(Duration::from_secs(5));
/// assert_eq!(members.ranks(), [2, 3]);
/// ```
#[derive(Debug, Clone)]
pub struct Members {
    pub(super) name: String,
    pub(super) ranks: Vec<usize>,
    pub(super) timeout: Option<Duration>,
    pub(super) term: Term,
}

impl Members {
    /// A group of this name with these ranks of the world, in this order.
    pub fn new(name: impl Into<String>, ranks: impl Into<Vec<usize>>) -> Self {
        Members { name: name.into(), ranks: ranks.into(), timeout: None, term: Term::default() }
    }

    /// How long a call waits for the others. Otherwise the group has the timeout of the one it is made from.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Makes the group valid only until this term ends.
    pub fn term(mut self, term: &Term) -> Self {
        self.term = term.clone();
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its ranks, in order.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }
}

/// For how long groups are valid: until a mesh is reshaped, say. All clones are the same term.
///
/// ```
/// use evener_mesh::comm::{Comm, CommError, Members, Operation, Term};
///
/// let term = Term::new(4);
/// let comm = Comm::local(1).remove(0);
/// let group = comm.group(Members::new("tp_0", [0]).term(&term))?;
/// group.all_reduce(&mut [1.0f32], Operation::Sum)?;
/// term.end();
/// assert!(matches!(group.barrier(), Err(CommError::Stale { generation: 4, .. })));
/// # Ok::<(), CommError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Term {
    generation: u64,
    ended: Arc<AtomicBool>,
}

impl Term {
    /// A term of a mesh's generation of this number.
    pub fn new(generation: u64) -> Self {
        Term { generation, ended: Arc::default() }
    }

    /// Ends it: every group of this term fails from now on with [`Stale`](super::CommError::Stale).
    pub fn end(&self) {
        self.ended.store(true, SeqCst);
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// The number of the generation.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}
