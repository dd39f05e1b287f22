//! Launchers: how a worker is started, and how its pipes come back.

mod process;
mod program;
mod slurm;
mod spawn;
mod ssh;
mod ssh_error;

use std::{
    collections::VecDeque,
    fmt::Debug,
    io::{self, BufRead, BufReader, Read},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use evener_device::{
    Api, Description, DeviceKind,
    remote::{Pipes, ReadPipe, WorkerHandle, WritePipe},
};

pub use self::{process::Process, program::Program, slurm::Slurm, ssh::Ssh};

/// Starts workers.
pub trait Launcher: Debug + Send + Sync {
    /// Starts a worker, which need not have answered yet when this returns. `timeout` is how long it has to. Fails with a
    /// reason for the user.
    fn launch(&self, timeout: Duration) -> Result<Launched, String>;

    /// Does something about the reason for which a worker did not answer, such as sending a program that is missing.
    /// Returns whether it did, so that launching again is worth it. Default: does nothing.
    fn mend(&self, failure: &str, timeout: Duration) -> Result<bool, String> {
        let _ = (failure, timeout);
        Ok(false)
    }

    /// Copies a program to where workers are started, and returns its path there. Fails with a reason for the user.
    /// Default: refuses.
    fn install(&self, program: &Program, timeout: Duration) -> Result<String, String> {
        let _ = (program, timeout);
        Err("programs cannot be copied there".into())
    }

    /// Whether launching is worth a try now. `false` while a batch system has not started the worker that was asked for.
    /// Returns at once. Default: it always is.
    fn is_there(&self) -> bool {
        true
    }

    /// Whether a worker was asked for that nobody uses yet: it is still to come, or has just come. Returns at once.
    /// Default: a worker is there as soon as it is asked for.
    fn is_to_come(&self) -> bool {
        false
    }

    /// When the worker will be taken away, if that is known: a batch system's time limit. Returns at once. Default: never.
    fn available_until(&self) -> Option<Instant> {
        None
    }

    /// The devices that its workers are expected to have, if they may come much later than they are asked for. Default:
    /// a host that does not answer in time cannot be used.
    fn expected_devices(&self) -> Option<&ExpectedDevices> {
        None
    }
}

/// The devices that hosts are expected to have which are still to come. The hosts of one request have the same.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpectedDevices {
    request: u64,
    devices: Vec<Description>,
}

impl ExpectedDevices {
    /// A processor of so many cores, and so many NVIDIA GPUs, of a new request. Once a host of the request is there, its
    /// devices are what the others are expected to have.
    pub fn new(gpus: u32, cores: Option<u32>) -> Self {
        static REQUESTS: AtomicU64 = AtomicU64::new(0);
        let device = |id: String, kind: DeviceKind, api: Api, compute_units: Option<u32>| Description {
            id: id.into(),
            name: "not there yet".into(),
            kind,
            api,
            memory_bytes: None,
            compute_units,
            pci: None,
            uuid: None,
            driver: String::new(),
            part_of: None,
            rounded_from: None,
            host: None,
        };
        let gpus =
            (0..gpus).map(|index| device(format!("cuda:{index}"), DeviceKind::Discrete, Api::Cuda, None));
        let devices = gpus.chain([device("cpu".into(), DeviceKind::Cpu, Api::Cpu, cores)]).collect();
        ExpectedDevices { request: REQUESTS.fetch_add(1, Relaxed), devices }
    }

    /// Whether both are of the same request.
    pub(crate) fn is_same_request(&self, other: &ExpectedDevices) -> bool {
        self.request == other.request
    }

    pub(crate) fn devices(&self) -> &[Description] {
        &self.devices
    }
}

/// A worker that was started: two pipes, and a handle to end it.
#[derive(Debug)]
pub struct Launched {
    /// What the worker writes.
    pub from_worker: Box<dyn ReadPipe>,
    /// What the worker reads.
    pub to_worker: Box<dyn WritePipe>,
    /// Ends the worker.
    pub worker: Arc<dyn WorkerHandle>,
}

impl From<Launched> for Pipes {
    fn from(launched: Launched) -> Self {
        let Launched { from_worker, to_worker, worker } = launched;
        Pipes { from_worker, to_worker, worker }
    }
}

/// How a program ended, as far as that is known: what it wrote to standard error last, and its status.
#[derive(Debug, Default)]
struct Ending {
    /// The last lines of standard error that are not blank.
    lines: Vec<String>,
    /// The exit code, if it has ended by itself.
    code: Option<i32>,
    /// The signal that has ended it, if one has.
    signal: Option<i32>,
}

impl Ending {
    fn new(lines: Vec<String>, status: Option<ExitStatus>) -> Self {
        #[cfg(unix)]
        let signal = status.and_then(|status| std::os::unix::process::ExitStatusExt::signal(&status));
        #[cfg(not(unix))]
        let signal = None;
        Ending { lines, code: status.and_then(|status| status.code()), signal }
    }
}

/// Makes the end of a program into a reason for the user, or into none if there is nothing to say.
type Explain = Box<dyn Fn(&Ending) -> Option<String> + Send + Sync>;

/// Why a program could not be started.
struct StartFailure {
    detail: String,
    /// The system's error, if it did not start the program.
    source: Option<io::Error>,
}

