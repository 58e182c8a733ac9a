//! A VM's name and control socket, held for the VM's life.
//!
//! A name is taken by a lock on `<name>.lock` beside the socket, so that two
//! `lmb run` of one moment cannot choose the same; lock files stay, since
//! removing one would let two hold it.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::runtime;

/// Names that are tried where none is given: vm, vm2, vm3, …
const MAX_NAMES: u32 = 1000;

/// A socket path that is this VM's alone. Dropping it removes the socket.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) name: String,
    pub(super) socket: PathBuf,
    _lock: File,
}

impl Place {
    /// Takes `name`, or the first free name.
    ///
    /// # Errors
    /// When the name is taken or the directory cannot be used.
    pub(super) fn take(name: Option<&str>) -> anyhow::Result<Self> {
        Self::take_in(&runtime::create_directory()?, name)
    }

    fn take_in(dir: &Path, name: Option<&str>) -> anyhow::Result<Self> {
        if let Some(name) = name {
            return Self::try_take(dir, name)?
                .with_context(|| format!("a VM named `{name}` runs already; give another --name"));
        }
        for number in 1..=MAX_NAMES {
            let name = match number {
                1 => "vm".to_owned(),
                _ => format!("vm{number}"),
            };
            if let Some(place) = Self::try_take(dir, &name)? {
                return Ok(place);
            }
        }
        bail!("vm to vm{MAX_NAMES} run already; give a --name")
    }

    /// `None` where the name is taken.
    fn try_take(dir: &Path, name: &str) -> anyhow::Result<Option<Self>> {
        let path = dir.join(format!("{name}.lock"));
        let cannot = || format!("cannot lock {}", path.display());
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(cannot)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(e)) => return Err(e).with_context(cannot),
        }
        let socket = dir.join(runtime::socket_file(name));
        // A VM may outlive an lmb that was killed.
        Ok((!runtime::is_live(&socket)).then(|| Self {
            name: name.to_owned(),
            socket,
            _lock: lock,
        }))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // lmb-vmm removes its socket itself unless it was killed.
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn names_are_taken_once_and_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let first = Place::take_in(dir.path(), None).unwrap();
        let second = Place::take_in(dir.path(), None).unwrap();
        assert_eq!((first.name.as_str(), second.name.as_str()), ("vm", "vm2"));
        let error = Place::take_in(dir.path(), Some("vm2")).unwrap_err();
        assert!(error.to_string().contains("`vm2` runs already"), "{error}");

        let listener = UnixListener::bind(&second.socket).unwrap();
        let socket = second.socket.clone();
        drop((second, listener));
        assert!(!socket.exists());
        assert_eq!(Place::take_in(dir.path(), None).unwrap().name, "vm2");
    }

    #[test]
    fn a_vm_without_its_lmb_keeps_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("web.sock");
        let orphan = UnixListener::bind(&socket).unwrap();
        assert!(Place::take_in(dir.path(), Some("web")).is_err());
        assert!(socket.exists());
        drop(orphan);
        assert!(Place::take_in(dir.path(), Some("web")).is_ok());
    }
}
