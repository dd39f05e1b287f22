//! Starts programs that end with this one, however it ends.
//!
//! A program that is started here gets SIGTERM when this process dies, also by SIGKILL. Linux sends that signal when the
//! *thread* that started the program ends, so one thread that lives as long as the process starts all of them.
#![cfg_attr(target_os = "linux", allow(unsafe_code))]

use std::{
    io,
    process::{Child, Command},
};

/// Starts a program. On Linux, it gets SIGTERM when this process ends.
#[cfg(not(target_os = "linux"))]
pub(super) fn spawn(mut command: Command) -> io::Result<Child> {
    command.spawn()
}

/// Starts a program. On Linux, it gets SIGTERM when this process ends.
#[cfg(target_os = "linux")]
pub(super) fn spawn(mut command: Command) -> io::Result<Child> {
    use std::sync::mpsc;

    match starter() {
        Some(starter) => {
            end_with_this_process(&mut command);
            let (answer, started) = mpsc::channel();
            let gone = |_| io::Error::other("the thread that starts programs has ended");
            starter.send((command, answer)).map_err(|_| io::Error::other("no thread starts programs"))?;
            started.recv().map_err(gone)?
        }
        // The system gave no thread. The program still ends with its pipes.
        None => command.spawn(),
    }
}

/// A program to start, and where the outcome goes.
#[cfg(target_os = "linux")]
type Order = (Command, std::sync::mpsc::Sender<io::Result<Child>>);

/// The thread that starts programs, or `None` if the system did not give one.
#[cfg(target_os = "linux")]
fn starter() -> Option<std::sync::mpsc::Sender<Order>> {
    use std::{
        sync::{Mutex, PoisonError, mpsc},
        thread,
    };

    use evener_device::affinity::unbound;

    static STARTER: Mutex<Option<mpsc::Sender<Order>>> = Mutex::new(None);
    let mut starter = STARTER.lock().unwrap_or_else(PoisonError::into_inner);
    if starter.is_none() {
        let (sender, orders) = mpsc::channel::<Order>();
        let start = move || {
            for (mut command, answer) in orders {
                // The caller waits for the answer.
                let _ = answer.send(command.spawn());
            }
        };
        // Programs inherit the cores of the thread that starts them.
        let spawned = unbound(|| thread::Builder::new().name("evener-starter".into()).spawn(start));
        *starter = spawned.ok().map(|_| sender);
    }
    starter.clone()
}

#[cfg(target_os = "linux")]
fn end_with_this_process(command: &mut Command) {
    use std::os::unix::process::CommandExt;

    use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

    let parent = getpid();
    let in_child = move || {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // This process may have ended before the call.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: between `fork` and `exec` the closure makes two system calls through `rustix`, which neither allocate nor
    // take a lock, and its errors do not allocate either.
    unsafe { command.pre_exec(in_child) };
}

#[cfg(all(test, target_os = "linux"))]
mod test {
    use std::{process::Stdio, thread, time::Duration};

    use super::*;

    #[test]
    fn a_program_outlives_the_thread_that_asked_for_it() {
        let started = thread::spawn(|| {
            let mut command = Command::new("cat");
            command.stdin(Stdio::piped()).stdout(Stdio::null());
            spawn(command).unwrap()
        });
        let mut cat = started.join().unwrap();
        thread::sleep(Duration::from_millis(100));
        assert!(cat.try_wait().unwrap().is_none(), "it has ended");
        drop(cat.stdin.take());
        assert!(cat.wait().unwrap().success(), "it was ended by a signal");
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        assert_eq!(spawn(Command::new("/nowhere/program")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
