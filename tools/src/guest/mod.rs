//! The initramfs that guests are started with: the guest agent as `/init`,
//! busybox, and the virtio-mem driver's modules.
//!
//! Layout: `/init` is the agent; `/bin/busybox` with a link for each applet;
//! `/lib/modules/*.ko`, decompressed, with `/lib/modules/order` naming them in
//! the order they must be loaded. The image is put together in memory each
//! time, which takes milliseconds, and written only when its bytes changed.

pub mod cli;

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::initramfs::{FileArgument, Initramfs};
use crate::packages::{self, Cache, KernelPackage};

/// The modules a guest needs for its memory to be changed.
pub const DEFAULT_MODULES: [&str; 4] = ["virtio", "virtio_ring", "virtio_mmio", "virtio_mem"];

/// The guest agent's file name; it is looked for beside the running program.
pub const AGENT_NAME: &str = "lmb-guest-agent";

/// How many images the cache keeps.
const KEPT_IMAGES: usize = 8;

/// What goes into a guest's initramfs.
#[derive(Clone, Debug)]
pub struct GuestImage {
    /// The static program that becomes `/init`.
    pub agent: PathBuf,
    /// The kernel whose modules are taken.
    pub kernel: KernelPackage,
    /// The modules wanted; what they need comes with them.
    pub modules: Vec<String>,
    /// Further files.
    pub files: Vec<FileArgument>,
    /// Whether it is compressed. Guests start faster from one that is not.
    pub gzip: bool,
}

/// An image that was built or found up to date.
#[derive(Clone, Debug, Serialize)]
pub struct BuiltImage {
    /// The initramfs.
    pub initramfs: PathBuf,
    /// Its length.
    pub size_bytes: u64,
    /// Whether it had to be written; `false` when the same image was there.
    pub written: bool,
    /// The kernel it was built for.
    pub kernel: KernelPackage,
    /// Its modules, in load order.
    pub modules: Vec<String>,
}

impl GuestImage {
    /// Builds the image at `out`, or in the cache under a name made from its
    /// content.
    ///
    /// # Errors
    /// When an input is missing or the image cannot be written.
    pub fn build(
        &self,
        cache: &Cache,
        out: Option<&Path>,
        note: &dyn Fn(&str),
    ) -> Result<BuiltImage> {
        let (image, modules) = self.assemble(cache, note)?;
        let (path, written) = match out {
            Some(path) => (path.to_owned(), write_if_changed(path, &image)?),
            None => self.keep(cache, &image)?,
        };
        Ok(BuiltImage {
            initramfs: path,
            size_bytes: image.len() as u64,
            written,
            kernel: self.kernel.clone(),
            modules,
        })
    }

    fn assemble(&self, cache: &Cache, note: &dyn Fn(&str)) -> Result<(Vec<u8>, Vec<String>)> {
        let mut archive = Initramfs::new();
        for directory in ["dev", "proc", "sys", "tmp", "root"] {
            archive.directory(directory)?;
        }
        let agent = fs::read(&self.agent).with_context(|| {
            format!(
                "cannot read the guest agent {}: build it, or name another /init with --agent",
                self.agent.display()
            )
        })?;
        archive.file("init", 0o755, &agent)?;
        archive.busybox(&packages::busybox(cache, note)?)?;
        let modules = add_modules(&mut archive, &self.kernel, &self.modules)?;
        for file in &self.files {
            file.add_to(&mut archive)?;
        }
        let image = if self.gzip {
            archive.finish_gzip()?
        } else {
            archive.finish()?
        };
        Ok((image, modules))
    }

    fn keep(&self, cache: &Cache, image: &[u8]) -> Result<(PathBuf, bool)> {
        let directory = cache.directory("guests")?;
        let mut hasher = DefaultHasher::new();
        hasher.write(image);
        let ending = if self.gzip { "cpio.gz" } else { "cpio" };
        let path = directory.join(format!(
            "{}-{:016x}.{ending}",
            self.kernel.version,
            hasher.finish()
        ));
        let written = write_if_changed(&path, image)?;
        if written {
            forget_old(&directory, &path);
        }
        Ok((path, written))
    }
}

/// The guest agent beside the running program.
///
/// # Errors
/// When there is none.
pub fn default_agent() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let agent = program.with_file_name(AGENT_NAME);
    if !agent.is_file() {
        bail!(
            "there is no {AGENT_NAME} beside {}: build it (cargo build --release), or name the \
             guest's /init with --agent PATH",
            program.display()
        );
    }
    Ok(agent)
}

/// Adds `wanted` and what they need below `/lib/modules`, with the file
/// `order`, and returns the names in load order.
pub(crate) fn add_modules(
    archive: &mut Initramfs,
    kernel: &KernelPackage,
    wanted: &[impl AsRef<str>],
) -> Result<Vec<String>> {
    let modules = kernel.modules(wanted)?;
    let mut order = String::new();
    for module in &modules {
        order.push_str(&module.file_name);
        order.push('\n');
        let path = format!("lib/modules/{}", module.file_name);
        archive.file(&path, 0o644, &module.data)?;
    }
    archive.file("lib/modules/order", 0o644, order.as_bytes())?;
    Ok(modules.into_iter().map(|module| module.name).collect())
}

fn write_if_changed(path: &Path, content: &[u8]) -> Result<bool> {
    if fs::read(path).is_ok_and(|present| present == content) {
        return Ok(false);
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    packages::write_whole(directory, path, content)?;
    Ok(true)
}

/// Removes the oldest images beyond [`KEPT_IMAGES`], but not `newest`. What
/// cannot be removed is left: it costs room only.
fn forget_old(directory: &Path, newest: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    let mut images: Vec<_> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.metadata().ok()?.modified().ok()?, entry.path()))
        })
        .filter(|(_, path)| path != newest)
        .collect();
    images.sort();
    let surplus = (images.len() + 1).saturating_sub(KEPT_IMAGES);
    for (_, path) in images.iter().take(surplus) {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests;
