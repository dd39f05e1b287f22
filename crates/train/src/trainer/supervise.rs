//! Starts workers, restarts those that failed, and puts the outcome together.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use evener_device::Device;

use super::{
    Trained, Worker,
    engine::{Engine, Finished, Surroundings},
    metrics::Metrics,
    rendezvous::Admission,
    report::{Report, WorkerFailure},
};
use crate::{
    error::{Result, TrainError},
    replica::{Replica, ReplicaError},
};

/// Creates the replica of a worker.
pub(super) type ReplicaFn<R> = Arc<dyn Fn(&Worker) -> Result<R, ReplicaError> + Send + Sync>;

type Outcome<R> = (usize, Result<Finished<R>>);

/// The workers that are started in this process.
pub(super) struct Supervisor<R: Replica> {
    pub(super) replica: ReplicaFn<R>,
    /// One per worker of this process.
    pub(super) around: Vec<Surroundings>,
    /// One per worker of the world, if devices were chosen.
    pub(super) devices: Vec<Device>,
    /// What the report calls a worker without a device.
    pub(super) kind: &'static str,
}

impl<R: Replica> Supervisor<R> {
    /// Runs to the end. Returns an error only if no worker could finish.
    pub(super) fn run(self) -> Result<Trained<R>> {
        let _end = self.around.first().map(|around| EndOfMetrics(around.metrics.clone()));
        let (sender, outcomes) = channel();
        let mut running = 0;
        for around in &self.around {
            self.start(around, false, &sender)?;
            running += 1;
        }
        let mut restarts = self.around.first().map_or(0, |around| around.settings.restarts);
        let mut failures: Vec<(usize, TrainError)> = Vec::new();
        let mut finished: Option<(usize, Finished<R>)> = None;
        let mut until: Option<Instant> = None;
        while running > 0 {
            let Some((rank, outcome)) = receive(&outcomes, until) else { break };
            running -= 1;
            match outcome {
                Ok(worker) => {
                    // The others end at the same commit. A worker that hangs is not waited for.
                    until.get_or_insert_with(|| Instant::now() + self.around[0].settings.timeout);
                    if finished.as_ref().is_none_or(|(other, _)| rank < *other) {
                        finished = Some((rank, worker));
                    }
                }
                Err(error) => {
                    tracing::warn!("{error}");
                    let may_restart =
                        !matches!(error, TrainError::Setting { .. } | TrainError::Layouts { .. });
                    failures.push((rank, error));
                    if restarts > 0 && may_restart && finished.is_none() && running > 0 {
                        restarts -= 1;
                        let around = self.around.iter().find(|around| around.rank == rank);
                        if around.is_some_and(|around| self.start(around, true, &sender).is_ok()) {
                            running += 1;
                        }
                    }
                }
            }
            if finished.is_none() && running > 0 {
                continue;
            }
            // Workers that are no members at the end are not waited for either: they may hang forever.
            if let Some((_, worker)) = &finished {
                let members = worker.machines.membership.members();
                let here = self.around.iter().filter(|around| members.contains(&around.rank)).count();
                let ended = self.around.len() - running;
                if ended >= here.max(1) && !members.is_empty() && ended > failures.len() {
                    until = Some(
                        Instant::now() + Duration::from_millis(200).min(self.around[0].settings.timeout),
                    );
                }
            }
        }
        let Some((_, worker)) = finished else {
            return Err(first_cause(failures));
        };
        Ok(self.trained(worker, failures))
    }

    fn start(&self, around: &Surroundings, again: bool, sender: &Sender<Outcome<R>>) -> Result<()> {
        let (around, replica, sender) = (around.clone(), self.replica.clone(), sender.clone());
        let (rank, size) = (around.rank, around.world.size());
        let worker = Worker { rank, size, device: self.devices.get(rank).cloned() };
        let run = move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| work(around, &replica, &worker, again)));
            let outcome = outcome.unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<&str>().map(ToString::to_string);
                let message = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                Err(TrainError::Panicked { rank, message })
            });
            // The supervisor may have stopped listening.
            let _ = sender.send((rank, outcome));
        };
        let thread = thread::Builder::new().name(format!("evener-train-{rank}")).spawn(run);
        thread.map(drop).map_err(|error| TrainError::Setting {
            setting: "workers",
            detail: format!("the system cannot start a thread: {error}"),
        })
    }

    fn trained(&self, worker: Finished<R>, failures: Vec<(usize, TrainError)>) -> Trained<R> {
        let size = self.around.first().map_or(0, |around| around.world.size());
        let device =
            |rank: usize| self.devices.get(rank).map_or(self.kind.to_owned(), |it| it.id().to_string());
        let devices: Vec<String> = (0..size).map(device).collect();
        let mut report = Report::new(&worker.machines, &worker.before, worker.wall, &worker.alone, &devices);
        report.cancelled = worker.cancelled;
        report.resumed_from = worker.resumed_from;
        report.checkpoint_error = worker.checkpoint_error;
        report.failures = failures
            .into_iter()
            .map(|(rank, error)| WorkerFailure { rank, why: error.to_string() })
            .collect();
        Trained { replica: worker.replica, report }
    }
}

/// Ends the metrics when it is dropped. A worker that hangs keeps its sender, so that the channel alone would not end.
struct EndOfMetrics(Sender<Option<Metrics>>);

impl Drop for EndOfMetrics {
    fn drop(&mut self) {
        let _ = self.0.send(None);
    }
}

/// Waits for an outcome, until a time if there is one.
fn receive<R>(outcomes: &Receiver<Outcome<R>>, until: Option<Instant>) -> Option<Outcome<R>> {
    let Some(until) = until else { return outcomes.recv().ok() };
    outcomes.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
}

/// Returns the failure that the others followed from: the first that is not about another worker.
fn first_cause(mut failures: Vec<(usize, TrainError)>) -> TrainError {
    let own = |error: &TrainError| {
        !matches!(error, TrainError::Comm(_) | TrainError::LeftBehind { .. } | TrainError::NobodyLeft(_))
    };
    let index = failures.iter().position(|(_, error)| own(error)).unwrap_or(0);
    if failures.is_empty() {
        let detail = "no worker has finished".into();
        return TrainError::Setting { setting: "workers", detail };
    }
    failures.swap_remove(index).1
}

/// The main function of a worker.
fn work<R: Replica>(
    around: Surroundings,
    replica: &ReplicaFn<R>,
    worker: &Worker,
    again: bool,
) -> Result<Finished<R>> {
    let rank = around.rank;
    let make = || replica(worker).map_err(|error| TrainError::Replica { rank, error });
    if !again {
        // Before the replica: if that fails, this drops the group, and the others learn at once that the rank is gone.
        let group = around.group(0, &(0..around.world.size()).collect::<Vec<_>>())?;
        return Engine::new(around, make()?, group)?.run();
    }
    let replica = make()?;
    let patience = around.settings.timeout.saturating_mul(20);
    let ended =
        TrainError::Setting { setting: "restarts", detail: "training ended before it could return".into() };
    let Admission { generation, members } = around.rendezvous.ask(rank, patience).ok_or(ended)?;
    let group = around.group(generation, &members)?;
    Engine::new(around, replica, group)?.run()
}
