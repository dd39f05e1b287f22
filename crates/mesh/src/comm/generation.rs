//! Generations: how long groups are valid, and how waiting ranks learn that a generation has ended.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use super::communicator_state::CommunicatorState;

/// How long groups are valid, for example until a [mesh](crate::topology::Mesh) is reshaped. Clones are the same
/// generation.
///
/// ```
/// use evener_mesh::comm::{CommError, Generation, GroupSpec, ReduceOp, World};
///
/// let generation = Generation::new(4);
/// let world = World::local(1).remove(0);
/// let group = world.new_group(GroupSpec::new("tp_0", [0]).generation(&generation))?;
/// group.all_reduce(&mut [1.0f32], ReduceOp::Sum)?;
/// generation.end();
/// assert!(matches!(group.barrier(), Err(CommError::Stale { generation: 4, .. })));
/// # Ok::<(), CommError>(())
/// ```
#[derive(Clone, Default)]
pub struct Generation {
    number: u64,
    shared: Arc<GenerationState>,
}

/// The state that all clones of a generation share.
#[derive(Default)]
struct GenerationState {
    ended: AtomicBool,
    /// This process's communicators of this generation, whose other ranks are notified when it ends.
    groups: Mutex<Vec<Weak<CommunicatorState>>>,
}

impl Generation {
    /// Creates a generation with this number.
    pub fn new(number: u64) -> Self {
        Generation { number, ..Generation::default() }
    }

    /// Ends the generation: its groups fail from now on with [`Stale`](super::CommError::Stale), and ranks that wait
    /// for this one in such a group get an error at once. A call in flight on this rank ends first, with its own
    /// result.
    pub fn end(&self) {
        self.shared.ended.store(true, SeqCst);
        let groups = std::mem::take(&mut *self.shared.groups.lock().unwrap_or_else(PoisonError::into_inner));
        groups.iter().filter_map(Weak::upgrade).for_each(|state| state.leave_if_unusable());
    }

    /// Returns whether it has ended.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(SeqCst)
    }

    /// Returns its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn is(&self, other: &Generation) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Registers a communicator whose other ranks are notified when this ends.
    pub(super) fn watch(&self, state: &Arc<CommunicatorState>) {
        let mut groups = self.shared.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|it| it.strong_count() > 0);
        groups.push(Arc::downgrade(state));
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = if self.has_ended() { ", ended" } else { "" };
        write!(f, "Generation({}{ended})", self.number)
    }
}
