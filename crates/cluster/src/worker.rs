//! The worker's process: serves this machine's devices over standard input and output.

use std::{
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use evener_device::{Inventory, remote};

/// The argument that makes a program a worker.
pub const ARGUMENT: &str = "--evener-worker";

/// Serves this machine's devices and ends the process, if this program was started as a worker: with the argument
/// `--evener-worker`. Otherwise it does nothing.
///
/// Make it the first line of `main`, so that [`Process::this_program`](crate::Process::this_program) can start workers
/// that have this program's kernels.
pub fn serve_if_asked() {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == ARGUMENT) {
        std::process::exit(run());
    }
}

/// Serves this machine's devices until standard input ends. Returns the exit code: the caller ends the process with it,
/// and what the devices still compute with it.
pub fn run() -> i32 {
    let served = pipes().map_err(|why| format!("standard input and output cannot be used: {why}"));
    let served = served.and_then(|(input, output)| {
        remote::serve(Inventory::discover_all_apis(), Watched::new(input), output)
    });
    end_soon();
    match served {
        Ok(()) => 0,
        Err(reason) => {
            // The client has the reason too, unless the connection broke.
            tracing::warn!("the connection ended: {reason}");
            1
        }
    }
}

/// How long a client may be silent, which gives a sign of life each second. Longer, the machine it is on, or the network,
/// is gone.
const SILENCE: Duration = Duration::from_secs(120);

/// The client's pipe. The process ends if nothing comes for [`SILENCE`].
struct Watched<P> {
    pipe: P,
    received: Arc<AtomicU64>,
}

impl<P: Read> Watched<P> {
    fn new(pipe: P) -> Self {
        let received = Arc::new(AtomicU64::new(0));
        let watched = Arc::downgrade(&received);
        let watch = move || {
            const TICK: Duration = Duration::from_secs(1);
            let (mut before, mut silent) = (0, Duration::ZERO);
            while silent < SILENCE {
                // Only time in which this thread runs counts, not a suspension of the process.
                thread::sleep(TICK);
                let Some(now) = watched.upgrade().map(|received| received.load(Relaxed)) else { return };
                silent = if now == before { silent + TICK } else { Duration::ZERO };
                before = now;
            }
            std::process::exit(1);
        };
        // Without it, the process ends when the system notices that the client is gone.
        let _ = thread::Builder::new().name("evener-worker-watch".into()).spawn(watch);
        Watched { pipe, received }
    }
}

impl<P: Read> Read for Watched<P> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.pipe.read(into)?;
        self.received.fetch_add(read as u64, Relaxed);
        Ok(read)
    }
}

/// Ends the process in two seconds, should a driver's clean-up wait for what its device still computes.
fn end_soon() {
    #[cfg(unix)]
    {
        use rustix::process::{Signal, getpid, kill_process};

        let watch = || {
            thread::sleep(Duration::from_secs(2));
            // The signal cannot be refused.
            let _ = kill_process(getpid(), Signal::KILL);
        };
        // Without it, the process ends when the driver is done.
        let _ = thread::Builder::new().spawn(watch);
    }
}

/// Takes standard input and output. What drivers and libraries print from then on goes to standard error.
#[cfg(unix)]
fn pipes() -> io::Result<(std::fs::File, std::fs::File)> {
    use std::fs::File;

    let input = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let output = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok((File::from(input), File::from(output)))
}

#[cfg(not(unix))]
fn pipes() -> io::Result<(io::Stdin, io::Stdout)> {
    Ok((io::stdin(), io::stdout()))
}
