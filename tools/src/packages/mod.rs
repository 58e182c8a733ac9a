//! Debian kernels and busybox, fetched without root and kept in the cache.
//!
//! A package name is resolved once: what `linux-image-cloud-amd64` stood for
//! is written beside the unpacked package, and used until a refresh is asked
//! for. A second run therefore fetches nothing and needs no network, and its
//! kernel does not change below it when Debian's does.

pub mod apt;
pub mod cache;
mod compression;
pub mod deb;
pub mod modinfo;
pub mod modules;
mod progress;
mod vmlinux;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Serialize;

pub use apt::{QEMU, ensure_programs, find_program, is_root};
pub use cache::Cache;
pub use modules::{Module, ModuleTree};
pub use progress::Progress;

/// The kernel that is used when none is named: Debian 12's 6.1 cloud kernel.
pub const DEFAULT_KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";

/// The kind of cache entries unpacked packages are.
const PACKAGES: &str = "packages";

/// Metapackages lead to others; this many steps are followed.
const MAX_STEPS: usize = 4;

/// A kernel that guests and the virtual KVM host can be started with.
#[derive(Clone, Debug, Serialize)]
pub struct KernelPackage {
    /// The Debian package, or `None` for a kernel of one's own.
    pub package: Option<String>,
    /// The package's version: `6.1.192-3`.
    pub package_version: Option<String>,
    /// The kernel's release as `uname -r` prints it: `6.1.0-57-cloud-amd64`.
    pub version: String,
    /// The bzImage (or ELF) file.
    pub vmlinuz: PathBuf,
    /// Its `lib/modules/VERSION` directory, when it has one.
    pub modules_dir: Option<PathBuf>,
}

impl KernelPackage {
    /// A kernel of one's own: `kernel`, with the modules under `modules_dir`
    /// (a `lib/modules/VERSION` directory). Without one, the directory
    /// `/lib/modules/VERSION` is taken when it exists.
    ///
    /// # Errors
    /// When the kernel cannot be read or `modules_dir` is no directory.
    pub fn from_files(kernel: &Path, modules_dir: Option<&Path>) -> Result<KernelPackage> {
        let image = fs::read(kernel)
            .with_context(|| format!("cannot read the kernel {}", kernel.display()))?;
        let version = kernel_release(&image).unwrap_or_else(|| "unknown".to_owned());
        let modules_dir = match modules_dir {
            Some(directory) if directory.is_dir() => Some(std::path::absolute(directory)?),
            Some(directory) => bail!(
                "{} is no directory: name the lib/modules/VERSION directory of the kernel",
                directory.display()
            ),
            None => Some(Path::new("/lib/modules").join(&version)).filter(|path| path.is_dir()),
        };
        Ok(KernelPackage {
            package: None,
            package_version: None,
            version,
            vmlinuz: std::path::absolute(kernel)?,
            modules_dir,
        })
    }

    /// Gets the kernel in the Debian package `package` (or what that
    /// metapackage stands for) from the cache, or fetches it there. With
    /// `refresh` Debian's newest is looked for even when one is cached.
    ///
    /// # Errors
    /// When the package is unknown, cannot be fetched, or holds no kernel.
    pub fn fetch(
        cache: &Cache,
        package: &str,
        refresh: bool,
        note: &dyn Fn(&str),
    ) -> Result<KernelPackage> {
        let unpacked = fetch(cache, package, refresh, note, &|path| {
            let path = path.strip_prefix("usr").unwrap_or(path);
            path.starts_with("boot") || path.starts_with("lib/modules")
        })?;
        Self::in_tree(&unpacked)
            .with_context(|| format!("the package {package} holds no kernel that can be used"))
    }

    /// The modules `wanted` and what they need, in load order.
    ///
    /// # Errors
    /// When the kernel came without modules, or one is missing or damaged.
    pub fn modules(&self, wanted: &[impl AsRef<str>]) -> Result<Vec<Module>> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let Some(directory) = &self.modules_dir else {
            bail!(
                "no modules are known for the kernel {} ({}): name its lib/modules/VERSION \
                 directory with --modules-dir DIR, or ask for none with --modules ''",
                self.vmlinuz.display(),
                self.version
            );
        };
        ModuleTree::open(directory)?.load_order(wanted)
    }

    fn in_tree(unpacked: &Unpacked) -> Result<KernelPackage> {
        let boot = unpacked.root.join("boot");
        let (vmlinuz, version) = fs::read_dir(&boot)
            .with_context(|| format!("cannot read {}", boot.display()))?
            .filter_map(|entry| {
                let name = entry.ok()?.file_name().into_string().ok()?;
                let version = name.strip_prefix("vmlinuz-")?.to_owned();
                Some((boot.join(name), version))
            })
            .next()
            .with_context(|| format!("there is no vmlinuz-* in {}", boot.display()))?;
        let modules_dir = ["lib/modules", "usr/lib/modules"]
            .map(|place| unpacked.root.join(place).join(&version))
            .into_iter()
            .find(|path| path.is_dir());
        Ok(KernelPackage {
            package: Some(unpacked.package.clone()),
            package_version: Some(unpacked.version.clone()),
            version,
            vmlinuz,
            modules_dir,
        })
    }
}

