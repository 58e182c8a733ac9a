//! A VM's configuration: [`Options`] as the user gave them, checked once into
//! a [`VmConfig`] from which everything else is built.

mod options;
mod report;

use std::num::NonZero;
use std::path::PathBuf;

use lmb_memory::{
    Bytes, GeometryError, GuestBlock, Hotplug, Layout, LmbSize, MemoryRequest, PageSize, UnitError,
};

pub use options::{GuestBlockOption, KernelEntry, LogLevel, Options, SandboxOption, SerialOption};
pub use report::LayoutReport;

use crate::boot::BootError;
use crate::boot::image::EntryChoice;
use crate::boot::load::check_cmdline;
use crate::platform::MAX_CPUS;

/// The command line of a stock guest: what Debian's kernels need for a serial
/// console and for onlining added memory by themselves.
pub const DEFAULT_CMDLINE: &str = "console=ttyS0 quiet memhp_default_state=online_movable";
/// Default LMB size.
pub const DEFAULT_LMB: Bytes = Bytes::new(256 << 20);
/// Default boot memory.
pub const DEFAULT_MEMORY: Bytes = Bytes::new(1 << 30);

/// Guest-physical space that Linux's direct map reaches with 4-level page
/// tables (MAX_PHYSMEM_BITS 46, arch/x86/include/asm/sparsemem.h).
const DIRECT_MAP_BYTES: u64 = 1 << 46;
/// What KASLR leaves of it: RAM in whole TiB and
/// CONFIG_RANDOMIZE_MEMORY_PHYSICAL_PADDING (10 TiB) more
/// (arch/x86/mm/kaslr.c).
const KASLR_PADDING_BYTES: u64 = 10 << 40;
const TIB: u64 = 1 << 40;

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration {path}: {source}")]
    Read {
        /// Path as given.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file is not what is expected.
    #[error("configuration {path} is not valid: {source}; see --help for the fields")]
    Parse {
        /// Path as given.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// No kernel.
    #[error("no kernel given: use --kernel FILE (a bzImage or an ELF vmlinux)")]
    NoKernel,
    /// vCPU count out of range.
    #[error("{0} vCPUs are not possible: use 1 to {max}", max = MAX_CPUS)]
    Cpus(u32),
    /// Not an LMB size.
    #[error("--lmb-size: {0}")]
    LmbSize(#[source] UnitError),
    /// A layout that is not possible.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Threads without prefault.
    #[error("--prefault-threads needs --prefault")]
    ThreadsWithoutPrefault,
    /// The command line.
    #[error(transparent)]
    Cmdline(#[from] BootError),
}

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// Kernel file.
    pub kernel: Option<PathBuf>,
    /// Initrd file.
    pub initrd: Option<PathBuf>,
    /// Kernel command line.
    pub cmdline: String,
    /// vCPUs.
    pub cpus: u32,
    /// Boot memory as asked for.
    pub memory: Bytes,
    /// Largest total as asked for.
    pub max_memory: Option<Bytes>,
    /// Total requested from the start.
    pub requested_memory: Option<Bytes>,
    /// LMB size.
    pub lmb_size: LmbSize,
    /// Guest's memory block.
    pub guest_block: GuestBlock,
    /// Size of a window's KVM slots.
    pub slot_size: Option<Bytes>,
    /// Host pages.
    pub page_size: PageSize,
    /// How the guest takes the window's memory.
    pub hotplug: Hotplug,
    /// Shared backing.
    pub shared: bool,
    /// Threads that populate memory; none means on touch.
    pub prefault_threads: Option<NonZero<u32>>,
    /// Serial port.
    pub serial: SerialOption,
    /// Control socket.
    pub api_socket: Option<PathBuf>,
    /// Kernel entry.
    pub entry: EntryChoice,
    /// Whether the process confines itself.
    pub sandbox: bool,
}

/// What of the host a layout depends on.
#[derive(Clone, Copy, Debug)]
pub struct HostLimits {
    /// Guest-physical address width, bits.
    pub phys_bits: u8,
    /// vm.max_map_count.
    pub max_map_count: Option<u64>,
    /// KVM's number of memory slots.
    pub max_slots: u64,
}

impl VmConfig {
    /// Checks options and fills in defaults.
    ///
    /// # Errors
    /// The first option that is not legal.
    pub fn new(options: Options) -> Result<Self, ConfigError> {
        let cpus = options.cpus.unwrap_or(1);
        if !(1..=MAX_CPUS).contains(&cpus) {
            return Err(ConfigError::Cpus(cpus));
        }
        let cmdline = options
            .cmdline
            .unwrap_or_else(|| DEFAULT_CMDLINE.to_owned());
        check_cmdline(&cmdline)?;
        let prefault = options.prefault.unwrap_or(false);
        if options.prefault_threads.is_some() && !prefault {
            return Err(ConfigError::ThreadsWithoutPrefault);
        }
        Ok(Self {
            kernel: options.kernel,
            initrd: options.initrd,
            cmdline,
            cpus,
            memory: options.memory.unwrap_or(DEFAULT_MEMORY),
            max_memory: options.max_memory,
            requested_memory: options.requested_memory,
            lmb_size: LmbSize::new(options.lmb_size.unwrap_or(DEFAULT_LMB))
                .map_err(ConfigError::LmbSize)?,
            guest_block: match options.guest_block_size {
                None | Some(GuestBlockOption::Follow) => GuestBlock::Follow,
                Some(GuestBlockOption::Size(size)) => GuestBlock::Fixed(size),
            },
            slot_size: options.slot_size,
            page_size: options.hugepages.unwrap_or(PageSize::Thp),
            hotplug: options.hotplug.unwrap_or_default(),
            shared: options.shared.unwrap_or(false),
            prefault_threads: prefault.then(|| options.prefault_threads.unwrap_or_else(host_cpus)),
            serial: options.serial.unwrap_or_default(),
            api_socket: options.api_socket,
            sandbox: options.sandbox != Some(SandboxOption::Off),
            entry: match options.kernel_entry {
                None | Some(KernelEntry::Auto) => EntryChoice::Auto,
                Some(KernelEntry::Elf) => EntryChoice::Elf,
                Some(KernelEntry::Bzimage) => EntryChoice::Bzimage,
            },
        })
    }

    /// The kernel file.
    ///
    /// # Errors
    /// When none was given.
    pub fn kernel(&self) -> Result<&PathBuf, ConfigError> {
        self.kernel.as_ref().ok_or(ConfigError::NoKernel)
    }

    /// Whether the guest's kernel may move itself.
    #[must_use]
    pub fn kaslr(&self) -> bool {
        self.entry == EntryChoice::Bzimage
            && !self
                .cmdline
                .split_ascii_whitespace()
                .any(|word| word == "nokaslr")
    }

    /// Lays guest memory out for this host.
    ///
    /// # Errors
    /// When the sizes do not fit each other or the host.
    pub fn layout(&self, host: HostLimits) -> Result<Layout, ConfigError> {
        let mut request = MemoryRequest {
            memory: self.memory,
            max_memory: self.max_memory,
            lmb_size: self.lmb_size,
            guest_block: self.guest_block,
            slot_size: self.slot_size,
            page_size: self.page_size,
            hotplug: self.hotplug,
            phys_bits: host.phys_bits,
            kernel_reach: None,
            max_map_count: host.max_map_count,
            max_slots: host.max_slots,
        };
        let layout = Layout::compute(&request)?;
        // With KASLR the reach depends on where RAM ends, so the layout comes
        // first; it does not change, only its notices do.
        let ram_end = layout
            .boot
            .iter()
            .map(|piece| piece.range.end())
            .max()
            .unwrap_or(0);
        request.kernel_reach = Some(Bytes::new(self.kernel_reach_bytes(ram_end)));
        Ok(Layout::compute(&request)?)
    }

    fn kernel_reach_bytes(&self, ram_end: u64) -> u64 {
        if self.kaslr() {
            ram_end
                .next_multiple_of(TIB)
                .saturating_add(KASLR_PADDING_BYTES)
                .min(DIRECT_MAP_BYTES)
        } else {
            DIRECT_MAP_BYTES
        }
    }
}

fn host_cpus() -> NonZero<u32> {
    std::thread::available_parallelism()
        .ok()
        .and_then(|n| u32::try_from(n.get()).ok())
        .and_then(NonZero::new)
        .unwrap_or(NonZero::<u32>::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Options, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn a_file_takes_sizes_as_text_or_numbers_and_refuses_what_it_does_not_know() {
        let options = parse(
            r#"{"memory": "1G", "lmb_size": 134217728, "hugepages": "2M",
                "serial": "file:/tmp/log", "guest_block_size": "follow"}"#,
        )
        .unwrap();
        assert_eq!(options.memory, Some(Bytes::new(1 << 30)));
        assert_eq!(options.lmb_size, Some(Bytes::new(128 << 20)));
        assert_eq!(options.serial, Some(SerialOption::File("/tmp/log".into())));
        let error = parse(r#"{"memroy": "1G"}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `memroy`"));
    }

    #[test]
    fn a_flag_goes_over_the_file() {
        let file = parse(r#"{"memory": "1G", "cpus": 2}"#).unwrap();
        let flags = Options {
            cpus: Some(4),
            ..Options::default()
        };
        let merged = flags.over(file);
        assert_eq!(merged.cpus, Some(4));
        assert_eq!(merged.memory, Some(Bytes::new(1 << 30)));
    }

    #[test]
    fn options_survive_a_round_trip_through_a_file() {
        let options = parse(
            r#"{"kernel": "k", "initrd": "i", "cmdline": "c", "cpus": 3, "memory": "2G",
                "max_memory": "4G", "requested_memory": "3G", "lmb_size": "1G", "guest_block_size": "512M",
                "slot_size": "1G", "hotplug": "acpi", "hugepages": "1G", "shared": true, "prefault": true,
                "prefault_threads": 2, "serial": "off", "api_socket": "s",
                "kernel_entry": "bzimage", "sandbox": "off", "log_level": "debug"}"#,
        )
        .unwrap();
        let text = serde_json::to_string(&options).unwrap();
        assert!(!text.contains("null"), "a field is missing above: {text}");
        assert_eq!(parse(&text).unwrap(), options);
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        for (options, part) in [
            (r#"{"cpus": 0}"#, "1 to 254"),
            (r#"{"cpus": 255}"#, "1 to 254"),
            (r#"{"lmb_size": "3M"}"#, "--lmb-size"),
            (r#"{"prefault_threads": 2}"#, "--prefault"),
            (r#"{"cmdline": "a\u0000b"}"#, "NUL"),
        ] {
            let error = VmConfig::new(parse(options).unwrap()).unwrap_err();
            assert!(error.to_string().contains(part), "{options}: {error}");
        }
        let long = Options {
            cmdline: Some("x".repeat(2048)),
            ..Options::default()
        };
        assert!(VmConfig::new(long).is_err());
    }

    #[test]
    fn kaslr_limits_what_the_kernel_reaches() {
        let config = |entry: &str, cmdline: &str| {
            VmConfig::new(
                parse(&format!(
                    r#"{{"kernel_entry": "{entry}", "cmdline": "{cmdline}"}}"#
                ))
                .unwrap(),
            )
            .unwrap()
        };
        assert_eq!(config("auto", "").kernel_reach_bytes(TIB), 64 * TIB);
        assert_eq!(config("bzimage", "").kernel_reach_bytes(TIB), 11 * TIB);
        assert_eq!(
            config("bzimage", "quiet nokaslr").kernel_reach_bytes(TIB),
            64 * TIB
        );
    }
}
