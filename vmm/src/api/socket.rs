//! The control socket's file.
//!
//! States: absent → bound (mode 0600 from its first moment: the mode is set on
//! the socket before it is bound, and the kernel takes it from there) →
//! removed when [`ControlSocket`] is dropped, if the file is still ours. A
//! file left by a VMM that is gone is replaced; one that a process listens on,
//! or that is no socket, is not touched.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// Why the control socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Some process serves it.
    #[error(
        "{} is in use: a process listens on it, most likely another VM; \
         give this one a socket of its own", path.display()
    )]
    InUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// Something else has that name.
    #[error("{} exists and is not a socket; it is left as it is, name another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The name does not fit a socket address.
    #[error(
        "the socket path {} has {length} bytes, the longest possible has 107; \
         use a shorter one, for instance relative to the working directory", path.display()
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length, bytes.
        length: usize,
    },
    /// A system call failed.
    #[error(
        "the control socket {} could not be made ({step}: {error}); \
         check that its directory exists and is writable", path.display()
    )]
    System {
        /// The path.
        path: PathBuf,
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        #[source]
        error: io::Error,
    },
}

/// A bound socket and its file.
#[derive(Debug)]
pub(super) struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file we made.
    identity: Option<(u64, u64)>,
}

impl ControlSocket {
    /// Makes the socket at `path` and listens on it, without blocking.
    pub(super) fn bind(path: &Path) -> Result<Self, SocketError> {
        let address = address(path)?;
        remove_stale(path)?;
        let failed = |step| move |errno: Errno| system(path, step, errno.into());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(failed("socket"))?;
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed("fchmod"))?;
        bind(&socket, &address).map_err(failed("bind"))?;
        let identity = path
            .symlink_metadata()
            .map(|file| (file.dev(), file.ino()))
            .ok();
        let bound = Self {
            listener: UnixListener::from(socket),
            path: path.to_owned(),
            identity,
        };
        listen(&bound.listener, BACKLOG).map_err(failed("listen"))?;
        Ok(bound)
    }

    pub(super) fn listener(&self) -> &UnixListener {
        &self.listener
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let now = self.path.symlink_metadata();
        let ours = now.is_ok_and(|file| Some((file.dev(), file.ino())) == self.identity);
        if !ours {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "could not remove the control socket");
        }
    }
}

fn system(path: &Path, step: &'static str, error: io::Error) -> SocketError {
    let path = path.to_owned();
    SocketError::System { path, step, error }
}

fn address(path: &Path) -> Result<SocketAddrUnix, SocketError> {
    match SocketAddrUnix::new(path) {
        // 108 bytes fit without a final NUL, but other programs want one.
        Ok(address) if path.as_os_str().len() <= 107 => Ok(address),
        Ok(_) | Err(Errno::NAMETOOLONG) => Err(SocketError::PathTooLong {
            path: path.to_owned(),
            length: path.as_os_str().len(),
        }),
        Err(errno) => Err(system(path, "address", errno.into())),
    }
}

/// Removes a socket file that nobody serves.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let path_buf = || path.to_owned();
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system(path, "stat", error)),
        Ok(file) if !file.file_type().is_socket() => {
            return Err(SocketError::NotASocket { path: path_buf() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|error| system(path, "remove", error))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A full backlog (EAGAIN), a socket of another type or of another
        // user: somebody's all the same.
        Ok(_) | Err(_) => Err(SocketError::InUse { path: path_buf() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_file_is_private_and_goes_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let socket = ControlSocket::bind(&path).unwrap();
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        UnixStream::connect(&path).unwrap();
        assert_eq!(socket.path(), path);
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "std leaves the file");
        let live = ControlSocket::bind(&path).unwrap();
        let refused = ControlSocket::bind(&path).unwrap_err();
        assert!(matches!(refused, SocketError::InUse { .. }), "{refused}");
        UnixStream::connect(&path).unwrap();
        drop(live);
    }

    #[test]
    fn a_file_that_is_not_ours_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        std::fs::write(&path, "precious").unwrap();
        let refused = ControlSocket::bind(&path).unwrap_err();
        assert!(matches!(refused, SocketError::NotASocket { .. }));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");

        std::fs::remove_file(&path).unwrap();
        let socket = ControlSocket::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another's").unwrap();
        drop(socket);
        assert_eq!(std::fs::read(&path).unwrap(), b"another's");
    }

    #[test]
    fn paths_that_cannot_be_are_refused_with_a_reason() {
        let directory = tempfile::tempdir().unwrap();
        let long = directory.path().join("x".repeat(120));
        let refused = ControlSocket::bind(&long).unwrap_err();
        assert!(matches!(refused, SocketError::PathTooLong { .. }));
        let missing = directory.path().join("no/s");
        let refused = ControlSocket::bind(&missing).unwrap_err();
        assert!(
            refused.to_string().contains("directory exists"),
            "{refused}"
        );
    }
}
