//! Unpacking a Debian package: an `ar` archive whose member `data.tar.*`
//! holds the files (deb(5)).

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::compression;

/// Unpacks those files of the package at `deb` that `keep` wants into `dest`,
/// and returns how many entries that were. `keep` sees paths relative to the
/// root, without a leading `./`.
///
/// # Errors
/// When the file cannot be read, is damaged, or is no Debian package.
pub fn unpack_file(deb: &Path, dest: &Path, keep: &dyn Fn(&Path) -> bool) -> Result<usize> {
    let file = File::open(deb).with_context(|| format!("cannot open {}", deb.display()))?;
    unpack(BufReader::with_capacity(1 << 16, file), dest, keep)
        .with_context(|| format!("cannot unpack the package {}", deb.display()))
}

/// Unpacks a package from its bytes; see [`unpack_file`].
///
/// # Errors
/// When the bytes are damaged or are no Debian package.
pub fn unpack(deb: impl Read, dest: &Path, keep: &dyn Fn(&Path) -> bool) -> Result<usize> {
    let mut archive = ar::Archive::new(deb);
    while let Some(member) = archive.next_entry() {
        let member = member.context("the ar archive is damaged")?;
        let name = String::from_utf8_lossy(member.header().identifier())
            .trim_end_matches('/')
            .to_owned();
        if name.starts_with("data.tar") {
            let member = Whole {
                left: member.header().size(),
                inner: member,
            };
            let data = compression::decoder(&name, member)
                .with_context(|| format!("the member {name} is damaged"))?;
            return unpack_tar(data, dest, keep)
                .with_context(|| format!("the member {name} is damaged"));
        }
    }
    bail!("it has no member data.tar, so it is no Debian package or it is cut short");
}

/// A reader that fails where its input ends early. Without it a package that
/// was cut between two files would pass for a whole one.
struct Whole<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Whole<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.saturating_sub(count as u64);
        if count == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(count)
    }
}

fn unpack_tar(mut data: impl Read, dest: &Path, keep: &dyn Fn(&Path) -> bool) -> Result<usize> {
    let mut archive = tar::Archive::new(&mut data);
    archive.set_preserve_mtime(false);
    let mut count = 0;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = relative(&entry.path()?);
        if path.as_os_str().is_empty() || !keep(&path) {
            continue;
        }
        // `unpack_in` refuses paths and links that lead out of `dest`.
        if !entry.unpack_in(dest)? {
            bail!("the entry {} leads out of the package", path.display());
        }
        count += 1;
    }
    // The checksums of compressed data come last.
    io::copy(&mut data, &mut io::sink())?;
    Ok(count)
}

fn relative(path: &Path) -> PathBuf {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .collect()
}

#[cfg(test)]
#[path = "deb_tests.rs"]
mod tests;
