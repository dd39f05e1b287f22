//! The programs of this user, as a view in another process sees them.

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::OsString,
    fs, io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use super::{
    MAX_MESSAGE, Message, PROTOCOL, Request, SocketError,
    folder::{check_peer, folder, make},
    frame::{Frames, write},
    server::is_free,
};
use crate::state::{Delta, Program, Update};

/// Deltas that are kept, so that a view which reads less often need not be sent a snapshot.
const KEPT_DELTAS: usize = 16;
/// How long a program may take to greet and to send its snapshot, and to answer a request.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The connection to one program. A thread of its own keeps the copy of its state up to date.
#[derive(Debug)]
pub struct Connection {
    pid: u32,
    shared: Arc<Shared>,
    /// For requests.
    stream: Mutex<UnixStream>,
}

#[derive(Debug)]
struct Shared {
    replica: Mutex<Replica>,
    changed: Condvar,
}

/// The copy of a program's state.
#[derive(Debug)]
struct Replica {
    program: Program,
    deltas: VecDeque<Box<Delta>>,
    answers: VecDeque<(u64, bool)>,
    is_closed: bool,
}

impl Shared {
    fn replica(&self) -> MutexGuard<'_, Replica> {
        self.replica.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a closure returns something, or the limit has passed.
    fn wait_for<R>(&self, limit: Duration, mut get: impl FnMut(&mut Replica) -> Option<R>) -> Option<R> {
        let (start, mut replica) = (Instant::now(), self.replica());
        loop {
            let got = get(&mut replica);
            let left = limit.saturating_sub(start.elapsed());
            if got.is_some() || left.is_zero() {
                return got;
            }
            replica = self.changed.wait_timeout(replica, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Connection {
    /// Connects to the socket of a program, and waits for its first snapshot.
    pub fn open(path: &Path) -> Result<Connection, SocketError> {
        let mut stream = UnixStream::connect(path)?;
        check_peer(&stream)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        let (mut frames, start) = (Frames::new(MAX_MESSAGE), Instant::now());
        let mut next = |stream: &mut UnixStream| loop {
            if let Some(message) = frames.next::<Message>()? {
                return Ok(message);
            }
            if start.elapsed() >= ANSWER_LIMIT {
                return Err(io::Error::from(io::ErrorKind::TimedOut));
            }
            frames.receive(stream)?;
        };
        let pid = match next(&mut stream)? {
            Message::Hello { protocol: PROTOCOL, pid } => pid,
            Message::Hello { protocol, .. } => return Err(SocketError::Protocol { found: protocol }),
            _ => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        };
        let Message::Update(Update::Snapshot(program)) = next(&mut stream)? else {
            return Err(io::Error::from(io::ErrorKind::InvalidData).into());
        };
        let replica = Replica {
            program: *program,
            deltas: VecDeque::new(),
            answers: VecDeque::new(),
            is_closed: false,
        };
        let shared = Arc::new(Shared { replica: Mutex::new(replica), changed: Condvar::new() });
        let (reading, mut incoming) = (shared.clone(), stream.try_clone()?);
        incoming.set_read_timeout(None)?;
        let read = move || {
            if let Err(error) = read(&mut incoming, &mut frames, &reading) {
                tracing::debug!(%error, pid, "the connection to a program has ended");
            }
            reading.replica().is_closed = true;
            reading.changed.notify_all();
        };
        thread::Builder::new().name("evener-follow".into()).spawn(read)?;
        Ok(Connection { pid, shared, stream: Mutex::new(stream) })
    }

    /// The program's process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The program's state, as of its last update.
    pub fn program(&self) -> Program {
        self.shared.replica().program.clone()
    }

    /// Calls a closure with the program's state, as of its last update.
    pub fn with_program<R>(&self, look: impl FnOnce(&Program) -> R) -> R {
        look(&self.shared.replica().program)
    }

    /// Whether the program has ended, or has closed its socket.
    pub fn is_closed(&self) -> bool {
        self.shared.replica().is_closed
    }

    /// What has changed since a version, if anything has; all of it without a version, or if that is long ago. Call it until
    /// it returns nothing: each call returns one update.
    pub fn update_since(&self, version: Option<u64>) -> Option<Update> {
        self.shared.replica().update_since(version)
    }

    /// Waits until something has changed since a version, but no longer than this, and returns it.
    pub fn wait_for_update(&self, version: Option<u64>, at_most: Duration) -> Option<Update> {
        self.shared.wait_for(at_most, |replica| replica.update_since(version))
    }

    /// Asks the program to cancel a run. Returns whether the run was there.
    pub fn cancel(&self, run: u64) -> Result<bool, SocketError> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.replica().answers.clear();
        write(&mut stream, &Request::Cancel { run }, ANSWER_LIMIT)?;
        let answer = self.shared.wait_for(ANSWER_LIMIT, |replica| {
            let index = replica.answers.iter().position(|(of, _)| *of == run);
            match index.and_then(|index| replica.answers.remove(index)) {
                Some((_, accepted)) => Some(Ok(accepted)),
                None if replica.is_closed => Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof))),
                None => None,
            }
        });
        Ok(answer.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        // Ends the thread that reads.
        drop(stream.shutdown(std::net::Shutdown::Both));
    }
}

impl Replica {
    fn update_since(&self, version: Option<u64>) -> Option<Update> {
        let snapshot = || Update::Snapshot(Box::new(self.program.clone()));
        match version {
            Some(version) if version == self.program.version => None,
            Some(version) => {
                let delta = self.deltas.iter().find(|delta| delta.from == version);
                Some(delta.map_or_else(snapshot, |delta| Update::Delta(delta.clone())))
            }
            None => Some(snapshot()),
        }
    }

