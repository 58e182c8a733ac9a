//! The directory where fetched packages and built images are kept.
//!
//! It is `$LMB_CACHE`, else `$XDG_CACHE_HOME/lmb`, else `$HOME/.cache/lmb`.
//! An entry appears by a rename, complete or not at all, so readers need no
//! lock; those who make an entry hold the lock of its kind meanwhile, so that
//! two runs at once fetch it once.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The cache directory, existing and writable when it was opened.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Opens the cache the environment names, and makes it when it is missing.
    ///
    /// # Errors
    /// When no place is named, or when the directory cannot be made.
    pub fn open() -> Result<Cache> {
        let variable = |name: &str| {
            env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let root = if let Some(path) = variable("LMB_CACHE") {
            std::path::absolute(&path)
                .with_context(|| format!("LMB_CACHE is {}, which is no path", path.display()))?
        } else if let Some(path) = variable("XDG_CACHE_HOME").filter(|path| path.is_absolute()) {
            path.join("lmb")
        } else if let Some(path) = variable("HOME") {
            path.join(".cache").join("lmb")
        } else {
            bail!("no place for the cache is known: set LMB_CACHE to a directory");
        };
        Self::at(root)
    }

    /// Opens the cache at `root`, and makes it when it is missing.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn at(root: impl Into<PathBuf>) -> Result<Cache> {
        let root = root.into();
        fs::create_dir_all(&root).with_context(|| {
            format!(
                "cannot make the cache directory {}: set LMB_CACHE to a directory you may write",
                root.display()
            )
        })?;
        Ok(Cache { root })
    }

    /// Where the cache is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory for entries of one kind, made when it is missing.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn directory(&self, kind: &str) -> Result<PathBuf> {
        let path = self.root.join(kind);
        fs::create_dir_all(&path)
            .with_context(|| format!("cannot make the directory {}", path.display()))?;
        Ok(path)
    }

    /// Waits for the lock of one kind of entries; it is held until the answer
    /// is dropped.
    ///
    /// # Errors
    /// When the lock file cannot be opened or locked.
    pub fn lock(&self, kind: &str) -> Result<File> {
        let path = self.root.join(format!("{kind}.lock"));
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open the lock file {}", path.display()))?;
        file.lock()
            .with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(file)
    }
}
