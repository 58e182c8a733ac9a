//! Brings a sweep to where it runs: here, or into one virtual KVM host that
//! is made for it.
//!
//! Into the virtual host go this program, the VMMs, kernels and initramfs
//! images, and the work as a file; what is measured comes back in lines on the
//! command's output, each saved as it comes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::runner;
use super::work::{GuestFiles, Message, Programs, Work};
use crate::host::{self, HostRun};
use crate::initramfs::FileArgument;
use crate::packages::{self, Cache, KernelPackage};

/// What each message's line begins with.
pub(super) const MARK: &str = "lmb-bench ";
/// Where things lie in the virtual host.
const PLACE: &str = "lmb/bench";
/// Firmware that QEMU's pc and microvm need to boot a kernel.
const FIRMWARE: [&str; 9] = [
    "bios-256k.bin",
    "bios-microvm.bin",
    "qboot.rom",
    "linuxboot.bin",
    "linuxboot_dma.bin",
    "pvh.bin",
    "kvmvapic.bin",
    "multiboot.bin",
    "multiboot_dma.bin",
];

/// The virtual host for a sweep.
#[derive(Debug)]
pub(super) struct VirtualHost {
    /// Its kernel.
    pub(super) kernel: KernelPackage,
    /// Memory in MiB; `None` for as much as the sweep needs.
    pub(super) memory_mib: Option<u64>,
    /// CPUs.
    pub(super) cpus: u32,
    /// Wall time it may take.
    pub(super) limit: Duration,
}

/// A virtual host ready to be run.
#[derive(Debug)]
pub(super) struct Prepared {
    run: HostRun,
    // Holds the work's file until the host has been made from it.
    _directory: tempfile::TempDir,
}

impl Prepared {
    /// The host's memory in MiB.
    pub(super) fn memory_mib(&self) -> u64 {
        self.run.memory_mib
    }

    /// Boots the host and runs the work in it.
    ///
    /// # Errors
    /// When the host or the work in it fails, or `report` does.
    pub(super) fn run(
        &self,
        cache: &Cache,
        report: &mut dyn FnMut(Message) -> Result<()>,
    ) -> Result<()> {
        let mut failure = None;
        let mut rest = String::new();
        let mut pending = Vec::new();
        let code = self.run.run(cache, &mut |bytes| {
            pending.extend_from_slice(bytes);
            while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                if let Err(error) = take_line(&line, report, &mut rest) {
                    failure = Some(error);
                    return Err(std::io::ErrorKind::Other.into());
                }
            }
            Ok(())
        });
        if let Some(error) = failure {
            return Err(error);
        }
        match code? {
            0 => Ok(()),
            code => bail!("the sweep in the virtual KVM host ended with code {code}:\n{rest}"),
        }
    }
}

fn take_line(
    line: &str,
    report: &mut dyn FnMut(Message) -> Result<()>,
    rest: &mut String,
) -> Result<()> {
    match line.trim_end().strip_prefix(MARK) {
        Some(json) => report(
            serde_json::from_str(json)
                .with_context(|| format!("a message of the sweep is damaged: {json}"))?,
        ),
        None => {
            // Errors of what runs inside; a bounded part of them.
            if rest.len() < 16 << 10 {
                rest.push_str(&crate::output::printable(line.trim_end()));
                rest.push('\n');
            }
            Ok(())
        }
    }
}