impl StartFailure {
    fn new(detail: String) -> Self {
        StartFailure { detail, source: None }
    }
}

impl From<StartFailure> for String {
    fn from(failure: StartFailure) -> Self {
        failure.detail
    }
}

/// Starts a program whose standard input and output are the worker's pipes.
fn start(mut command: Command, explain: Explain) -> Result<Started, StartFailure> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Ctrl-C in a terminal is for this program, which may still need the worker to end well. The worker ends with it.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |why: io::Error| StartFailure {
        detail: format!("`{program}` cannot be started: {why}"),
        source: Some(why),
    };
    let mut child = spawn::spawn(command).map_err(failed)?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(to_worker), Some(from_worker), Some(stderr)) = pipes else {
        return Err(StartFailure::new(format!("`{program}` has no pipes")));
    };
    #[cfg(target_os = "linux")]
    {
        // Large pipes take fewer turns between the two processes. The system may allow less.
        const PIPE_BYTES: usize = 1 << 20;
        let _ = rustix::pipe::fcntl_setpipe_size(&to_worker, PIPE_BYTES);
        let _ = rustix::pipe::fcntl_setpipe_size(&from_worker, PIPE_BYTES);
    }
    let stderr_tail = Arc::new(StderrTail::default());
    let kept = stderr_tail.clone();
    let worker = Arc::new(StartedProgram { child: Mutex::new(child), stderr: stderr_tail, explain });
    let reading = thread::Builder::new().name("evener-worker-stderr".into()).spawn(move || kept.read(stderr));
    if let Err(why) = reading {
        worker.end();
        return Err(StartFailure::new(format!("a thread cannot be started: {why}")));
    }
    Ok(Started { from_worker, to_worker, worker })
}

/// A program that was started, and its pipes.
struct Started {
    from_worker: ChildStdout,
    to_worker: ChildStdin,
    worker: Arc<StartedProgram>,
}

impl From<Started> for Launched {
    fn from(started: Started) -> Self {
        let Started { from_worker, to_worker, worker } = started;
        Launched { from_worker: Box::new(from_worker), to_worker: Box::new(to_worker), worker }
    }
}

/// The last lines that a program wrote to standard error.
#[derive(Debug, Default)]
struct StderrTail {
    /// The lines, and whether the program has closed the pipe.
    state: Mutex<(VecDeque<String>, bool)>,
    ended: Condvar,
}

impl StderrTail {
    /// Lines are cut after this many bytes.
    const MAX_BYTES: u64 = 1000;

    /// Maximum number of lines that are kept: what `ssh` says of a changed key has 13.
    const MAX_LINES: usize = 20;

    fn read(&self, stderr: ChildStderr) {
        let mut stderr = BufReader::new(stderr);
        let mut line = Vec::new();
        // A read that fails is the end, too.
        while let Ok(1..) = (&mut stderr).take(Self::MAX_BYTES).read_until(b'\n', &mut line) {
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            line.clear();
            if !text.is_empty() {
                tracing::debug!("a worker: {text}");
                let lines = &mut self.state.lock().unwrap_or_else(PoisonError::into_inner).0;
                lines.push_back(text);
                if lines.len() > Self::MAX_LINES {
                    lines.pop_front();
                }
            }
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.ended.notify_all();
    }

    /// Returns the lines, after a moment for what is still in the pipe. A program may leave it open, as `ssh` does that
    /// shares its connection with others.
    fn get(&self) -> Vec<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ended.wait_timeout_while(state, MOMENT, |(_, has_ended)| !*has_ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.0.iter().cloned().collect()
    }
}

/// How long a program that closed its pipes has to end.
const MOMENT: Duration = Duration::from_millis(300);

/// A program that was started, and ends with its connection.
struct StartedProgram {
    child: Mutex<Child>,
    stderr: Arc<StderrTail>,
    explain: Explain,
}

impl Debug for StartedProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StartedProgram").field("child", &self.child).finish_non_exhaustive()
    }
}

impl StartedProgram {
    /// Asks the program to end, without waiting for it.
    fn terminate(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        // A program that has ended may have left its number to another one.
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        #[cfg(unix)]
        if let Some(process) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
            // It may end at this moment.
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        }
        #[cfg(not(unix))]
        let _ = child.kill();
    }

    /// Waits until the program has ended. Returns `false` if it has not within this time.
    fn ends_within(&self, limit: Duration) -> bool {
        let start = Instant::now();
        loop {
            match self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait() {
                Ok(None) if start.elapsed() < limit => {}
                status => return !matches!(status, Ok(None)),
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns how the program ended. Gives one that is about to end a moment.
    fn ending(&self) -> Ending {
        let lines = self.stderr.get();
        let start = Instant::now();
        loop {
            let status = self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
            match status {
                Ok(None) if start.elapsed() < MOMENT => thread::sleep(Duration::from_millis(5)),
                status => return Ending::new(lines, status.ok().flatten()),
            }
        }
    }
}

impl WorkerHandle for StartedProgram {
    fn end(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have ended by itself.
        let _ = child.kill();
        let _ = child.wait();
    }

    fn last_words(&self) -> Option<String> {
        (self.explain)(&self.ending())
    }
}
