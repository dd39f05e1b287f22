//! Programs of this user, seen from another process.
//!
//! A program that was asked to ([`Server::open`], or [`open_if_asked`] with the variable `EVENER_VIEW`) listens on a socket
//! in the user's [`folder`], which only this user can use. A view finds all of them ([`Programs`]). Both ends check that
//! the other belongs to the same user.
//!
//! The program sends a [`Message::Hello`], a snapshot, and then what has changed, at most ten times a second. It folds its
//! own events, so what it sends is bounded however fast they come. A view that reads slowly gets fewer and larger updates,
//! since each has what has changed since the one before; a view that does not read at all for five seconds is dropped. A
//! view can send one request: [`Request::Cancel`].

mod client;
mod folder;
mod frame;
mod server;
#[cfg(test)]
mod test;

use std::{io, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

pub use self::{
    client::{Connection, Programs},
    folder::folder,
    server::{Server, open_if_asked},
};
use crate::state::Update;

/// The version of the protocol. A view of another version does not connect.
pub const PROTOCOL: u32 = 1;
/// Time between two updates to a view.
pub const UPDATE_EVERY: Duration = Duration::from_millis(100);
/// A view that takes longer to read an update is dropped.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// Maximum views of a program at a time.
pub const MAX_VIEWS: usize = 16;
/// Maximum length of a message to a view, and to a program.
const MAX_MESSAGE: usize = 256 << 20;
const MAX_REQUEST: usize = 4 << 10;

/// What a program sends to a view.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Message {
    /// The first message.
    Hello {
        /// The version of the protocol.
        protocol: u32,
        /// The process id.
        pid: u32,
    },
    /// A snapshot at first, and then what has changed.
    Update(Update),
    /// The answer to a request.
    Answer {
        /// The run that was to be cancelled.
        run: u64,
        /// Whether it was there and was asked to end.
        accepted: bool,
    },
}

/// What a view sends to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// Cancel a run.
    Cancel {
        /// Its number.
        run: u64,
    },
}

/// Why a socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The folder of sockets cannot be made or read.
    #[error("the folder of sockets {} cannot be used: {error}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Others could use the folder of sockets.
    #[error("the folder of sockets {} is not safe: {problem}; remove it, or set XDG_RUNTIME_DIR", folder.display())]
    Unsafe {
        /// The folder.
        folder: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The process at the other end belongs to another user.
    #[error("the process at the other end belongs to user {found}, and this is user {expected}")]
    OtherUser {
        /// The user of the other process.
        found: u32,
        /// The user of this process.
        expected: u32,
    },
    /// The other end speaks another version of the protocol.
    #[error("the program speaks version {found} of the protocol, and this view version {PROTOCOL}")]
    Protocol {
        /// Its version.
        found: u32,
    },
    /// The variable `EVENER_VIEW` has a value that is not known.
    #[error("EVENER_VIEW is {0:?}: set it to 1 to let views find this program, or to 0")]
    Variable(String),
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}
