//! Where the programs, kernels and initramfs images of the tests are, and
//! whether this machine can run guests at all. `cargo xtask test` sets the
//! variables.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result};
use lmb_tools::host::detect;
use lmb_tools::packages::find_program;

/// A guest kernel that the tests know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Debian's 6.1 cloud kernel.
    V6_1,
    /// Debian's 6.12 cloud kernel.
    V6_12,
}

impl Kernel {
    /// The kernel's name in variables: `6_1`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6_1",
            Self::V6_12 => "6_12",
        }
    }

    /// What its release starts with.
    #[must_use]
    pub const fn release_prefix(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1.",
            Self::V6_12 => "6.12.",
        }
    }

    /// Its bzImage, by `LMB_GUEST_KERNEL_…`.
    ///
    /// # Errors
    /// When the variable is not set.
    pub fn image(self) -> Result<PathBuf> {
        file("LMB_GUEST_KERNEL", self)
    }

    /// Its initramfs, by `LMB_GUEST_INITRD_…`.
    ///
    /// # Errors
    /// When the variable is not set.
    pub fn initrd(self) -> Result<PathBuf> {
        file("LMB_GUEST_INITRD", self)
    }
}

fn file(variable: &str, kernel: Kernel) -> Result<PathBuf> {
    let variable = format!("{variable}_{}", kernel.name());
    path_of(&variable).with_context(|| format!("{variable} is not set: use `cargo xtask test`"))
}

fn path_of(variable: &str) -> Option<PathBuf> {
    env::var_os(variable)
        .filter(|value: &OsString| !value.is_empty())
        .map(PathBuf::from)
}

/// Kernel 6.1 unpacked, a vmlinux of one's own, by `LMB_GUEST_VMLINUX_6_1`.
///
/// # Errors
/// When the variable is not set.
pub fn vmlinux() -> Result<PathBuf> {
    path_of("LMB_GUEST_VMLINUX_6_1")
        .context("LMB_GUEST_VMLINUX_6_1 is not set: use `cargo xtask test`")
}

/// lmb-vmm: `LMB_VMM`, else beside the test program, else in `PATH`.
///
/// # Errors
/// When it is in none of these places.
pub fn vmm_program() -> Result<PathBuf> {
    program("LMB_VMM", "lmb-vmm")
}

/// lmb: `LMB`, else beside the test program, else in `PATH`.
///
/// # Errors
/// When it is in none of these places.
pub fn lmb_program() -> Result<PathBuf> {
    program("LMB", "lmb")
}

/// curl, from `PATH`.
///
/// # Errors
/// When it is not there.
pub fn curl_program() -> Result<PathBuf> {
    find_program("curl").context("there is no curl in PATH: install the package curl")
}

fn program(variable: &str, name: &str) -> Result<PathBuf> {
    let beside = || {
        // target/release/deps/guest-… lies one directory below the programs.
        let me = env::current_exe().ok()?;
        me.ancestors()
            .skip(1)
            .take(2)
            .map(|directory| directory.join(name))
            .find(|path| path.is_file())
    };
    path_of(variable)
        .or_else(beside)
        .or_else(|| find_program(name))
        .with_context(|| {
            format!("{name} is neither beside this program nor in PATH: set {variable}, or use `cargo xtask test`")
        })
}

/// Why guests cannot run here; `None` where they can.
#[must_use]
pub fn why_no_guests() -> Option<String> {
    if let Err(reason) = detect::native_kvm() {
        return Some(reason.to_string());
    }
    [Kernel::V6_1.image(), vmm_program()]
        .into_iter()
        .find_map(|place| place.err())
        .map(|error| error.to_string())
}
