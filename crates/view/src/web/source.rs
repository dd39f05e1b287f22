//! Whose runs are shown: those of this process, or of all programs of this user.

#[cfg(unix)]
use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::Duration,
};

#[cfg(unix)]
use crate::socket::{Connection, Programs};
use crate::{
    Live,
    state::{Program, Update},
};

/// Where the server gets what it shows from.
#[derive(Debug, Clone)]
pub enum Source {
    /// The runs of this process.
    Process(Live),
    /// All programs of this user that can be found.
    #[cfg(unix)]
    User(UserPrograms),
}

/// The programs of this user, which a thread looks for once a second.
#[cfg(unix)]
#[derive(Debug, Clone)]
pub struct UserPrograms {
    connections: Arc<Mutex<Vec<Arc<Connection>>>>,
}

impl Source {
    /// All programs of this user that were asked to be found. Fails if the system gives no thread.
    #[cfg(unix)]
    pub fn user(programs: Programs) -> std::io::Result<Source> {
        let connections = Arc::new(Mutex::new(Vec::new()));
        let weak = Arc::downgrade(&connections);
        thread::Builder::new().name("evener-programs".into()).spawn(move || look(programs, &weak))?;
        Ok(Source::User(UserPrograms { connections }))
    }

    /// The process ids of the programs.
    pub(super) fn pids(&self) -> Vec<u32> {
        match self {
            Source::Process(_) => vec![std::process::id()],
            #[cfg(unix)]
            Source::User(programs) => programs.all().iter().map(|program| program.pid()).collect(),
        }
    }

    /// What has changed in a program since a version.
    pub(super) fn update_since(&self, pid: u32, version: Option<u64>) -> Option<Update> {
        match self {
            Source::Process(live) => live.update_since(version),
            #[cfg(unix)]
            Source::User(programs) => programs.of(pid)?.update_since(version),
        }
    }

    /// Calls a closure with a program, as it is now.
    pub(super) fn with_program<R>(&self, pid: u32, look: impl FnOnce(&Program) -> R) -> Option<R> {
        match self {
            Source::Process(live) => (pid == std::process::id()).then(|| look(&live.snapshot())),
            #[cfg(unix)]
            Source::User(programs) => Some(programs.of(pid)?.with_program(look)),
        }
    }
}

#[cfg(unix)]
impl UserPrograms {
    fn all(&self) -> Vec<Arc<Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn of(&self, pid: u32) -> Option<Arc<Connection>> {
        self.all().into_iter().find(|connection| connection.pid() == pid)
    }
}

/// Looks for programs until nobody asks any more.
#[cfg(unix)]
fn look(mut programs: Programs, found: &Weak<Mutex<Vec<Arc<Connection>>>>) {
    while let Some(found) = found.upgrade() {
        if let Err(error) = programs.refresh() {
            tracing::warn!(%error, "cannot look for programs");
        }
        // A process may have several sockets; the first is that of its own runs.
        let mut all: Vec<Arc<Connection>> = programs.connections().cloned().collect();
        all.sort_by_key(|connection| connection.pid());
        all.dedup_by_key(|connection| connection.pid());
        *found.lock().unwrap_or_else(PoisonError::into_inner) = all;
        drop(found);
        thread::sleep(Duration::from_secs(1));
    }
}

/// The name of this machine, if the system tells it.
pub(super) fn host_name() -> Option<String> {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_str().ok().map(str::to_owned);
    #[cfg(windows)]
    let name = std::env::var("COMPUTERNAME").ok();
    #[cfg(not(any(unix, windows)))]
    let name = None;
    name.filter(|name: &String| !name.is_empty())
}
