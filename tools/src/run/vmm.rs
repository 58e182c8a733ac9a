//! lmb-vmm's command line: its flags as `lmb run` takes them, the defaults
//! that `lmb run` adds, and where the program lies.
//!
//! Values are passed on as they were written: lmb-vmm alone judges them, so
//! that its messages are the only ones and the two cannot disagree.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;

use crate::units::parse_size;

/// The VMM's file name; it is looked for beside `lmb`, then in `$PATH`.
pub(super) const PROGRAM: &str = "lmb-vmm";
const DEFAULT_MEMORY: &str = "1G";
const DEFAULT_LMB: &str = "256M";
/// Room for hotplug where no --max-memory says how much: 8 GiB.
const DEFAULT_WINDOW: u64 = 8 << 30;

/// The flags that describe the VM beside its kernel.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Virtual machine (passed on to lmb-vmm)")]
pub(super) struct VmmFlags {
    /// Initial RAM disk [default: the guest image that `lmb guest build` makes]
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,

    /// Kernel command line [default: console=ttyS0 quiet
    /// memhp_default_state=online_movable]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    cmdline: Option<String>,

    /// Number of vCPUs, 1 to 254 [default: 1]
    #[arg(long, value_name = "N")]
    cpus: Option<String>,

    /// Memory at boot, rounded up to whole LMBs [default: 1G]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,

    /// Most memory the guest can have, boot memory included; a multiple of
    /// the LMB size [default: boot memory and 8G]
    #[arg(long, value_name = "SIZE")]
    max_memory: Option<String>,

    /// Size of an LMB, a power of two from 2M to 4G [default: 256M]
    #[arg(long, value_name = "SIZE")]
    lmb_size: Option<String>,

    /// How memory is added and removed: virtio-mem (the guest's driver takes
    /// and returns ranges) or acpi (each LMB is a device of its own, needs no
    /// driver) [default: virtio-mem]
    #[arg(long, value_name = "virtio-mem|acpi")]
    hotplug: Option<String>,

    /// Memory block size of the guest's Linux: a power of two from 128M to
    /// 2G, or `follow` for the LMB size within that range [default: follow]
    #[arg(long, value_name = "SIZE|follow")]
    guest_block_size: Option<String>,

    /// Size of a KVM memory slot of the hotplug window, a power of two, at
    /// least the LMB size [default: 1G or the LMB size, larger for large
    /// windows]
    #[arg(long, value_name = "SIZE")]
    slot_size: Option<String>,

    /// Host pages behind guest memory: off, thp, 2M or 1G [default: thp]
    #[arg(long, value_name = "KIND")]
    hugepages: Option<String>,

    /// Shared memory (memfd) behind the guest [default: private]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    shared: Option<String>,

    /// Populate memory when it is created or plugged [default: when touched]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    prefault: Option<String>,

    /// Threads that populate memory, with --prefault [default: the host's
    /// CPUs]
    #[arg(long, value_name = "N")]
    prefault_threads: Option<String>,

    /// The guest's serial console: stdio, off or file:PATH [default: stdio]
    #[arg(long, value_name = "TARGET")]
    serial: Option<String>,

    /// Kernel entry: auto, elf or bzimage (the guest unpacks itself, with
    /// KASLR) [default: auto]
    #[arg(long, value_name = "ENTRY")]
    kernel_entry: Option<String>,

    /// Whether lmb-vmm confines itself: on or off, for debugging [default: on]
    #[arg(long, value_name = "on|off")]
    sandbox: Option<String>,

    /// What lmb-vmm logs: error, warn, info, debug or trace [default: warn]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,

    /// VM definition as JSON, with the same fields as the flags (lmb_size for
    /// --lmb-size), which go before it; lmb run then adds no defaults but the
    /// control socket
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print the memory layout and start nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Further arguments for lmb-vmm, as they are
    #[arg(last = true, value_name = "LMB-VMM ARGUMENTS")]
    further: Vec<OsString>,
}

