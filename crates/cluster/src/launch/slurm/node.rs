//! A node: asks SLURM for it, waits for its worker, and finds out how it ended.

use std::{
    collections::hash_map::RandomState,
    fmt::Debug,
    hash::BuildHasher,
    io::{self, Read},
    process::ChildStdout,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use evener_device::remote::WorkerHandle;

use super::{
    Slurm,
    command::{Hello, job_name},
    controller::{JobStatus, Jobs, cancel, status},
    explain::{not_started, refused},
    stage::{Next, NodeState, Nonce, Verdict},
};
use crate::launch::{Ending, ExpectedDevices, Launched, Launcher, Program, Started, StartedProgram, start};

/// Once a node of a request is there, the others have this long to come before the program goes on without them.
const TOGETHER: Duration = Duration::from_secs(2);

/// The time between two questions to the controller, which has many users.
const QUESTION_INTERVAL: Duration = Duration::from_secs(10);

/// How long a caller waits for the return of a node that was there before. A run asks again later, and one that has no other
/// device gives up only after 30 s.
const RETURNING: Duration = Duration::from_secs(10);

/// How long `srun` has to end by itself after its worker has, and the controller to notice that the job is over. Both take
/// seconds where much else is going on.
const ENDING: Duration = Duration::from_secs(5);

/// How long `srun` has to end after SIGTERM, before it is killed.
const CLOSING: Duration = Duration::from_secs(3);

/// The nodes of one request.
#[derive(Debug)]
pub(super) struct Group {
    request: Slurm,
    /// The job that this program runs in, whose nodes are used.
    allocation: Option<String>,
    /// The devices that a node has which nobody has seen yet, and what tells this group from others.
    expected: ExpectedDevices,
    nodes: Mutex<Vec<Weak<Node>>>,
    /// When the first worker came.
    first_arrival: Mutex<Option<Instant>>,
    is_watched: AtomicBool,
}

impl Group {
    pub(super) fn new(request: Slurm, allocation: Option<String>) -> Arc<Self> {
        let expected = ExpectedDevices::new(request.gpus.unwrap_or(0), request.cores);
        Arc::new(Group {
            request,
            allocation,
            expected,
            nodes: Mutex::default(),
            first_arrival: Mutex::default(),
            is_watched: AtomicBool::new(false),
        })
    }

    /// Adds a node: any, or the named one of the allocation.
    pub(super) fn add_node(self: &Arc<Self>, name: &str, place: Option<String>) -> Arc<Node> {
        let node = Arc::new_cyclic(|me| Node {
            me: me.clone(),
            name: name.to_owned(),
            group: self.clone(),
            place,
            was_there: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
            ends_at: Mutex::default(),
        });
        lock(&self.nodes).push(Arc::downgrade(&node));
        node
    }

    /// Whether a caller that began to wait then has waited long enough for a node, which may have been there before.
    fn is_patience_over(&self, began: Instant, was_there: bool) -> bool {
        let waited = began.elapsed();
        if was_there {
            return waited >= self.request.wait.min(RETURNING);
        }
        let first = *lock(&self.first_arrival);
        waited >= self.request.wait || first.is_some_and(|first| first.max(began).elapsed() >= TOGETHER)
    }

    /// Asks the controller about the jobs now and then, until the nodes are dropped.
    fn watch(self: &Arc<Self>) {
        if self.is_watched.swap(true, Relaxed) {
            return;
        }
        let group = Arc::downgrade(self);
        let watch = move || {
            let mut next = Instant::now() + QUESTION_INTERVAL;
            loop {
                thread::sleep(Duration::from_millis(500));
                let Some(group) = group.upgrade() else { return };
                if Instant::now() >= next {
                    group.ask();
                    next = Instant::now() + QUESTION_INTERVAL;
                }
            }
        };
        // Without it, nodes have no end that is known.
        if let Err(why) = thread::Builder::new().name("evener-slurm".into()).spawn(watch) {
            tracing::warn!("the time limits of SLURM's jobs are not watched: {why}");
        }
    }

    /// Asks for the state of all jobs with one question.
    fn ask(&self) {
        let nodes: Vec<Arc<Node>> = lock(&self.nodes).iter().filter_map(Weak::upgrade).collect();
        let names: Vec<(Arc<Node>, Nonce, String)> = nodes
            .into_iter()
            .filter_map(|node| {
                let nonce = node.lock().nonce()?;
                Some((node, nonce, job_name(&text(nonce))))
            })
            .collect();
        if names.is_empty() {
            return;
        }
        let list: Vec<&str> = names.iter().map(|(_, _, name)| name.as_str()).collect();
        let list = list.join(",");
        let jobs = self.allocation.as_deref().map_or(Jobs::Named(&list), Jobs::Numbered);
        match status(jobs) {
            Ok(found) => {
                for (node, nonce, name) in &names {
                    let is_own = |status: &&JobStatus| self.allocation.is_some() || status.name == *name;
                    if let Some(status) = found.iter().find(is_own) {
                        node.note(*nonce, status);
                    }
                }
            }
            Err(why) => tracing::debug!("SLURM's controller does not answer: {why}"),
        }
    }
}

/// A node of a request, which one worker at a time runs on.
#[derive(Debug)]
pub(super) struct Node {
    me: Weak<Node>,
    name: String,
    group: Arc<Group>,
    /// The node of the allocation; `None` for any node, in a job of its own.
    place: Option<String>,
    /// Whether a worker of it has come, now or earlier.
    was_there: AtomicBool,
    state: Mutex<NodeState<Arc<StartedProgram>, Launched>>,
    changed: Condvar,
    /// When its job reaches its time limit.
    ends_at: Mutex<Option<Instant>>,
}

impl Launcher for Arc<Node> {
    fn launch(&self, _: Duration) -> Result<Launched, String> {
        let began = Instant::now();
        self.group.watch();
        let mut state = self.lock();
        loop {
            match state.next() {
                Next::Use(worker) => return Ok(worker),
                Next::Refuse(reason) => return Err(reason),
                Next::Submit => {
                    let (nonce, srun) = self.submit()?;
                    if let Err(unwanted) = state.submitted(nonce, srun) {
                        unwanted.terminate();
                    }
                }
                Next::Wait if self.group.is_patience_over(began, self.was_there.load(Relaxed)) => {
                    drop(state);
                    return Err(self.pending());
                }
                Next::Wait => {
                    let waited = self.changed.wait_timeout(state, Duration::from_millis(50));
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    fn install(&self, _: &Program, _: Duration) -> Result<String, String> {
        Err("nothing is copied to the nodes of a SLURM cluster: they start this program from a folder that they share".into())
    }

    fn is_there(&self) -> bool {
        self.lock().queued().is_none()
    }

    fn is_to_come(&self) -> bool {
        self.lock().is_to_come()
    }

    fn available_until(&self) -> Option<Instant> {
        *lock(&self.ends_at)
    }

    fn expected_devices(&self) -> Option<&ExpectedDevices> {
        Some(&self.group.expected)
    }
}

impl Node {
    fn lock(&self) -> MutexGuard<'_, NodeState<Arc<StartedProgram>, Launched>> {
        lock(&self.state)
    }

    /// Starts `srun`, and a thread that waits for the worker's first words.
    fn submit(&self) -> Result<(Nonce, Arc<StartedProgram>), String> {
        let nonce = new_nonce();
        let srun = self.group.request.srun(&text(nonce), self.place.as_deref());
        let started = start(srun, Box::new(|_| None)).map_err(|failure| match failure.source {
            Some(why) => not_started("srun", &why),
            None => failure.detail,
        })?;
        let srun = started.worker.clone();
        let (node, own) = (self.me.clone(), srun.clone());
        let attend = move || attend(&node, started, nonce);
        match thread::Builder::new().name(format!("evener-{}", self.name)).spawn(attend) {
            Ok(_) => Ok((nonce, srun)),
            Err(why) => {
                own.terminate();
                Err(format!("a thread cannot be started: {why}"))
            }
        }
    }

    /// Says what a job that has not started waits for. Ends one that would wait for ever.
    fn pending(&self) -> String {
        let Some(nonce) = self.lock().nonce() else { return "its last worker is still ending".into() };
        let job = match self.place {
            // A step of a job that runs waits for nothing.
            Some(_) => None,
            None => {
                status(Jobs::Named(&job_name(&text(nonce)))).ok().and_then(|found| found.into_iter().next())
            }
        };
        match job {
            Some(job) if job.is_impossible() => {
                self.note(nonce, &job);
                impossible(&job)
            }
            Some(job) if job.state == "PENDING" => format!("job {} is pending ({})", job.id, job.reason),
            _ => "the worker has not started yet".into(),
        }
    }

    /// Notes what the controller says of the job.
    fn note(&self, nonce: Nonce, job: &JobStatus) {
        let mut state = self.lock();
        if state.nonce() != Some(nonce) {
            return;
        }
        match state.queued().cloned() {
            Some(srun) if job.is_impossible() => {
                state.ended(nonce, Verdict::Final(impossible(job)), Duration::ZERO);
                drop(state);
                self.changed.notify_all();
                srun.terminate();
            }
            Some(_) => {}
            None => self.set_end(job.left),
        }
    }

    fn set_end(&self, left: Option<Duration>) {
        *lock(&self.ends_at) = left.and_then(|left| Instant::now().checked_add(left));
    }

    /// A worker has said its first words.
    fn arrived(&self, nonce: Nonce, worker: Launched, hello: &Hello) {
        tracing::info!("{} is {}, in SLURM's job {}", self.name, hello.node, hello.job);
        // Without an answer, the end is known after the next question.
        let known = status(Jobs::Numbered(&hello.job));
        self.set_end(known.ok().and_then(|found| found.first().and_then(|job| job.left)));
        let arrived = self.lock().arrived(nonce, worker);
        self.was_there.store(true, Relaxed);
        lock(&self.group.first_arrival).get_or_insert_with(Instant::now);
        self.changed.notify_all();
        if let Err(unwanted) = arrived {
            unwanted.worker.end();
        }
    }

    fn ended(&self, nonce: Nonce, verdict: Verdict, served: Duration) {
        let mut state = self.lock();
        if state.nonce() == Some(nonce) {
            *lock(&self.ends_at) = None;
        }
        state.ended(nonce, verdict, served);
        drop(state);
        self.changed.notify_all();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let state = std::mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        let (queued, worker) = state.into_rest();
        if let Some(srun) = queued {
            srun.terminate();
        }
        if let Some(worker) = worker {
            worker.worker.end();
        }
    }
}

fn impossible(job: &JobStatus) -> String {
    format!("SLURM can never meet the request: {} (as squeue says of job {})", job.reason, job.id)
}

/// Waits for the first words of a worker, and hands it over.
fn attend(node: &Weak<Node>, started: Started, nonce: Nonce) {
    let Started { mut from_worker, to_worker, worker: srun } = started;
    let hello = read_hello(&mut from_worker, &text(nonce));
    let Some(node) = node.upgrade() else {
        srun.terminate();
        // So that the system forgets it.
        srun.ends_within(CLOSING);
        return;
    };
    let Some(hello) = hello else {
        let verdict = verdict_without_worker(&node, &srun, nonce);
        srun.terminate();
        return node.ended(nonce, verdict, Duration::ZERO);
    };
    let has_ended = Arc::new(AtomicBool::new(false));
    let worker = SlurmWorker {
        node: Arc::downgrade(&node),
        srun,
        nonce,
        hello: hello.clone(),
        is_own_job: node.place.is_none(),
        command: node.group.request.command.clone(),
        has_ended: has_ended.clone(),
        since: Instant::now(),
        words: OnceLock::new(),
    };
    let launched = Launched {
        from_worker: Box::new(Watched { pipe: from_worker, has_ended }),
        to_worker: Box::new(to_worker),
        worker: Arc::new(worker),
    };
    node.arrived(nonce, launched, &hello);
}

/// Reads lines until one is the worker's first. `None` if the pipe ends before.
fn read_hello(pipe: &mut impl Read, nonce: &str) -> Option<Hello> {
    /// What the profile of a shell may print before.
    const MAX_BYTES: usize = 1 << 20;
    let (mut line, mut byte) = (Vec::new(), [0]);
    for _ in 0..MAX_BYTES {
        match pipe.read(&mut byte) {
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return None,
            Ok(_) if byte[0] != b'\n' => line.push(byte[0]),
            Ok(_) => match Hello::parse(&String::from_utf8_lossy(&line), nonce) {
                Some(hello) => return Some(hello),
                None => line.clear(),
            },
        }
    }
    None
}

/// Why `srun` ended before there was a worker.
fn verdict_without_worker(node: &Node, srun: &StartedProgram, nonce: Nonce) -> Verdict {
    let ending = srun.ending();
    if let Some(signal) = ending.signal {
        // Its job may still wait in the queue. A step of this program's own job does not.
        if node.place.is_none() {
            cancel(Jobs::Named(&job_name(&text(nonce))));
        }
        return Verdict::Failed(killed(signal));
    }
    let has = |text: &str| ending.lines.iter().any(|line| line.contains(text));
    if has("Job has been cancelled") || has("Force Terminated job") || has("has been revoked") {
        return Verdict::Final("its job was cancelled before it started".into());
    }
    let reason = refused(&node.group.request.command, &ending);
    // These pass.
    let may_pass =
        ["contact slurm controller", "timed out", "Zero Bytes", "temporarily"].iter().any(|text| has(text));
    if may_pass { Verdict::Failed(reason) } else { Verdict::Final(reason) }
}

/// What a worker writes. Notes its end.
#[derive(Debug)]
struct Watched {
    pipe: ChildStdout,
    has_ended: Arc<AtomicBool>,
}

impl Read for Watched {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.pipe.read(into);
        if matches!(read, Ok(0)) && !into.is_empty() {
            self.has_ended.store(true, Relaxed);
        }
        read
    }
}

/// A worker on a node, and the `srun` that connects it.
#[derive(Debug)]
struct SlurmWorker {
    node: Weak<Node>,
    srun: Arc<StartedProgram>,
    nonce: Nonce,
    hello: Hello,
    /// Whether the job is this worker's alone.
    is_own_job: bool,
    command: Vec<String>,
    /// Whether the worker's pipe has ended.
    has_ended: Arc<AtomicBool>,
    since: Instant,
    /// Why it ended.
    words: OnceLock<Option<String>>,
}

impl SlurmWorker {
    /// Ends the worker once, and finds out why it ended if it has by itself.
    fn end_once(&self) -> Option<String> {
        let end = || {
            // Only the status of an `srun` that nobody has ended says why it ended.
            let verdict = match self.has_ended.load(Relaxed) && self.srun.ends_within(ENDING) {
                true => self.verdict(),
                false => {
                    self.close();
                    Verdict::Closed
                }
            };
            let words = match &verdict {
                Verdict::Closed => None,
                Verdict::Failed(words) | Verdict::Final(words) => Some(words.clone()),
            };
            if let Some(node) = self.node.upgrade() {
                node.ended(self.nonce, verdict, self.since.elapsed());
            }
            words
        };
        self.words.get_or_init(end).clone()
    }

    /// Finds out why the worker has ended.
    fn verdict(&self) -> Verdict {
        let ending = self.srun.ending();
        let state = match ending.signal {
            // The job may still be there, with a worker that nobody reaches.
            Some(_) => {
                cancel(Jobs::Numbered(&self.own_part()));
                String::new()
            }
            None => self.last_state(),
        };
        verdict_of(&self.hello, &state, &ending, &self.command)
    }

    /// Asks the controller for the state that the job has ended in. Empty if it does not know.
    fn last_state(&self) -> String {
        let began = Instant::now();
        loop {
            let found = status(Jobs::Numbered(&self.hello.job)).ok();
            let state =
                found.and_then(|found| found.into_iter().next()).map(|job| job.state).unwrap_or_default();
            let is_ending = self.is_own_job && ["RUNNING", "COMPLETING"].contains(&state.as_str());
            if !is_ending || began.elapsed() > ENDING {
                return state;
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// The part of SLURM's that is this worker's alone: its job, or a step of this program's job.
    fn own_part(&self) -> String {
        let Hello { job, step, .. } = &self.hello;
        if self.is_own_job { job.clone() } else { format!("{job}.{step}") }
    }

    /// Ends the worker and its job without waiting for them. What `srun` does not end is ended by force.
    fn close(&self) {
        self.srun.terminate();
        let (srun, own_part) = (self.srun.clone(), self.own_part());
        let finish = move || {
            if !srun.ends_within(CLOSING) {
                srun.end();
                cancel(Jobs::Numbered(&own_part));
            }
        };
        // Without it, `srun` gets another SIGTERM when this program ends.
        let _ = thread::Builder::new().name("evener-slurm-end".into()).spawn(finish);
    }
}

impl WorkerHandle for SlurmWorker {
    fn end(&self) {
        self.end_once();
    }

    fn last_words(&self) -> Option<String> {
        // A worker that is still there has said nothing yet.
        let is_over = self.has_ended.load(Relaxed) || self.words.get().is_some();
        is_over.then(|| self.end_once()).flatten()
    }
}

/// What the end of `srun` means for its node, whose worker was there: its job has ended in this state.
fn verdict_of(hello: &Hello, state: &str, ending: &Ending, command: &[String]) -> Verdict {
    let Hello { job, node, .. } = hello;
    // The second process of `srun` cancels the job of one that is killed. The user did not.
    if let Some(signal) = ending.signal {
        return Verdict::Failed(killed(signal));
    }
    match state {
        "CANCELLED" => Verdict::Final(format!("job {job} was cancelled")),
        "TIMEOUT" | "DEADLINE" => Verdict::Final(format!("the time limit of job {job} has passed")),
        "NODE_FAIL" => Verdict::Failed(format!("node {node} of job {job} failed")),
        "PREEMPTED" => Verdict::Failed(format!("job {job} was preempted")),
        "OUT_OF_MEMORY" => Verdict::Failed(format!("job {job} ran out of memory")),
        "RUNNING" | "FAILED" | "COMPLETED" | "COMPLETING" | "" => {
            let reason = refused(command, ending);
            // The shell did not find the program, or may not execute it.
            if matches!(ending.code, Some(126 | 127)) {
                Verdict::Final(reason)
            } else {
                Verdict::Failed(reason)
            }
        }
        other => Verdict::Final(format!("job {job} has ended ({other})")),
    }
}

fn killed(signal: i32) -> String {
    format!("its `srun` on this machine was killed by signal {signal}")
}

fn text(nonce: Nonce) -> String {
    format!("{nonce:016x}")
}

/// A number that no other job of this program, or of any other, has.
fn new_nonce() -> Nonce {
    // The keys of a hasher are random, and differ from call to call.
    RandomState::new().hash_one((std::process::id(), Instant::now()))
}

// No code under these locks can panic between two changes that belong together.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_first_words_of_a_worker_are_found_behind_other_lines() {
        let hello = |text: &str| read_hello(&mut text.as_bytes(), "1f");
        let found = hello("Welcome\nevener-node 2e 11 0 n1\nevener-node 1f 12 0 n3\nrest").unwrap();
        assert_eq!((found.job.as_str(), found.node.as_str()), ("12", "n3"));
        assert_eq!(hello("evener-node 2e 11 0 n1\n"), None);
        assert_eq!(hello(""), None);
    }

    #[test]
    fn a_job_that_ends_because_its_srun_was_killed_was_not_cancelled_by_the_user() {
        let hello = Hello { job: "12".into(), step: "0".into(), node: "n3".into() };
        let ended = |state: &str, ending: Ending| verdict_of(&hello, state, &ending, &["evener".into()]);
        let exited = |code| Ending { code: Some(code), ..Ending::default() };
        let cancelled = Verdict::Final("job 12 was cancelled".into());
        assert_eq!(ended("CANCELLED", exited(143)), cancelled);
        let killed = ended("CANCELLED", Ending { signal: Some(9), ..Ending::default() });
        assert_eq!(killed, Verdict::Failed("its `srun` on this machine was killed by signal 9".into()));
        assert!(matches!(ended("FAILED", exited(127)), Verdict::Final(_)));
        assert!(matches!(ended("FAILED", exited(137)), Verdict::Failed(_)));
        assert!(matches!(ended("NODE_FAIL", exited(0)), Verdict::Failed(_)));
    }

    #[test]
    fn a_node_that_was_there_is_waited_for_longer_than_one_that_is_late() {
        let group = Group::new(Slurm::new().wait(Duration::from_secs(60)), None);
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        assert!(!group.is_patience_over(ago(59), false), "none is there yet");
        *lock(&group.first_arrival) = Some(ago(30));
        assert!(!group.is_patience_over(ago(1), false));
        assert!(group.is_patience_over(ago(3), false), "others are there");
        assert!(!group.is_patience_over(ago(9), true), "its new job has not begun");
        assert!(group.is_patience_over(ago(11), true));
        let hasty = Group::new(Slurm::new().wait(Duration::from_secs(1)), None);
        assert!(hasty.is_patience_over(ago(2), true));
    }
}
