//! What is asked of Debian's package tools. Fetching needs no root; only
//! installing does.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// A program that must be installed, and the Debian package that has it.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name in `PATH`.
    pub name: &'static str,
    /// The Debian package that has it.
    pub package: &'static str,
}

/// The emulator of the virtual KVM host.
pub const QEMU: Program = Program {
    name: "qemu-system-x86_64",
    package: "qemu-system-x86",
};

/// What `apt-cache show` says of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) package: String,
    pub(crate) version: String,
    pub(crate) size_bytes: u64,
    /// The first dependency of each comma-separated group.
    pub(crate) depends: Vec<String>,
}

/// Where `name` is in `PATH`.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        // Without these a user's PATH may lack what root's has.
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|file| {
            fs::metadata(file)
                .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
        })
}

/// Whether this process may install packages.
#[must_use]
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|data| data.uid() == 0)
}

/// Makes sure that all `programs` are there: with root it installs what is
/// missing. `note` is told what is being done.
///
/// # Errors
/// Without root, when one is missing: the error names the one command to run.
/// With root, when the installation fails.
pub fn ensure_programs(programs: &[Program], note: &dyn Fn(&str)) -> Result<()> {
    let missing: Vec<&Program> = programs
        .iter()
        .filter(|program| find_program(program.name).is_none())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = join(missing.iter().map(|program| program.name), ", ");
    let packages = join(missing.iter().map(|program| program.package), " ");
    let command = format!("apt-get install -y --no-install-recommends {packages}");
    if !is_root() {
        bail!("{names} is missing; run this once: sudo {command}");
    }
    if find_program("apt-get").is_none() {
        bail!("{names} is missing, and there is no apt-get to install it with");
    }
    for program in &missing {
        if show(program.package)?.is_none() {
            update(note)?;
            break;
        }
    }
    note(&format!("installing {packages}"));
    let output = apt(
        "apt-get",
        ["install", "-y", "--no-install-recommends"]
            .into_iter()
            .chain(missing.iter().map(|program| program.package)),
        None,
    )?;
    if !output.status.success() {
        bail!("`{command}` failed:\n{}", complaint(&output));
    }
    Ok(())
}

/// `apt-get update`, for root.
///
/// # Errors
/// Without root (the error names the command), or when it fails.
pub(crate) fn update(note: &dyn Fn(&str)) -> Result<()> {
    if !is_root() {
        bail!("apt's package lists are missing or out of date; run this once: sudo apt-get update");
    }
    note("updating apt's package lists");
    let output = apt("apt-get", ["update"], None)?;
    if !output.status.success() {
        bail!("`apt-get update` failed:\n{}", complaint(&output));
    }
    Ok(())
}

/// What apt knows of a package; `None` when it knows nothing.
///
/// # Errors
/// When `apt-cache` cannot be run.
pub(crate) fn show(package: &str) -> Result<Option<Candidate>> {
    let output = apt(
        "apt-cache",
        ["show", "--no-all-versions", "--", package],
        None,
    )?;
    if !output.status.success() {
        return Ok(None);
    }
    Ok(parse_show(&String::from_utf8_lossy(&output.stdout)))
}

/// Downloads exactly the given package version into `directory`, and returns
/// the file.
///
/// # Errors
/// When apt cannot fetch it.
pub(crate) fn download(candidate: &Candidate, directory: &Path) -> Result<PathBuf> {
    let wanted = format!("{}={}", candidate.package, candidate.version);
    let output = apt("apt-get", ["download", "-q", &wanted], Some(directory))?;
    if !output.status.success() {
        bail!(
            "`apt-get download {wanted}` failed:\n{}",
            complaint(&output)
        );
    }
    fs::read_dir(directory)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension() == Some(OsStr::new("deb")))
        .with_context(|| format!("`apt-get download {wanted}` left no .deb file"))
}

fn apt<'a>(
    program: &str,
    arguments: impl IntoIterator<Item = &'a str>,
    directory: Option<&Path>,
) -> Result<Output> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LC_ALL", "C")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null());
    if let Some(directory) = directory {
        command.current_dir(directory);
    }
    command.output().with_context(|| {
        format!("cannot run {program}: kernels come from Debian's packages; give your own with --kernel PATH")
    })
}

/// The last lines a program wrote to its standard error.
fn complaint(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(6)..].join("\n")
}

fn join<'a>(parts: impl Iterator<Item = &'a str>, between: &str) -> String {
    parts.collect::<Vec<_>>().join(between)
}

/// Reads the first paragraph of `apt-cache show` (deb822(5)).
fn parse_show(text: &str) -> Option<Candidate> {
    let paragraph = text.split("\n\n").next()?;
    let field = |name: &str| {
        paragraph.lines().find_map(|line| {
            line.split_once(':')
                .filter(|(key, _)| key.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.trim())
        })
    };
    let depends = field("Depends")
        .unwrap_or_default()
        .split(',')
        .filter_map(|group| {
            group
                .split(['(', '|', ' ', ':'])
                .find(|name| !name.is_empty())
        })
        .map(str::to_owned)
        .collect();
    Some(Candidate {
        package: field("Package")?.to_owned(),
        version: field("Version")?.to_owned(),
        size_bytes: field("Size")
            .and_then(|size| size.parse().ok())
            .unwrap_or(0),
        depends,
    })
}

#[cfg(test)]
#[path = "apt_tests.rs"]
mod tests;
