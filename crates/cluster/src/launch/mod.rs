//! Launchers: how a worker is started, and how its pipes come back.

mod process;
mod ssh;

use std::{
    fmt::Debug,
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStderr, Command, Stdio},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use evener_device::remote::{Pipes, ReadPipe, WorkerHandle, WritePipe};

pub use self::{process::Process, ssh::Ssh};

/// Starts workers.
pub trait Launcher: Debug + Send + Sync {
    /// Starts a worker, which need not have answered yet when this returns. `timeout` is how long it has to. Fails with a
    /// reason for the user.
    fn launch(&self, timeout: Duration) -> Result<Launched, String>;
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

/// Makes the last line of standard error into a reason for the user.
type Explain = Box<dyn Fn(&str) -> String + Send + Sync>;

/// Starts a program whose standard input and output are the worker's pipes.
fn start(mut command: Command, explain: Explain) -> Result<Launched, String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Ctrl-C in a terminal is for this program, which may still need the worker to end well. The worker ends with it.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().map_err(|why| format!("`{program}` cannot be started: {why}"))?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(to_worker), Some(from_worker), Some(stderr)) = pipes else {
        return Err(format!("`{program}` has no pipes"));
    };
    #[cfg(target_os = "linux")]
    {
        // Large pipes take fewer turns between the two processes. The system may allow less.
        const PIPE_BYTES: usize = 1 << 20;
        let _ = rustix::pipe::fcntl_setpipe_size(&to_worker, PIPE_BYTES);
        let _ = rustix::pipe::fcntl_setpipe_size(&from_worker, PIPE_BYTES);
    }
    let last_line = Arc::new(LastLine::default());
    let kept = last_line.clone();
    let reading = thread::Builder::new().name("evener-worker-stderr".into()).spawn(move || kept.read(stderr));
    reading.map_err(|why| format!("a thread cannot be started: {why}"))?;
    let worker = Arc::new(StartedProgram { child: Mutex::new(child), last_line, explain });
    Ok(Launched { from_worker: Box::new(from_worker), to_worker: Box::new(to_worker), worker })
}

/// The last line that a program wrote to standard error.
#[derive(Debug, Default)]
struct LastLine {
    /// The line, and whether the program has closed the pipe.
    state: Mutex<(String, bool)>,
    ended: Condvar,
}

impl LastLine {
    /// Lines are cut after this many bytes.
    const MAX_BYTES: u64 = 1000;

    fn read(&self, stderr: ChildStderr) {
        let mut stderr = BufReader::new(stderr);
        let mut line = Vec::new();
        // A read that fails is the end, too.
        while let Ok(1..) = (&mut stderr).take(Self::MAX_BYTES).read_until(b'\n', &mut line) {
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            line.clear();
            if !text.is_empty() {
                tracing::debug!("a worker: {text}");
                self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = text;
            }
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.ended.notify_all();
    }

    /// Returns the line, after a moment for what is still in the pipe. A program may leave it open, as `ssh` does that
    /// shares its connection with others.
    fn get(&self) -> String {
        const MOMENT: Duration = Duration::from_millis(200);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ended.wait_timeout_while(state, MOMENT, |(_, has_ended)| !*has_ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.0.clone()
    }
}

/// A program that was started, and ends with its connection.
struct StartedProgram {
    child: Mutex<Child>,
    last_line: Arc<LastLine>,
    explain: Explain,
}

impl Debug for StartedProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StartedProgram").field("child", &self.child).finish_non_exhaustive()
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
        let line = self.last_line.get();
        (!line.is_empty()).then(|| (self.explain)(&line))
    }
}
