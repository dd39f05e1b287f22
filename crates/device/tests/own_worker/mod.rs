//! This test program once more, as a worker in a process of its own: of this machine, or of one that is reached by the
//! command in `EVENER_TEST_LAUNCHER`, such as `ssh -F config host1`. That machine has the same files.

use std::{
    io::{stdin, stdout},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use evener_device::{
    Inventory, Result,
    remote::{Connector, Pipes, RemoteHost, WorkerHandle, serve},
};

const VARIABLE: &str = "EVENER_TEST_WORKER";

/// The command that runs another command on the worker's machine.
const LAUNCHER: &str = "EVENER_TEST_LAUNCHER";

/// Whether the worker is on a machine that a command reaches.
pub(crate) fn has_launcher() -> bool {
    std::env::var_os(LAUNCHER).is_some()
}

/// Serves this machine's devices and ends the process, if it was started as a worker.
pub(crate) fn serve_if_asked() {
    if std::env::var_os(VARIABLE).is_some() {
        let outcome = serve(Inventory::discover_all_apis(), stdin(), stdout());
        std::process::exit(i32::from(outcome.is_err()));
    }
}

/// Starts a worker. Its devices are `worker/cpu` and so on.
pub(crate) fn connect() -> Result<RemoteHost> {
    RemoteHost::connect("worker", Arc::new(OwnProgram), Duration::from_secs(60))
}

#[derive(Debug)]
struct OwnProgram;

impl Connector for OwnProgram {
    fn connect(&self) -> Result<Pipes, String> {
        let program = std::env::current_exe().map_err(|why| why.to_string())?;
        let launcher = std::env::var(LAUNCHER).unwrap_or_default();
        let mut command = match launcher.split_whitespace().collect::<Vec<_>>().as_slice() {
            [] => Command::new(program),
            [launcher, arguments @ ..] => {
                let mut command = Command::new(launcher);
                command.args(arguments).arg(format!("exec env {VARIABLE}=1 '{}'", program.display()));
                command
            }
        };
        command.env(VARIABLE, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|why| why.to_string())?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to_worker), Some(from_worker)) => Ok(Pipes {
                from_worker: Box::new(from_worker),
                to_worker: Box::new(to_worker),
                worker: Arc::new(Process(Mutex::new(child))),
            }),
            _ => Err("the process has no pipes".into()),
        }
    }
}

#[derive(Debug)]
struct Process(Mutex<Child>);

impl WorkerHandle for Process {
    fn end(&self) {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}
