//! What a node is asked for, decided without doing it: a state machine that is told what happened.

use std::time::Duration;

/// The number of one job or step, never used twice.
pub(super) type Nonce = u64;

/// A worker that served for this long shows that its node works: earlier failures do not count any more.
const PROVEN: Duration = Duration::from_secs(60);

/// After this many failures in a row, no further job is asked for.
const MAX_FAILURES: u32 = 3;

/// How a worker, or the program that waits for it, ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The client ended it, or lost the connection.
    Closed,
    /// It failed in a way that another job may not.
    Failed(String),
    /// Another job would fail too, or the user does not want one.
    Final(String),
}

/// What to do for a caller that needs a worker.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<W> {
    /// Ask SLURM for a job.
    Submit,
    /// Wait: the job is in the queue, or the last worker is still ending.
    Wait,
    /// Use this worker.
    Use(W),
    /// Give up, for this reason.
    Refuse(String),
}

/// Where a node is on its way. `Q` is what waits in the queue, and `W` a worker.
#[derive(Debug)]
enum Stage<Q, W> {
    /// No job was asked for, or the last one has ended.
    Idle,
    Queued(Nonce, Q),
    /// The worker is there, and no connection uses it yet.
    Arrived(Nonce, W),
    Used(Nonce),
    /// No further job is asked for.
    Refused(String),
}

/// Decides about one node. There is at most one job of it at a time.
#[derive(Debug)]
pub(super) struct NodeState<Q, W> {
    stage: Stage<Q, W>,
    failures: u32,
}

impl<Q, W> Default for NodeState<Q, W> {
    fn default() -> Self {
        NodeState { stage: Stage::Idle, failures: 0 }
    }
}

