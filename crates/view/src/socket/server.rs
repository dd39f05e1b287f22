//! The socket of a program that lets views find it.

use std::{
    fs, io,
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use super::{
    MAX_REQUEST, MAX_VIEWS, Message, PROTOCOL, Request, SocketError, UPDATE_EVERY, WRITE_LIMIT,
    folder::{check_peer, folder, make},
    frame::{Frames, write},
};
use crate::live::Live;

/// The socket of this program, until it is dropped.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    is_closed: AtomicBool,
    views: AtomicUsize,
}

/// Opens the socket of this program if the variable `EVENER_VIEW` is 1.
pub fn open_if_asked() -> Result<Option<Server>, SocketError> {
    match std::env::var("EVENER_VIEW").as_deref() {
        Err(_) | Ok("" | "0") => Ok(None),
        Ok("1") => Server::open().map(Some),
        Ok(other) => Err(SocketError::Variable(other.into())),
    }
}

impl Server {
    /// Opens the socket of this program, so that views of the same user find it.
    pub fn open() -> Result<Server, SocketError> {
        Server::open_in(&folder()?, Live::of_process()?)
    }

    /// Opens a socket in a folder, which is made if it is not there.
    pub fn open_in(folder: &Path, live: Live) -> Result<Server, SocketError> {
        make(folder)?;
        // A process may have several, for streams of events of its own.
        let mut path = folder.join(format!("{}.sock", std::process::id()));
        let mut number = 1;
        while !is_free(&path)? {
            number += 1;
            path = folder.join(format!("{}-{number}.sock", std::process::id()));
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let shared = Arc::new(Shared::default());
        let server = Server { path, shared: shared.clone() };
        let accept = move || accept(&listener, &shared, &live);
        thread::Builder::new().name("evener-socket".into()).spawn(accept)?;
        Ok(server)
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of views that are connected.
    pub fn views(&self) -> usize {
        self.shared.views.load(SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, SeqCst);
        // Wakes the thread that accepts.
        drop(UnixStream::connect(&self.path));
        drop(fs::remove_file(&self.path));
    }
}

/// Whether a socket can be made here. Removes one that a program has left behind that was killed.
pub(super) fn is_free(path: &Path) -> io::Result<bool> {
    match UnixStream::connect(path) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(true),
        },
        // The path is too long for a socket, and any other in the folder would be.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(error),
        // For example because the program has too many connections.
        Err(_) => Ok(false),
    }
}

/// Accepts views until the socket is closed.
fn accept(listener: &UnixListener, shared: &Arc<Shared>, live: &Live) {
    for stream in listener.incoming() {
        if shared.is_closed.load(SeqCst) {
            return;
        }
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                // For example because the process has too many open files.
                tracing::debug!(%error, "a view could not connect");
                thread::sleep(UPDATE_EVERY);
                continue;
            }
        };
        if let Err(error) = check_peer(&stream) {
            tracing::warn!(%error, "a view was refused");
            continue;
        }
        let slot = Slot::take(shared);
        if slot.number >= MAX_VIEWS {
            tracing::debug!("a view was refused: there are {MAX_VIEWS} already");
            continue;
        }
        let (shared, live) = (shared.clone(), live.clone());
        let serve = move || {
            if let Err(error) = serve(stream, &shared, &live) {
                tracing::debug!(%error, "a view has gone");
            }
            drop(slot);
        };
        if let Err(error) = thread::Builder::new().name("evener-socket".into()).spawn(serve) {
            tracing::debug!(%error, "no thread for a view");
        }
    }
}

/// Counts a view while it lives.
struct Slot {
    shared: Arc<Shared>,
    /// Number of views before it.
    number: usize,
}

impl Slot {
    fn take(shared: &Arc<Shared>) -> Slot {
        Slot { number: shared.views.fetch_add(1, SeqCst), shared: shared.clone() }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shared.views.fetch_sub(1, SeqCst);
    }
}

/// Sends updates to a view, and does what it asks for, until it goes or the socket is closed.
fn serve(mut stream: UnixStream, shared: &Shared, live: &Live) -> io::Result<()> {
    let hello = Message::Hello { protocol: PROTOCOL, pid: std::process::id() };
    write(&mut stream, &hello, WRITE_LIMIT)?;
    stream.set_read_timeout(Some(UPDATE_EVERY))?;
    let (mut version, mut frames) = (None, Frames::new(MAX_REQUEST));
    while !shared.is_closed.load(SeqCst) {
        if let Some(update) = live.update_since(version) {
            version = Some(update.version());
            write(&mut stream, &Message::Update(update), WRITE_LIMIT)?;
        }
        let next = std::time::Instant::now() + UPDATE_EVERY;
        // Also the pause until the next update.
        loop {
            frames.receive(&mut stream)?;
            while let Some(Request::Cancel { run }) = frames.next()? {
                let answer = Message::Answer { run, accepted: live.cancel(run) };
                write(&mut stream, &answer, WRITE_LIMIT)?;
            }
            if std::time::Instant::now() >= next {
                break;
            }
        }
    }
    Ok(())
}
