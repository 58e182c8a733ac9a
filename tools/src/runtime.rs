//! Where the control sockets of this user's VMs lie, and which one is meant.
//!
//! `lmb run` creates its socket as `<name>.sock` in the first of these
//! directories that exists or can be made, mode 0700; every other command
//! looks into all of them:
//! 1. `$XDG_RUNTIME_DIR/lmb`
//! 2. `/run/lmb` (root alone)
//! 3. `/tmp/lmb-<uid>`
//!
//! A directory that belongs to someone else, or that others may write, is
//! never used: who owns it could stand in for the VM.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::http::{self, HttpError};

/// Environment variable that names the socket where no option does.
pub const SOCKET_VARIABLE: &str = "LMB_SOCKET";
const SUFFIX: &str = "sock";

/// Options that say which VM is meant.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SocketArgs {
    /// Control socket of the VM
    ///
    /// Without this option and --name, $LMB_SOCKET names it; without that, it
    /// is the one live `*.sock` in $XDG_RUNTIME_DIR/lmb, /run/lmb (root) or
    /// /tmp/lmb-UID, where `lmb run` puts its sockets. Where several VMs run,
    /// one has to be named.
    #[arg(long, value_name = "PATH", conflicts_with = "name")]
    pub socket: Option<PathBuf>,

    /// Name of the VM, as given to `lmb run --name`
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: Option<String>,
}

/// The directories of this process, most preferred first.
#[must_use]
pub fn directories() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    directories_of(std::env::var_os("XDG_RUNTIME_DIR"), uid)
}

fn directories_of(xdg: Option<OsString>, uid: u32) -> Vec<PathBuf> {
    let mut all = Vec::new();
    if let Some(base) = xdg.map(PathBuf::from).filter(|base| base.is_absolute()) {
        all.push(base.join("lmb"));
    }
    if uid == 0 {
        all.push(PathBuf::from("/run/lmb"));
    }
    all.push(PathBuf::from(format!("/tmp/lmb-{uid}")));
    all
}

/// The directory for a new socket, made if it is not there.
///
/// # Errors
/// When none of [`directories`] can be made or is safe, with the last reason.
pub fn create_directory() -> anyhow::Result<PathBuf> {
    let mut last = None;
    for dir in directories() {
        match ensure(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error.context(
            "cannot make a directory for the control socket; set XDG_RUNTIME_DIR to a \
             directory of yours",
        )),
        None => bail!("there is no directory for the control socket"),
    }
}

fn ensure(dir: &Path) -> anyhow::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e).with_context(|| format!("cannot create {}", dir.display())),
    }
    check(dir)
}

/// Whether a directory is ours alone.
fn check(dir: &Path) -> anyhow::Result<()> {
    let meta = dir
        .symlink_metadata()
        .with_context(|| format!("cannot look at {}", dir.display()))?;
    let uid = rustix::process::geteuid().as_raw();
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o022 != 0 {
        bail!(
            "{} is not a directory that uid {uid} alone may write (owner {}, mode {:o}); \
             remove it or chmod it to 0700",
            dir.display(),
            meta.uid(),
            meta.mode() & 0o7777
        );
    }
    Ok(())
}

/// A VM's name as part of a file name: 1 to 48 letters, digits, `-`, `_`, `.`,
/// not starting with a point.
///
/// # Errors
/// A sentence with the rule.
pub fn parse_name(text: &str) -> Result<String, String> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if (1..=48).contains(&text.len()) && text.bytes().all(legal) && !text.starts_with('.') {
        Ok(text.to_owned())
    } else {
        Err("a name has 1 to 48 letters, digits, `-`, `_` or `.`, and no `.` first".to_owned())
    }
}

/// The socket's file name for a VM's name.
#[must_use]
pub fn socket_file(name: &str) -> String {
    format!("{name}.{SUFFIX}")
}

/// Whether someone listens at a socket.
#[must_use]
pub fn is_live(socket: &Path) -> bool {
    match http::connect(socket) {
        Ok(_) => true,
        // A full queue is a sign of life; so is whatever else is not absence.
        Err(HttpError::Connect { reason, .. }) => !matches!(
            reason.kind(),
            ErrorKind::ConnectionRefused | ErrorKind::NotFound | ErrorKind::InvalidInput
        ),
        Err(_) => true,
    }
}

impl SocketArgs {
    /// The socket that is meant. It is not tried when it was named.
    ///
    /// # Errors
    /// When none is named and not exactly one VM runs.
    pub fn resolve(&self) -> anyhow::Result<PathBuf> {
        let variable = std::env::var_os(SOCKET_VARIABLE).filter(|value| !value.is_empty());
        self.resolve_in(variable, &directories())
    }

