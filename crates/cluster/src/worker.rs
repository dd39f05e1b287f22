//! The worker's process: serves this machine's devices over standard input and output.

use std::io;

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
    let served =
        served.and_then(|(input, output)| remote::serve(Inventory::discover_all_apis(), input, output));
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

/// Ends the process in two seconds, should a driver's clean-up wait for what its device still computes.
fn end_soon() {
    #[cfg(unix)]
    {
        use std::{thread, time::Duration};

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
