//! Where a worker that fell out asks to come back.
//!
//! Such a worker is in no group, so it cannot use a collective. It leaves a request; the leader sees it before an exchange
//! and announces it there, so that all members take the worker back at the same commit.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

/// The group that a worker may join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Admission {
    pub(super) generation: u64,
    pub(super) members: Vec<usize>,
}

/// Passes requests of workers that fell out, and the answers of the leader.
pub(super) trait Rendezvous: Send + Sync {
    /// Leaves a request and waits for the answer. Returns `None` if training has ended, or nobody answered in time.
    fn ask(&self, rank: usize, patience: Duration) -> Option<Admission>;
    /// Returns one of these ranks that asks to come back.
    fn asking(&self, gone: &[usize]) -> Option<usize>;
    /// Answers a request.
    fn admit(&self, rank: usize, admission: Admission);
    /// Says that training has ended.
    fn close(&self);
}

/// Requests of threads.
#[derive(Debug, Default)]
pub(super) struct InProcess {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The requests, and the answers that were not yet taken.
    requests: HashMap<usize, Option<Admission>>,
    closed: bool,
}

impl InProcess {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Ignores poisoning: entries are inserted and removed whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rendezvous for InProcess {
    fn ask(&self, rank: usize, patience: Duration) -> Option<Admission> {
        let until = Instant::now() + patience;
        let mut state = self.lock();
        state.requests.insert(rank, None);
        loop {
            if let Some(Some(_)) = state.requests.get(&rank) {
                return state.requests.remove(&rank).flatten();
            }
            let left = until.saturating_duration_since(Instant::now());
            if state.closed || left.is_zero() {
                state.requests.remove(&rank);
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn asking(&self, gone: &[usize]) -> Option<usize> {
        let state = self.lock();
        gone.iter().copied().find(|rank| state.requests.get(rank) == Some(&None))
    }

    fn admit(&self, rank: usize, admission: Admission) {
        if let Some(request) = self.lock().requests.get_mut(&rank) {
            *request = Some(admission);
        }
        self.changed.notify_all();
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

/// Requests of processes, as files in a folder that all of them see.
#[derive(Debug)]
pub(super) struct InFolder {
    folder: PathBuf,
}

/// How often a process looks for an answer.
const LOOK: Duration = Duration::from_millis(20);

impl InFolder {
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        // What an earlier run left there means nothing.
        for entry in fs::read_dir(folder)?.flatten() {
            let _ = fs::remove_file(entry.path());
        }
        Ok(InFolder { folder: folder.to_owned() })
    }

    fn file(&self, rank: usize, what: &str) -> PathBuf {
        self.folder.join(format!("rank-{rank}.{what}"))
    }
}

impl Rendezvous for InFolder {
    fn ask(&self, rank: usize, patience: Duration) -> Option<Admission> {
        let (request, answer) = (self.file(rank, "asks"), self.file(rank, "admitted"));
        let until = Instant::now() + patience;
        let _ = fs::remove_file(&answer);
        fs::write(&request, "").ok()?;
        while Instant::now() < until && !self.folder.join("closed").exists() {
            if let Ok(text) = fs::read_to_string(&answer) {
                let _ = fs::remove_file(&answer);
                return serde_json::from_str(&text).ok();
            }
            thread::sleep(LOOK);
        }
        let _ = fs::remove_file(&request);
        None
    }

    fn asking(&self, gone: &[usize]) -> Option<usize> {
        gone.iter().copied().find(|&rank| self.file(rank, "asks").exists())
    }

    fn admit(&self, rank: usize, admission: Admission) {
        let _ = fs::remove_file(self.file(rank, "asks"));
        // Moved into place, so that the other process never reads half of it.
        let (beside, answer) = (self.file(rank, "answer"), self.file(rank, "admitted"));
        let written = serde_json::to_string(&admission)
            .map_err(io::Error::other)
            .and_then(|text| fs::write(&beside, text))
            .and_then(|()| fs::rename(&beside, &answer));
        if let Err(error) = written {
            tracing::warn!("rank {rank} cannot be told that it may return: {}: {error}", answer.display());
        }
    }

    fn close(&self) {
        let _ = fs::write(self.folder.join("closed"), "");
    }
}

/// Nobody returns: processes without a common folder.
#[derive(Debug)]
pub(super) struct Nowhere;

impl Rendezvous for Nowhere {
    fn ask(&self, _: usize, _: Duration) -> Option<Admission> {
        None
    }

    fn asking(&self, _: &[usize]) -> Option<usize> {
        None
    }

    fn admit(&self, _: usize, _: Admission) {}

    fn close(&self) {}
}