    fn resolve_in(
        &self,
        variable: Option<OsString>,
        directories: &[PathBuf],
    ) -> anyhow::Result<PathBuf> {
        if let Some(path) = &self.socket {
            return Ok(path.clone());
        }
        let usable: Vec<_> = directories
            .iter()
            .filter(|dir| check(dir).is_ok())
            .collect();
        if let Some(name) = &self.name {
            let file = socket_file(name);
            return usable
                .iter()
                .map(|dir| dir.join(&file))
                .find(|path| path.exists())
                .with_context(|| {
                    format!("no VM is named `{name}`; `lmb run --name {name}` starts one")
                });
        }
        if let Some(path) = variable {
            return Ok(path.into());
        }
        let live: Vec<_> = usable.iter().flat_map(|dir| live_sockets(dir)).collect();
        match live.as_slice() {
            [one] => Ok(one.clone()),
            [] => bail!(
                "no VM of yours runs (no live socket in {}); `lmb run` starts one, or name a \
                 socket with --socket or ${SOCKET_VARIABLE}",
                join(directories)
            ),
            many => bail!(
                "several VMs run ({}); name one with --name, --socket or ${SOCKET_VARIABLE}",
                join(many)
            ),
        }
    }
}

fn live_sockets(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = dir.read_dir() else {
        return Vec::new();
    };
    let mut found: Vec<_> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext == SUFFIX) && is_live(path))
        .collect();
    found.sort();
    found
}

fn join(paths: &[PathBuf]) -> String {
    let all: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    fn private_dir() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        dir
    }

    #[test]
    fn places_by_user_and_environment() {
        assert_eq!(
            directories_of(Some("/run/user/7".into()), 7),
            [PathBuf::from("/run/user/7/lmb"), "/tmp/lmb-7".into()]
        );
        assert_eq!(
            directories_of(None, 0),
            [PathBuf::from("/run/lmb"), "/tmp/lmb-0".into()]
        );
        assert_eq!(
            directories_of(Some("relative".into()), 7),
            [PathBuf::from("/tmp/lmb-7")]
        );
    }

    #[test]
    fn the_single_live_socket_is_taken_and_dead_ones_are_not() {
        let dir = private_dir();
        let dirs = [dir.path().to_owned()];
        let any = SocketArgs::default();
        let none = any.resolve_in(None, &dirs).unwrap_err().to_string();
        assert!(none.contains("lmb run"), "{none}");

        let dead = dir.path().join("dead.sock");
        drop(UnixListener::bind(&dead).unwrap());
        assert!(dead.exists() && !is_live(&dead));
        let live = dir.path().join("live.sock");
        let _listener = UnixListener::bind(&live).unwrap();
        assert_eq!(any.resolve_in(None, &dirs).unwrap(), live);

        let second = dir.path().join("other.sock");
        let _second = UnixListener::bind(&second).unwrap();
        let several = any.resolve_in(None, &dirs).unwrap_err().to_string();
        assert!(
            several.contains("live.sock") && several.contains("other.sock"),
            "{several}"
        );
        assert!(!several.contains("dead.sock"), "{several}");

        let named = SocketArgs {
            name: Some("other".into()),
            ..SocketArgs::default()
        };
        // A name on the command line is nearer than the environment.
        assert_eq!(named.resolve_in(Some("/x".into()), &dirs).unwrap(), second);
        assert_eq!(
            any.resolve_in(Some("/x".into()), &dirs).unwrap(),
            PathBuf::from("/x")
        );
    }

    #[test]
    fn a_directory_that_others_may_write_is_not_used() {
        let dir = private_dir();
        let live = dir.path().join("vm.sock");
        let _listener = UnixListener::bind(&live).unwrap();
        set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        let dirs = [dir.path().to_owned()];
        assert!(SocketArgs::default().resolve_in(None, &dirs).is_err());
        let error = ensure(dir.path()).unwrap_err().to_string();
        assert!(error.contains("777") && error.contains("chmod"), "{error}");
    }

    #[test]
    fn a_made_directory_is_private() {
        let dir = private_dir();
        let made = dir.path().join("lmb");
        ensure(&made).unwrap();
        ensure(&made).unwrap();
        assert_eq!(made.metadata().unwrap().mode() & 0o7777, 0o700);
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(ensure(&file).is_err());
    }

    #[test]
    fn names_stay_inside_their_directory() {
        assert_eq!(parse_name("web-1.a_b").unwrap(), "web-1.a_b");
        for bad in ["", ".", "..", ".hidden", "a/b", "a b", "ä", &"x".repeat(49)] {
            assert!(parse_name(bad).is_err(), "{bad}");
        }
    }
}