/// A static busybox: the one in `PATH`, else Debian's `busybox-static` from
/// the cache.
///
/// # Errors
/// When there is none and none can be fetched.
pub fn busybox(cache: &Cache, note: &dyn Fn(&str)) -> Result<PathBuf> {
    if let Some(path) = find_program("busybox")
        && is_static(&path)?
    {
        return Ok(path);
    }
    let unpacked = fetch(cache, "busybox-static", false, note, &|path| {
        path.file_name().is_some_and(|name| name == "busybox")
    })
    .context("no static busybox in PATH (install the package busybox-static)")?;
    ["bin/busybox", "usr/bin/busybox"]
        .map(|place| unpacked.root.join(place))
        .into_iter()
        .find(|path| path.is_file())
        .context("the package busybox-static holds no busybox")
}

/// QEMU's `qemu-system-x86_64` in `PATH`; with root it is installed when it is
/// missing.
///
/// # Errors
/// When it is missing and cannot be installed: the error names the command.
pub fn qemu(note: &dyn Fn(&str)) -> Result<PathBuf> {
    ensure_programs(&[QEMU], note)?;
    find_program(QEMU.name).with_context(|| format!("{} is not in PATH", QEMU.name))
}

/// Whether an x86-64 ELF program runs without a dynamic linker, that is, has
/// no `PT_INTERP` program header (elf(5)).
fn is_static(path: &Path) -> Result<bool> {
    const E_PHOFF: usize = 0x20;
    const PHENTSIZE: usize = 56;
    const PT_INTERP: [u8; 4] = 3u32.to_le_bytes();
    let file = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let table = file
        .get(E_PHOFF..E_PHOFF + 8)
        .and_then(|bytes| bytes.try_into().ok())
        .and_then(|bytes| usize::try_from(u64::from_le_bytes(bytes)).ok())
        .and_then(|offset| file.get(offset..));
    let count = file.get(0x38..0x3a).map_or(0, |bytes| {
        usize::from(bytes[0]) | usize::from(bytes[1]) << 8
    });
    Ok(table.is_some_and(|table| {
        !table
            .chunks(PHENTSIZE)
            .take(count)
            .any(|header| header.starts_with(&PT_INTERP))
    }))
}

/// An unpacked package in the cache.
struct Unpacked {
    package: String,
    version: String,
    root: PathBuf,
}

impl Unpacked {
    /// From the name of its directory, `PACKAGE_VERSION`.
    fn named(packages: &Path, name: &str) -> Option<Unpacked> {
        let (package, version) = name.split_once('_')?;
        let root = packages.join(name);
        root.is_dir().then(|| Unpacked {
            package: package.to_owned(),
            version: version.to_owned(),
            root,
        })
    }
}

fn fetch(
    cache: &Cache,
    package: &str,
    refresh: bool,
    note: &dyn Fn(&str),
    keep: &dyn Fn(&Path) -> bool,
) -> Result<Unpacked> {
    if package.is_empty()
        || !package
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    {
        bail!("`{package}` is no name of a Debian package");
    }
    let packages = cache.directory(PACKAGES)?;
    let record = packages.join(format!("{package}.resolved"));
    let resolved = || {
        let name = fs::read_to_string(&record).ok()?;
        Unpacked::named(&packages, name.trim())
    };
    if !refresh && let Some(unpacked) = resolved() {
        return Ok(unpacked);
    }
    let _lock = cache.lock(PACKAGES)?;
    // Another run may have fetched it while this one waited.
    if !refresh && let Some(unpacked) = resolved() {
        return Ok(unpacked);
    }

    let unpacked = fetch_newest(&packages, package, refresh, note, keep)?;
    let name = format!("{}_{}", unpacked.package, unpacked.version);
    write_whole(&packages, &record, name.as_bytes())?;
    Ok(unpacked)
}