    fn apply(&mut self, update: Update) -> io::Result<()> {
        let delta = match &update {
            Update::Snapshot(_) => None,
            Update::Delta(delta) => Some(delta.clone()),
        };
        if !self.program.apply(update) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an update is missing"));
        }
        match delta {
            None => self.deltas.clear(),
            Some(delta) => {
                if self.deltas.len() >= KEPT_DELTAS {
                    self.deltas.pop_front();
                }
                self.deltas.push_back(delta);
            }
        }
        Ok(())
    }
}

/// Reads updates until the connection ends.
fn read(stream: &mut UnixStream, frames: &mut Frames, shared: &Shared) -> io::Result<()> {
    /// Answers that nobody has taken.
    const KEPT_ANSWERS: usize = 16;
    loop {
        while let Some(message) = frames.next()? {
            let mut replica = shared.replica();
            match message {
                Message::Hello { .. } => {}
                Message::Update(update) => replica.apply(update)?,
                Message::Answer { run, accepted } => {
                    replica.answers.truncate(KEPT_ANSWERS);
                    replica.answers.push_back((run, accepted));
                }
            }
            drop(replica);
            shared.changed.notify_all();
        }
        frames.receive(stream)?;
    }
}

/// All programs of this user that let views find them.
#[derive(Debug)]
pub struct Programs {
    folder: PathBuf,
    connections: BTreeMap<OsString, Arc<Connection>>,
    /// Sockets that could not be used, and why.
    refused: BTreeMap<OsString, String>,
}

impl Programs {
    /// The programs of this user. Call [`refresh`](Programs::refresh) to find them.
    pub fn of_user() -> Result<Programs, SocketError> {
        Ok(Programs { folder: folder()?, connections: BTreeMap::new(), refused: BTreeMap::new() })
    }

    /// The programs with a socket in a folder.
    pub fn in_folder(folder: &Path) -> Result<Programs, SocketError> {
        make(folder)?;
        let folder = folder.to_owned();
        Ok(Programs { folder, connections: BTreeMap::new(), refused: BTreeMap::new() })
    }

    /// Connects to programs that are new, and drops those that have ended. Removes the sockets of programs that were
    /// killed. Call it about once a second.
    pub fn refresh(&mut self) -> Result<(), SocketError> {
        self.connections.retain(|_, connection| !connection.is_closed());
        self.refused.clear();
        let failed = |error| SocketError::Folder { folder: self.folder.clone(), error };
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let Some(name) = path.file_name().filter(|_| path.extension().is_some_and(|it| it == "sock"))
            else {
                continue;
            };
            if self.connections.contains_key(name) {
                continue;
            }
            match Connection::open(&path) {
                Ok(connection) => drop(self.connections.insert(name.to_owned(), Arc::new(connection))),
                Err(SocketError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(SocketError::Io(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    // Its program was killed. A new one may have made it again since.
                    if let Err(error) = is_free(&path) {
                        drop(self.refused.insert(name.to_owned(), error.to_string()));
                    }
                }
                Err(error) => drop(self.refused.insert(name.to_owned(), error.to_string())),
            }
        }
        Ok(())
    }

    /// The programs, by the names of their sockets.
    pub fn connections(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.connections.values()
    }

    /// A program, by its process id.
    pub fn connection(&self, pid: u32) -> Option<&Arc<Connection>> {
        self.connections().find(|connection| connection.pid() == pid)
    }

    /// Sockets that could not be used at the last refresh, and why.
    pub fn refused(&self) -> impl Iterator<Item = (String, &str)> {
        self.refused.iter().map(|(name, why)| (name.to_string_lossy().into_owned(), why.as_str()))
    }
}