impl<Q, W> NodeState<Q, W> {
    /// A caller needs a worker.
    pub(super) fn next(&mut self) -> Next<W> {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Idle => Next::Submit,
            Stage::Arrived(nonce, worker) => {
                self.stage = Stage::Used(nonce);
                Next::Use(worker)
            }
            Stage::Refused(reason) => {
                self.stage = Stage::Refused(reason.clone());
                Next::Refuse(reason)
            }
            stage @ (Stage::Queued(..) | Stage::Used(_)) => {
                self.stage = stage;
                Next::Wait
            }
        }
    }

    /// A job was asked for. Gives it back if it must be ended: another one was asked for meanwhile.
    pub(super) fn submitted(&mut self, nonce: Nonce, queued: Q) -> Result<(), Q> {
        match self.stage {
            Stage::Idle => {
                self.stage = Stage::Queued(nonce, queued);
                Ok(())
            }
            _ => Err(queued),
        }
    }

    /// A worker is there. Gives it back if it must be ended: it is of a job that is not waited for any more.
    pub(super) fn arrived(&mut self, nonce: Nonce, worker: W) -> Result<(), W> {
        match self.stage {
            Stage::Queued(queued, _) if queued == nonce => {
                self.stage = Stage::Arrived(nonce, worker);
                Ok(())
            }
            _ => Err(worker),
        }
    }

    /// A job has ended, after its worker was there for this long. That of an older job changes nothing.
    pub(super) fn ended(&mut self, nonce: Nonce, verdict: Verdict, served: Duration) {
        if self.nonce() != Some(nonce) {
            return;
        }
        if served >= PROVEN {
            self.failures = 0;
        }
        self.stage = match verdict {
            Verdict::Closed => Stage::Idle,
            Verdict::Failed(reason) => {
                self.failures += 1;
                match self.failures {
                    MAX_FAILURES.. => Stage::Refused(reason),
                    _ => Stage::Idle,
                }
            }
            Verdict::Final(reason) => Stage::Refused(reason),
        };
    }

    /// The job of the present stage.
    pub(super) fn nonce(&self) -> Option<Nonce> {
        match self.stage {
            Stage::Queued(nonce, _) | Stage::Arrived(nonce, _) | Stage::Used(nonce) => Some(nonce),
            Stage::Idle | Stage::Refused(_) => None,
        }
    }

    /// What waits in the queue, if anything does.
    pub(super) fn queued(&self) -> Option<&Q> {
        match &self.stage {
            Stage::Queued(_, queued) => Some(queued),
            _ => None,
        }
    }

    /// Whether a job waits in the queue, or its worker has come and is not used yet.
    pub(super) fn is_to_come(&self) -> bool {
        matches!(self.stage, Stage::Queued(..) | Stage::Arrived(..))
    }

    /// What must be ended with the node: what waits in the queue, or a worker that nobody uses.
    pub(super) fn into_rest(self) -> (Option<Q>, Option<W>) {
        match self.stage {
            Stage::Queued(_, queued) => (Some(queued), None),
            Stage::Arrived(_, worker) => (None, Some(worker)),
            Stage::Idle | Stage::Used(_) | Stage::Refused(_) => (None, None),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    type State = NodeState<Nonce, Nonce>;

    /// A worker of the job with this nonce.
    fn used(state: &mut State, nonce: Nonce) {
        assert_eq!(state.next(), Next::Submit);
        state.submitted(nonce, nonce).unwrap();
        assert_eq!(state.next(), Next::Wait);
        state.arrived(nonce, nonce).unwrap();
        assert_eq!(state.next(), Next::Use(nonce));
    }

    #[test]
    fn a_worker_of_an_older_job_is_never_used_and_its_end_changes_nothing() {
        let mut state = State::default();
        used(&mut state, 1);
        state.ended(1, Verdict::Closed, PROVEN);
        assert_eq!(state.next(), Next::Submit);
        state.submitted(2, 2).unwrap();
        assert_eq!(state.arrived(1, 1), Err(1));
        state.ended(1, Verdict::Final("cancelled".into()), PROVEN);
        state.arrived(2, 2).unwrap();
        assert_eq!(state.next(), Next::Use(2));
    }

    #[test]
    fn a_job_that_was_cancelled_is_not_asked_for_again() {
        let mut state = State::default();
        used(&mut state, 1);
        state.ended(1, Verdict::Final("cancelled".into()), PROVEN);
        assert_eq!(state.next(), Next::Refuse("cancelled".into()));
        assert_eq!(state.submitted(2, 2), Err(2));
    }

    #[test]
    fn a_node_that_fails_three_times_in_a_row_is_given_up() {
        let mut state = State::default();
        let fail = || Verdict::Failed("it broke".into());
        for nonce in 1..=2 {
            used(&mut state, nonce);
            state.ended(nonce, fail(), Duration::ZERO);
        }
        // One that worked for long shows that the node is well.
        used(&mut state, 3);
        state.ended(3, fail(), PROVEN);
        for nonce in 4..=5 {
            used(&mut state, nonce);
            state.ended(nonce, fail(), Duration::ZERO);
        }
        assert_eq!(state.next(), Next::Refuse("it broke".into()));
    }

    /// Random events, as SLURM, callers and connections cause them, in any order. There is never more than one job, a worker
    /// is used once and only while its own job is the present one, and nothing is asked for after a refusal.
    #[test]
    fn in_any_order_of_events_there_is_at_most_one_job_and_no_worker_is_used_twice() {
        for seed in 0..500u64 {
            let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut choose = |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            let mut state = State::default();
            let (mut last, mut live, mut is_refused) = (0, Vec::<Nonce>::new(), false);
            let mut has_been_used = std::collections::HashSet::new();
            for _ in 0..200 {
                match choose(5) {
                    0 => match state.next() {
                        Next::Submit => {
                            assert!(!is_refused, "seed {seed}: a job after a refusal");
                            last += 1;
                            state.submitted(last, last).unwrap();
                            live = vec![last];
                        }
                        Next::Use(nonce) => {
                            assert!(has_been_used.insert(nonce), "seed {seed}: worker {nonce} twice");
                            assert_eq!(live, [nonce], "seed {seed}: a worker of another job");
                        }
                        Next::Wait => assert!(!live.is_empty(), "seed {seed}: waits for nothing"),
                        Next::Refuse(_) => is_refused = true,
                    },
                    1 => {
                        let nonce = choose(last + 2);
                        if state.arrived(nonce, nonce).is_ok() {
                            assert_eq!(live, [nonce], "seed {seed}: a worker of another job");
                        }
                    }
                    2 if !live.is_empty() => {
                        assert!(state.submitted(last + 1, last + 1).is_err(), "seed {seed}: two jobs");
                    }
                    _ => {
                        let nonce = choose(last + 2);
                        let verdict = match choose(8) {
                            0 => Verdict::Final("final".into()),
                            1..=3 => Verdict::Failed("failed".into()),
                            _ => Verdict::Closed,
                        };
                        is_refused |= live == [nonce] && matches!(verdict, Verdict::Final(_));
                        state.ended(nonce, verdict, Duration::from_secs(choose(120)));
                        live.retain(|it| *it != nonce);
                    }
                }
                assert_eq!(state.nonce().into_iter().collect::<Vec<_>>(), live, "seed {seed}");
            }
        }
    }
}