/// Puts the work and its files into a virtual host.
///
/// # Errors
/// When a file is missing or this machine has too little memory.
pub(super) fn prepare(
    mut work: Work,
    host: VirtualHost,
    clock: host::Clock,
    note: &dyn Fn(&str),
) -> Result<Prepared> {
    let mut files = Vec::new();
    let this = std::env::current_exe().context("cannot tell where this program is")?;
    files.push(put(this, "bin/lmb".to_owned()));
    work.programs = put_programs(&work.programs, &mut files)?;
    for (number, guest) in work.guests.iter_mut().enumerate() {
        let kernel = format!("{PLACE}/kernel{number}");
        let initrd = format!("{PLACE}/initrd{number}");
        files.push(put(guest.kernel.clone(), kernel.clone()));
        files.push(put(guest.initrd.clone(), initrd.clone()));
        let vmlinux = guest.vmlinux.take().map(|source| {
            let vmlinux = format!("{PLACE}/vmlinux{number}");
            files.push(put(source, vmlinux.clone()));
            Path::new("/").join(vmlinux)
        });
        *guest = GuestFiles {
            kernel: Path::new("/").join(kernel),
            initrd: Path::new("/").join(initrd),
            vmlinux,
        };
    }
    let directory = tempfile::Builder::new()
        .prefix("lmb-bench-")
        .tempdir()
        .context("cannot make a temporary directory")?;
    let file = directory.path().join("work.json");
    fs::write(&file, serde_json::to_vec(&work)?)
        .with_context(|| format!("cannot write {}", file.display()))?;
    let inside = format!("{PLACE}/work.json");
    files.push(put(file, inside.clone()));
    let memory_mib = match host.memory_mib {
        Some(mib) => mib,
        None => super::sizing::host_mib(&work.jobs, total_bytes(&files)?)
            .context("the guests' sizes are more than 64 bits hold")?,
    };
    check_memory(memory_mib)?;
    let command = vec![
        "lmb".into(),
        "bench".into(),
        "inside".into(),
        format!("/{inside}").into(),
    ];
    let mut run = HostRun::new(host.kernel, packages::qemu(note)?, command);
    run.cpus = host.cpus;
    run.clock = clock;
    run.memory_mib = memory_mib;
    run.limit = host.limit;
    run.files = files;
    Ok(Prepared {
        run,
        _directory: directory,
    })
}

/// The command inside the virtual host.
///
/// # Errors
/// When the work cannot be read or reported.
pub(super) fn run_inside(file: &Path) -> Result<()> {
    let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let work: Work = serde_json::from_slice(&text)
        .with_context(|| format!("{} is no work of lmb bench", file.display()))?;
    runner::run(&work, &mut |message| {
        use std::io::Write;
        let mut line = MARK.as_bytes().to_vec();
        serde_json::to_writer(&mut line, &message)?;
        line.push(b'\n');
        // One write a message; it is not buffered.
        std::io::stdout()
            .lock()
            .write_all(&line)
            .context("cannot report a sample")
    })
}

fn put(source: PathBuf, dest: String) -> FileArgument {
    FileArgument {
        source,
        dest: Some(dest),
    }
}

fn put_programs(programs: &Programs, files: &mut Vec<FileArgument>) -> Result<Programs> {
    let mut program = |path: &Option<PathBuf>, name| put_program(path.as_deref(), name, files);
    let mut inside = Programs {
        lmb_vmm: program(&programs.lmb_vmm, "lmb-vmm")?,
        qemu: program(&programs.qemu, "qemu-system-x86_64")?,
        qemu_firmware: None,
        firecracker: program(&programs.firecracker, "firecracker")?,
        cloud_hypervisor: program(&programs.cloud_hypervisor, "cloud-hypervisor")?,
    };
    if let Some(qemu) = &programs.qemu {
        let firmware = format!("{PLACE}/firmware");
        for (name, path) in firmware_files(qemu)? {
            files.push(put(path, format!("{firmware}/{name}")));
        }
        inside.qemu_firmware = Some(Path::new("/").join(firmware));
    }
    Ok(inside)
}

/// Puts a program with the libraries it needs, once each.
fn put_program(
    program: Option<&Path>,
    name: &str,
    files: &mut Vec<FileArgument>,
) -> Result<Option<PathBuf>> {
    let Some(program) = program else {
        return Ok(None);
    };
    let inside = format!("bin/{name}");
    files.push(put(program.to_owned(), inside.clone()));
    for library in libraries(program)? {
        if files.iter().all(|file| file.source != library) {
            files.push(put(library.clone(), inside_path(&library)));
        }
    }
    Ok(Some(Path::new("/").join(inside)))
}