impl VmmFlags {
    /// lmb-vmm's arguments for these flags, kernel, initrd and socket apart.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let mut push = |name: &str, value: Option<&str>| {
            if let Some(value) = value {
                arguments.push(OsString::from(format!("{name}={value}")));
            }
        };
        let default = |value| self.config.is_none().then_some(value);
        push(
            "--memory",
            self.memory.as_deref().or(default(DEFAULT_MEMORY)),
        );
        push(
            "--lmb-size",
            self.lmb_size.as_deref().or(default(DEFAULT_LMB)),
        );
        let most = self
            .max_memory
            .clone()
            .or_else(|| self.default_max_memory());
        push("--max-memory", most.as_deref());
        push("--cmdline", self.cmdline.as_deref());
        push("--cpus", self.cpus.as_deref());
        push("--hotplug", self.hotplug.as_deref());
        push("--guest-block-size", self.guest_block_size.as_deref());
        push("--slot-size", self.slot_size.as_deref());
        push("--hugepages", self.hugepages.as_deref());
        push("--shared", self.shared.as_deref());
        push("--prefault", self.prefault.as_deref());
        push("--prefault-threads", self.prefault_threads.as_deref());
        push("--serial", self.serial.as_deref());
        push("--kernel-entry", self.kernel_entry.as_deref());
        push("--sandbox", self.sandbox.as_deref());
        push("--log-level", self.log_level.as_deref());
        if let Some(path) = &self.config {
            arguments.extend(["--config".into(), path.into()]);
        }
        if self.dry_run {
            arguments.push("--dry-run".into());
        }
        arguments.extend(self.further.iter().cloned());
        arguments
    }

    /// Boot memory as lmb-vmm will round it, in bytes, if these flags and the
    /// definition's sizes tell. Without either lmb-vmm's defaults are the same
    /// as here.
    pub(super) fn boot_bytes(&self, defined: impl Fn(&str) -> Option<u64>) -> Option<u64> {
        let size = |flag: Option<&str>, field: &str, default: &str| match flag {
            Some(text) => parse_size(text).ok(),
            None => defined(field).or_else(|| parse_size(default).ok()),
        };
        let memory = size(self.memory.as_deref(), "memory", DEFAULT_MEMORY)?;
        let lmb = size(self.lmb_size.as_deref(), "lmb_size", DEFAULT_LMB)?;
        memory.checked_next_multiple_of(lmb)
    }

    /// What `--serial` says.
    pub(super) fn serial(&self) -> Option<&str> {
        self.serial.as_deref()
    }

    /// Boot memory and 8 GiB; none with a definition file, and none where a
    /// size does not read: lmb-vmm says what is wrong with it.
    fn default_max_memory(&self) -> Option<String> {
        if self.config.is_some() {
            return None;
        }
        let most = self.boot_bytes(|_| None)?.checked_add(DEFAULT_WINDOW)?;
        Some(most.to_string())
    }

    /// Whether the guest's console is on standard input and output.
    pub(super) fn console_is_stdio(&self) -> bool {
        match &self.serial {
            Some(target) => target == "stdio",
            // A definition file may say otherwise, and then nobody reads what
            // is typed.
            None => true,
        }
    }
}

/// The VMM: `given`, or beside this program, or in `$PATH`.
///
/// # Errors
/// When it is in none of these places.
pub(super) fn find(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = given {
        if !path.is_file() {
            bail!(
                "{} is no file; --vmm names the lmb-vmm to start",
                path.display()
            );
        }
        return Ok(path.to_owned());
    }
    let this = std::env::current_exe().context("cannot tell where this program lies")?;
    let beside = this.with_file_name(PROGRAM);
    if beside.is_file() {
        return Ok(beside);
    }
    std::env::var_os("PATH")
        .into_iter()
        .flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>())
        .map(|dir| dir.join(PROGRAM))
        .find(|candidate| candidate.is_file())
        .with_context(|| {
            format!(
                "there is no {PROGRAM} beside {} or in $PATH; build it with \
                 `cargo build --release -p lmb-vmm` or name it with --vmm",
                this.display()
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: VmmFlags,
    }

    fn arguments(line: &[&str]) -> Vec<String> {
        let all = std::iter::once(&"lmb").chain(line);
        Line::parse_from(all)
            .flags
            .arguments()
            .into_iter()
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn the_defaults_make_a_guest_that_can_grow() {
        assert_eq!(
            arguments(&[]),
            ["--memory=1G", "--lmb-size=256M", "--max-memory=9663676416"]
        );
    }

    #[test]
    fn the_default_window_starts_where_rounded_boot_memory_ends() {
        assert_eq!(
            arguments(&["--memory", "700M", "--lmb-size", "512M"])[2],
            format!("--max-memory={}", (1u64 << 30) + (8 << 30))
        );
    }

    #[test]
    fn what_does_not_read_is_left_to_the_vmm() {
        assert_eq!(
            arguments(&["--memory", "lots", "--cpus", "none"]),
            ["--memory=lots", "--lmb-size=256M", "--cpus=none"]
        );
        assert_eq!(
            arguments(&["--memory=0xfffffffff0000000", "--lmb-size=256M"]),
            ["--memory=0xfffffffff0000000", "--lmb-size=256M"],
        );
    }

    #[test]
    fn a_definition_file_stands_alone() {
        assert_eq!(
            arguments(&["--config", "vm.json", "--shared", "--", "--new-flag", "x"]),
            ["--shared=true", "--config", "vm.json", "--new-flag", "x"]
        );
    }

    #[test]
    fn flags_are_passed_on_as_written() {
        let line = [
            "--cmdline",
            "console=ttyS0 -- -x",
            "--prefault=false",
            "--hotplug",
            "acpi",
            "--serial",
            "file:/a=b",
            "--dry-run",
        ];
        let passed = arguments(&line);
        for expected in [
            "--cmdline=console=ttyS0 -- -x",
            "--prefault=false",
            "--hotplug=acpi",
            "--serial=file:/a=b",
            "--dry-run",
        ] {
            assert!(
                passed.iter().any(|a| a == expected),
                "{expected} in {passed:?}"
            );
        }
    }
}
