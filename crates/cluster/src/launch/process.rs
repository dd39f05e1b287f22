//! Workers as processes of this machine.

use std::{ffi::OsString, path::PathBuf, process::Command, time::Duration};

use super::{Launched, Launcher, start};
use crate::worker;

/// Starts workers as processes of this machine.
#[derive(Debug, Clone)]
pub struct Process {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Process {
    /// Runs a program with these arguments, whose standard input and output become the worker's pipes.
    pub fn new(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        Process { program: program.into(), arguments: arguments.into_iter().map(Into::into).collect() }
    }

    /// Runs this program again. The first line of its `main` has to be
    /// [`worker::serve_if_asked()`](worker::serve_if_asked).
    pub fn this_program() -> std::io::Result<Self> {
        Ok(Process::new(std::env::current_exe()?, [worker::ARGUMENT]))
    }
}

impl Launcher for Process {
    fn launch(&self, _: Duration) -> Result<Launched, String> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        Ok(start(command, Box::new(|ending| ending.lines.last().cloned()))?.into())
    }
}

#[cfg(all(test, unix))]
mod test {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_workers_process_is_not_in_the_group_that_a_terminal_interrupts() {
        let shell = Process::new("sh", ["-c", "ps -o pgid= -p $$"]);
        let mut group = String::new();
        shell.launch(Duration::ZERO).unwrap().from_worker.read_to_string(&mut group).unwrap();
        let own = rustix::process::getpgrp().as_raw_nonzero().get();
        assert_ne!(group.trim().parse::<i32>().unwrap(), own);
    }
}
