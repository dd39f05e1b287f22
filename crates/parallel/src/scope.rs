//! The pool that a call names, and the reports of its loops.

use std::{cell::RefCell, fmt, time::Duration};

use evener_schedule::{Pool, Report};

/// How one loop of a call was run.
#[derive(Debug, Clone)]
pub struct LoopReport {
    /// The name of the loop: that of its function, with a number from the second on.
    pub name: &'static str,
    /// Where it ran: `calling thread`, `processor` or `devices`.
    pub place: &'static str,
    /// Number of iterations.
    pub iterations: usize,
    /// How long it took.
    pub took: Duration,
    /// What kept it from other devices.
    pub note: Option<String>,
    /// What each device did.
    pub report: Option<Report>,
}

impl fmt::Display for LoopReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoopReport { name, place, iterations, took, note, report } = self;
        writeln!(f, "{name}: {iterations} iterations on the {place} in {took:.1?}")?;
        if let Some(note) = note {
            writeln!(f, "  {note}")?;
        }
        match report {
            Some(report) => writeln!(f, "{report}"),
            None => Ok(()),
        }
    }
}

/// The value of a function that ran on a pool, and how its loops were run.
#[derive(Debug, Clone)]
pub struct Run<T> {
    /// What the function returned.
    pub value: T,
    /// Its loops, in the order in which they ran.
    pub loops: Vec<LoopReport>,
}

impl<T> fmt::Display for Run<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.loops.iter().try_for_each(|report| report.fmt(f))
    }
}

/// A `#[parallel]` function on a pool.
#[derive(Debug)]
pub struct On<'pool> {
    pool: &'pool Pool,
}

struct Scope {
    pool: Pool,
    loops: Vec<LoopReport>,
}

thread_local! {
    static SCOPES: RefCell<Vec<Scope>> = const { RefCell::new(Vec::new()) };
}

impl<'pool> On<'pool> {
    /// Loops run on this pool.
    pub fn new(pool: &'pool Pool) -> Self {
        On { pool }
    }

    /// Calls a function whose loops run on the pool.
    pub fn run<T>(self, function: impl FnOnce() -> T) -> Run<T> {
        /// Ends the scope also if the function panics.
        struct Guard;
        impl Drop for Guard {
            fn drop(&mut self) {
                SCOPES.with_borrow_mut(|scopes| scopes.pop());
            }
        }
        SCOPES.with_borrow_mut(|scopes| scopes.push(Scope { pool: self.pool.clone(), loops: Vec::new() }));
        let guard = Guard;
        let value = function();
        let loops =
            SCOPES.with_borrow_mut(|scopes| scopes.last_mut().map(|scope| std::mem::take(&mut scope.loops)));
        drop(guard);
        Run { value, loops: loops.unwrap_or_default() }
    }
}

/// The pool that this thread's call names.
pub(crate) fn pool() -> Option<Pool> {
    SCOPES.with_borrow(|scopes| scopes.last().map(|scope| scope.pool.clone()))
}

/// Adds a loop to the report of this thread's call, if it has one.
pub(crate) fn record(report: impl FnOnce() -> LoopReport) {
    SCOPES.with_borrow_mut(|scopes| {
        if let Some(scope) = scopes.last_mut() {
            scope.loops.push(report());
        }
    });
}
