//! The folder in which the programs of a user have their sockets, and who is at the other end of one.

use std::{
    fs, io,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

use super::SocketError;

/// Returns the folder of this user's sockets, and makes it if it is not there: `evener` in `$XDG_RUNTIME_DIR`, or else
/// `evener-UID` in the folder of temporary files. Fails if others could have made or changed it.
pub fn folder() -> Result<PathBuf, SocketError> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = match runtime {
        Some(runtime) => runtime.join("evener"),
        None => std::env::temp_dir().join(format!("evener-{}", user())),
    };
    make(&folder)?;
    Ok(folder)
}

/// Makes a folder that only this user can use, unless it is there. Fails if another user owns it, or could use it.
pub(super) fn make(folder: &Path) -> Result<(), SocketError> {
    let failed = |error| SocketError::Folder { folder: folder.to_owned(), error };
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    // Not following a link: whoever made a link could point it elsewhere later.
    let found = fs::symlink_metadata(folder).map_err(failed)?;
    let problem = if !found.is_dir() {
        "it is no folder".into()
    } else if found.uid() != user() {
        format!("it belongs to user {}, and this is user {}", found.uid(), user())
    } else if found.mode() & 0o077 != 0 {
        format!("its mode is {:o}, and must be 700", found.mode() & 0o777)
    } else {
        return Ok(());
    };
    Err(SocketError::Unsafe { folder: folder.to_owned(), problem })
}

/// The user of this process.
fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Checks that the other end of a socket belongs to the same user.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn check_peer(stream: &UnixStream) -> Result<(), SocketError> {
    let peer = rustix::net::sockopt::socket_peercred(stream).map_err(io::Error::from)?;
    let (found, expected) = (peer.uid.as_raw(), user());
    if found == expected { Ok(()) } else { Err(SocketError::OtherUser { found, expected }) }
}

/// Other systems report the peer in other ways, which are not supported yet.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn check_peer(_: &UnixStream) -> Result<(), SocketError> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "views of other programs are supported on Linux only")
        .into())
}
