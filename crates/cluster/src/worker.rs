//! The worker's process: serves this machine's devices over standard input and output.

use std::{
    io::{self, Read, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use evener_device::{Inventory, remote};

/// The argument that makes a program a worker.
pub const ARGUMENT: &str = "--evener-worker";

/// What a worker says whose program differs from the one that was sent.
pub(crate) const DAMAGED: &str = "the copy of the program on that machine is damaged";

/// Serves this machine's devices and ends the process, if this program was started as a worker: with the argument
/// `--evener-worker`. Otherwise it does nothing.
///
/// Make it the first line of `main`, so that [`Process::this_program`](crate::Process::this_program) can start workers
/// that have this program's kernels.
pub fn serve_if_asked() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|argument| argument == ARGUMENT) {
        let expected = arguments.next().map(|hash| hash.to_string_lossy().into_owned());
        std::process::exit(run_if_whole(expected.as_deref()));
    }
}

/// Serves as [`run`] does, unless this program's executable has another hash than the one it was sent with: then it
/// removes the executable, so that the client sends it again, and returns a code that is not 0.
pub fn run_if_whole(expected: Option<&str>) -> i32 {
    let found = remote::program_hash().map(|hash| hexadecimal(&hash));
    match expected {
        Some(expected) if found.as_deref() != Some(expected) => {
            let copy = std::env::current_exe().ok().filter(|path| is_copy(path, expected));
            let is_removed = copy.is_some_and(|path| std::fs::remove_file(path).is_ok());
            let removed = if is_removed { "it was removed" } else { "remove it" };
            let text = format!("{DAMAGED}: {removed}, and send it again\n");
            // The client may be gone.
            let _ = io::stderr().write_all(text.as_bytes());
            1
        }
        _ => run(),
    }
}

/// Whether a file is a copy of a program that has this hash as its name. Any other file is the user's own.
fn is_copy(path: &Path, hash: &str) -> bool {
    let is_hash = hash.len() == 64 && hash.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hash && path.file_name().is_some_and(|name| name == hash)
}

pub(crate) fn hexadecimal(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Serves this machine's devices until standard input ends. Returns the exit code: the caller ends the process with it,
/// and what the devices still compute with it.
pub fn run() -> i32 {
    end_with_session();
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

/// The environment variable with the seconds that a worker waits for a sign of life of its client.
pub const LEASE_VARIABLE: &str = "EVENER_WORKER_LEASE";

/// The environment variable with the SLURM job that is a worker's alone, which ends with the worker.
pub(crate) const JOB_VARIABLE: &str = "EVENER_WORKER_JOB";

/// How long a client may be silent, which gives a sign of life each second. Longer, the machine it is on, or the network,
/// is gone, or the client is suspended.
const LEASE: Duration = Duration::from_secs(120);

/// The lease of this worker: that of the environment, or the usual one.
fn lease() -> Duration {
    let seconds = std::env::var(LEASE_VARIABLE).ok().and_then(|text| text.trim().parse::<f64>().ok());
    let lease = seconds.filter(|seconds| *seconds >= 1.0).and_then(|it| Duration::try_from_secs_f64(it).ok());
    lease.unwrap_or(LEASE)
}

/// Ends the process because the client is gone without a word. If `srun` was killed, SLURM does not notice that its job is
/// over.
fn lease_ended() -> ! {
    if let Some(job) = std::env::var_os(JOB_VARIABLE) {
        let mut scancel = std::process::Command::new("scancel");
        // Nobody is left who could be told of a failure. The job then ends at its time limit.
        let _ = scancel.arg("--quiet").arg(job).status();
    }
    std::process::exit(1);
}

/// Makes this process end with the session of `ssh` or SLURM that has started it, also if it is stopped or its pipes stay
/// open. Other parents are left alone: the signal comes when the thread ends that started this process.
pub fn end_with_session() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, getppid, set_parent_process_death_signal};

        const SESSIONS: [&str; 4] = ["sshd", "sshd-session", "slurmstepd", "dropbear"];
        let Some(parent) = getppid() else { return };
        let name =
            std::fs::read_to_string(format!("/proc/{}/comm", parent.as_raw_nonzero())).unwrap_or_default();
        if SESSIONS.contains(&name.trim()) {
            // Without it, the process ends with its pipes or its lease.
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
            if getppid() != Some(parent) {
                std::process::exit(1);
            }
        }
    }
}

/// The client's pipe. The process ends if it waits for the client for the time of the lease, and nothing comes.
struct Watched<P> {
    pipe: P,
    reading: Arc<Reading>,
}

#[derive(Debug, Default)]
struct Reading {
    /// Bytes that came.
    received: AtomicU64,
    /// Whether the process waits for more: a driver may hold up the thread that reads.
    is_waiting: AtomicBool,
}

impl<P: Read> Watched<P> {
    fn new(pipe: P) -> Self {
        let reading = Arc::new(Reading::default());
        let watched = Arc::downgrade(&reading);
        let watch = move || {
            const TICK: Duration = Duration::from_secs(1);
            let (mut before, mut silent, lease) = (0, Duration::ZERO, lease());
            while silent < lease {
                // Only time in which this thread runs counts, not a suspension of the process.
                thread::sleep(TICK);
                let Some(reading) = watched.upgrade() else { return };
                let now = reading.received.load(Relaxed);
                let is_silent = now == before && reading.is_waiting.load(Relaxed);
                silent = if is_silent { silent + TICK } else { Duration::ZERO };
                before = now;
            }
            lease_ended();
        };
        // Without it, the process ends when the system notices that the client is gone.
        let _ = thread::Builder::new().name("evener-worker-watch".into()).spawn(watch);
        Watched { pipe, reading }
    }
}

impl<P: Read> Read for Watched<P> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.reading.is_waiting.store(true, Relaxed);
        let read = self.pipe.read(into);
        self.reading.is_waiting.store(false, Relaxed);
        let read = read?;
        self.reading.received.fetch_add(read as u64, Relaxed);
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

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn only_a_file_that_has_the_hash_as_its_name_is_a_copy() {
        let hash = "0123456789abcdef".repeat(4);
        assert!(is_copy(&Path::new("/home/alice/.cache/evener/programs").join(&hash), &hash));
        for (path, hash) in [
            ("/usr/bin/evener", hash.as_str()),
            ("/usr/bin/evener", "evener"),
            ("/usr/bin/evener", "/usr/bin/evener"),
            ("/usr/bin/evener", ""),
        ] {
            assert!(!is_copy(Path::new(path), hash), "{path} {hash}");
        }
    }
}