/// Fetches what `package` stands for now. Package lists that are missing or
/// out of date are updated, once, when this is root.
fn fetch_newest(
    packages: &Path,
    package: &str,
    refresh: bool,
    note: &dyn Fn(&str),
    keep: &dyn Fn(&Path) -> bool,
) -> Result<Unpacked> {
    let unknown = || UnknownPackage(package.to_owned());
    // Without root a refresh takes the newest of the lists that are there.
    let mut updated = refresh && is_root();
    if updated {
        apt::update(note)?;
    }
    let candidate = match resolve(package)? {
        Some(candidate) => candidate,
        None if updated => return Err(unknown().into()),
        None => {
            apt::update(note).with_context(|| format!("apt knows no package {package}"))?;
            updated = true;
            resolve(package)?.with_context(unknown)?
        }
    };
    let error = match install(packages, &candidate, note, keep) {
        Ok(unpacked) => return Ok(unpacked),
        Err(error) if updated => return Err(error),
        Err(error) => error,
    };
    // Debian removes old versions: with lists that are out of date, the
    // version they name is gone.
    if !is_root() {
        return Err(error.context(
            "the package could not be fetched; when it is gone from the server (404), run this \
             once: sudo apt-get update",
        ));
    }
    apt::update(note).with_context(|| format!("{error:#}"))?;
    let candidate = resolve(package)?.with_context(unknown)?;
    install(packages, &candidate, note, keep)
}

#[derive(Debug, thiserror::Error)]
#[error(
    "apt knows no package {0}: check the name and that the Debian suite that has it is in apt's \
     sources, or give a kernel of your own with --kernel PATH"
)]
struct UnknownPackage(String);

/// Follows metapackages to the package that has the kernel.
fn resolve(package: &str) -> Result<Option<apt::Candidate>> {
    let mut name = package.to_owned();
    for _ in 0..MAX_STEPS {
        let Some(candidate) = apt::show(&name)? else {
            return Ok(None);
        };
        match candidate
            .depends
            .iter()
            .find(|other| other.starts_with("linux-image-"))
        {
            Some(next) => name.clone_from(next),
            None => return Ok(Some(candidate)),
        }
    }
    bail!("the metapackage {package} leads through more than {MAX_STEPS} others");
}

fn install(
    packages: &Path,
    candidate: &apt::Candidate,
    note: &dyn Fn(&str),
    keep: &dyn Fn(&Path) -> bool,
) -> Result<Unpacked> {
    let name = format!("{}_{}", candidate.package, candidate.version);
    if let Some(unpacked) = Unpacked::named(packages, &name) {
        return Ok(unpacked);
    }
    let scratch = tempfile::Builder::new()
        .prefix(".new-")
        .tempdir_in(packages)
        .with_context(|| format!("cannot write to {}", packages.display()))?;
    let size_mib = candidate.size_bytes.div_ceil(1 << 20);
    note(&format!(
        "fetching {} {} ({size_mib} MiB)",
        candidate.package, candidate.version
    ));
    let deb = apt::download(candidate, scratch.path())?;
    note(&format!("unpacking {}", candidate.package));
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree)?;
    if deb::unpack_file(&deb, &tree, keep)? == 0 {
        bail!("the package {name} has nothing of what is needed from it");
    }
    let root = packages.join(&name);
    fs::rename(&tree, &root).with_context(|| format!("cannot make {}", root.display()))?;
    Ok(Unpacked {
        package: candidate.package.clone(),
        version: candidate.version.clone(),
        root,
    })
}

/// Writes `path`, a file in `directory`, so that readers see the old or the
/// new content whole.
pub(crate) fn write_whole(directory: &Path, path: &Path, content: &[u8]) -> Result<()> {
    let write = || -> Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        std::io::Write::write_all(&mut file, content)?;
        use std::os::unix::fs::PermissionsExt;
        file.as_file()
            .set_permissions(fs::Permissions::from_mode(0o644))?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// The release a kernel image names: by the boot header's `kernel_version`
/// for a bzImage (Documentation/arch/x86/boot.rst), by its banner for an ELF.
fn kernel_release(image: &[u8]) -> Option<String> {
    const BANNER: &[u8] = b"Linux version ";
    let text = if image.get(0x202..0x206) == Some(b"HdrS") {
        let pointer = image.get(0x20e..0x210)?;
        let offset = usize::from(pointer[0]) | usize::from(pointer[1]) << 8;
        image.get(offset.checked_add(0x200)?..)?
    } else {
        let at = image
            .windows(BANNER.len())
            .position(|window| window == BANNER)?;
        image.get(at + BANNER.len()..)?
    };
    let end = text
        .iter()
        .take(128)
        .position(|byte| matches!(byte, b' ' | 0))?;
    let release = std::str::from_utf8(&text[..end]).ok()?;
    // It becomes part of a path.
    (!release.is_empty() && !release.contains('/') && !release.starts_with('.'))
        .then(|| release.to_owned())
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
