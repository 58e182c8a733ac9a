//! Writing initramfs archives: cpio in the `newc` format
//! (Documentation/driver-api/early-userspace/buffer-format.rst of the kernel).
//!
//! The same calls in the same order give the same bytes: no clock, user or
//! inode number of the building machine gets in. Missing parent directories
//! are added.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use cpio::newc::{self, Builder, ModeFileType};
use flate2::Compression;
use flate2::write::GzEncoder;

/// An archive being built in memory.
#[derive(Debug, Default)]
pub struct Initramfs {
    archive: Vec<u8>,
    directories: BTreeSet<String>,
    entries: u32,
}

impl Initramfs {
    /// An empty archive.
    #[must_use]
    pub fn new() -> Initramfs {
        Initramfs::default()
    }

    /// Adds a directory with mode 0755, once.
    ///
    /// # Errors
    /// When `path` is no legal path.
    pub fn directory(&mut self, path: &str) -> Result<()> {
        let path = clean(path)?;
        self.parents(&path)?;
        if self.directories.insert(path.clone()) {
            self.entry(&path, ModeFileType::Directory, 0o755, &[])?;
        }
        Ok(())
    }

    /// Adds a file with the permission bits `mode`.
    ///
    /// # Errors
    /// When `path` is no legal path or the content is 4 GiB or longer.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        let path = clean(path)?;
        self.parents(&path)?;
        self.entry(&path, ModeFileType::Regular, mode, content)
    }

    /// Adds a copy of the file or directory tree at `source`, links followed.
    ///
    /// # Errors
    /// When it cannot be read, or is neither a file nor a directory.
    pub fn copy(&mut self, path: &str, source: &Path) -> Result<()> {
        let data = fs::metadata(source)
            .with_context(|| format!("cannot read the file {}", source.display()))?;
        if data.is_dir() {
            self.directory(path)?;
            let mut names = fs::read_dir(source)
                .and_then(|entries| {
                    entries
                        .map(|entry| entry.map(|entry| entry.file_name()))
                        .collect::<Result<Vec<_>, _>>()
                })
                .with_context(|| format!("cannot read the directory {}", source.display()))?;
            names.sort();
            for name in names {
                let inner = format!("{path}/{}", name.to_string_lossy());
                self.copy(&inner, &source.join(&name))?;
            }
            return Ok(());
        }
        if !data.is_file() {
            bail!("{} is neither a file nor a directory", source.display());
        }
        let content = fs::read(source)
            .with_context(|| format!("cannot read the file {}", source.display()))?;
        self.file(path, data.permissions().mode() & 0o7777, &content)
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// When `path` is no legal path.
    pub fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        let path = clean(path)?;
        self.parents(&path)?;
        self.entry(&path, ModeFileType::Symlink, 0o777, target.as_bytes())
    }

    /// Adds busybox as `/bin/busybox`, with a link for each applet it lists.
    ///
    /// # Errors
    /// When it cannot be read or run.
    pub fn busybox(&mut self, busybox: &Path) -> Result<()> {
        let output = std::process::Command::new(busybox)
            .arg("--list")
            .output()
            .with_context(|| format!("cannot run {}", busybox.display()))?;
        let applets = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || !applets.lines().any(|applet| applet == "sh") {
            bail!(
                "{} lists no applets, so it is no busybox",
                busybox.display()
            );
        }
        self.copy("bin/busybox", busybox)?;
        for applet in applets.lines().filter(|applet| *applet != "busybox") {
            self.symlink(&format!("bin/{applet}"), "busybox")?;
        }
        Ok(())
    }

    /// Ends the archive and returns its bytes. Further archives may follow it.
    ///
    /// # Errors
    /// None that are expected: it is written to memory.
    pub fn finish(mut self) -> Result<Vec<u8>> {
        newc::trailer(&mut self.archive)?;
        Ok(self.archive)
    }

    /// Ends the archive and returns its bytes, compressed by gzip at its
    /// fastest.
    ///
    /// # Errors
    /// None that are expected: it is written to memory.
    pub fn finish_gzip(self) -> Result<Vec<u8>> {
        let archive = self.finish()?;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&archive)?;
        Ok(encoder.finish()?)
    }

    fn parents(&mut self, path: &str) -> Result<()> {
        for (at, _) in path.match_indices('/') {
            let parent = &path[..at];
            if self.directories.insert(parent.to_owned()) {
                self.entry(parent, ModeFileType::Directory, 0o755, &[])?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &str, kind: ModeFileType, mode: u32, content: &[u8]) -> Result<()> {
        let size = u32::try_from(content.len())
            .with_context(|| format!("/{path} is 4 GiB or longer, which cpio cannot hold"))?;
        self.entries = self.entries.saturating_add(1);
        let mut writer = Builder::new(path)
            .ino(self.entries)
            .mode(mode & 0o7777)
            .set_mode_file_type(kind)
            .write(&mut self.archive, size);
        writer.write_all(content)?;
        writer.finish()?;
        Ok(())
    }
}

/// A path as the archive holds it: relative to the root, without `.`, `..`
/// and doubled slashes.
fn clean(path: &str) -> Result<String> {
    let parts: Vec<&str> = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    if parts.is_empty() || parts.contains(&"..") || path.contains('\0') {
        bail!("`{path}` is no path in an initramfs");
    }
    let path = parts.join("/");
    if path == "TRAILER!!!" {
        bail!("`{path}` ends a cpio archive and can be no file in it");
    }
    Ok(path)
}

/// A file to be added: `SOURCE` or `SOURCE:DEST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileArgument {
    /// Where it is here.
    pub source: std::path::PathBuf,
    /// Where it goes; `None` for the default place.
    pub dest: Option<String>,
}

impl std::str::FromStr for FileArgument {
    type Err = anyhow::Error;

    /// The last `:/` divides, so that sources may hold colons.
    fn from_str(text: &str) -> Result<FileArgument> {
        let (source, dest) = match text.rsplit_once(":/") {
            Some((source, dest)) => (source, Some(clean(dest)?)),
            None => (text, None),
        };
        if source.is_empty() {
            bail!("`{text}` names no file; write SOURCE or SOURCE:/DEST");
        }
        Ok(FileArgument {
            source: source.into(),
            dest,
        })
    }
}

impl FileArgument {
    /// Adds the file. Without a destination, programs go to `/bin`, so that
    /// they are found by their names, and the rest goes to `/`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn add_to(&self, archive: &mut Initramfs) -> Result<()> {
        let dest = match &self.dest {
            Some(dest) => dest.clone(),
            None => {
                let name = self
                    .source
                    .file_name()
                    .with_context(|| format!("{} names no file", self.source.display()))?
                    .to_string_lossy();
                let data = fs::metadata(&self.source)
                    .with_context(|| format!("cannot read the file {}", self.source.display()))?;
                let program = data.is_file() && data.permissions().mode() & 0o111 != 0;
                if program {
                    format!("bin/{name}")
                } else {
                    name.into_owned()
                }
            }
        };
        archive.copy(&dest, &self.source)
    }
}

#[cfg(test)]
#[path = "initramfs_tests.rs"]
mod tests;