/// The same place in an archive.
fn inside_path(path: &Path) -> String {
    path.display()
        .to_string()
        .trim_start_matches('/')
        .to_owned()
}

/// The shared libraries a program needs, by ldd.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("cannot run ldd")?;
    // A static program has none, which ldd calls a failure.
    parse_ldd(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("the libraries of {} are not complete", program.display()))
}

/// Lines are `name => /path (0x…)`, `/path (0x…)`, or the kernel's own
/// `linux-vdso.so.1 (0x…)`.
fn parse_ldd(text: &str) -> Result<BTreeSet<PathBuf>> {
    let mut paths = BTreeSet::new();
    for line in text.lines() {
        let place = line
            .split_once("=>")
            .map_or(line, |(_, place)| place)
            .trim();
        if place.starts_with("not found") {
            bail!("there is no {}", line.trim());
        }
        if let Some(path) = place
            .split_whitespace()
            .next()
            .filter(|p| p.starts_with('/'))
        {
            paths.insert(PathBuf::from(path));
        }
    }
    Ok(paths)
}

/// Firmware in the directories that QEMU names.
fn firmware_files(qemu: &Path) -> Result<Vec<(String, PathBuf)>> {
    let output = Command::new(qemu)
        .args(["-L", "help"])
        .output()
        .with_context(|| format!("cannot run {}", qemu.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found: Vec<(String, PathBuf)> = FIRMWARE
        .iter()
        .filter_map(|name| {
            let path = text
                .lines()
                .map(|directory| Path::new(directory.trim()).join(name))
                .find(|path| path.is_file())?;
            Some(((*name).to_owned(), path))
        })
        .collect();
    if found.is_empty() {
        bail!("{} names no directory with firmware", qemu.display());
    }
    Ok(found)
}

fn total_bytes(files: &[FileArgument]) -> Result<u64> {
    files.iter().try_fold(0_u64, |sum, file| {
        let data = fs::metadata(&file.source)
            .with_context(|| format!("cannot read {}", file.source.display()))?;
        Ok(sum.saturating_add(data.len()))
    })
}

/// Refuses a host that this machine has no memory for.
fn check_memory(memory_mib: u64) -> Result<()> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    if let Some(available) = runner::meminfo_bytes(&meminfo, "MemAvailable")
        && available >> 20 < memory_mib
    {
        bail!(
            "the virtual KVM host for this sweep needs {memory_mib} MiB and this machine has {} \
             MiB free: give smaller sizes, or --host-memory if you know better",
            available >> 20
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_and_missing_ones_are_errors() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\
            \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x1)\n";
        let found = parse_ldd(text).unwrap();
        let wanted = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert!(found.iter().eq(wanted.map(PathBuf::from).iter()));
        assert!(parse_ldd("\tlibx.so.1 => not found\n").is_err());
        assert!(
            parse_ldd("\tnot a dynamic executable\n")
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn messages_are_told_from_other_output() {
        let mut messages = Vec::new();
        let mut rest = String::new();
        let mut take = |line: &str| {
            take_line(
                line,
                &mut |message| {
                    messages.push(message);
                    Ok(())
                },
                &mut rest,
            )
        };
        take("lmb-bench {\"message\":\"begins\",\"job\":3}\r\n").unwrap();
        take("thread main panicked\u{7}\n").unwrap();
        assert!(take("lmb-bench {\"message\":\"beg\n").is_err());
        for _ in 0..10_000 {
            take(&"noise ".repeat(20)).unwrap();
        }
        assert_eq!(messages, [Message::Begins { job: 3 }]);
        assert!(rest.starts_with("thread main panicked\u{fffd}\n") && rest.len() < 20 << 10);
    }
}
