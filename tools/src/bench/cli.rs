//! `lmb bench`: its options, and the sweeps they make.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use lmb_memory::Hotplug;

use super::sweep::{Given, Load, Measure};
use super::vmms::VmmChoice;
use crate::host;
use crate::packages::DEFAULT_KERNEL_PACKAGE;
use crate::run::HostChoice;
use crate::units::{parse_size, parse_timeout};

/// The stock guest's command line; lmb-vmm's default.
const STOCK_CMDLINE: &str = "console=ttyS0 quiet memhp_default_state=online_movable";

const HELP: &str = "\
Every list is swept: `--lmb-size 128M,1G --cpus 1,2` measures four configurations. Each is run once
to warm up and then in --rounds rounds, whose order changes from round to round in a fixed way.
Samples go to the results file one line each, as they come. An interrupted sweep keeps what it has;
the same command with --continue goes on with it. `lmb report FILE` draws tables from it again.

On this machine's own KVM the clock is the wall clock. In the virtual KVM host, which is started
once for the whole sweep and sized for it, it counts instructions (1 ns = 1 instruction), which
does not depend on how busy the machine is; such figures are instructions and no seconds.

The drivers for firecracker (adding and removing memory) and cloud-hypervisor are untested: they are
written from the descriptions of the APIs, and no figure of them was ever checked.

Equal boots differ by some millionths by that clock. Debian's 6.12 kernels differ more (up to 0.6 %
seen): they test their ciphers in threads beside the boot, 0.7 billion instructions of it, and how
much of that falls before the guest's init is the scheduler's choice. More --rounds help, or leave
the tests out, and the stock guest with them: --cmdline '… cryptomgr.notests'.";

const BOOT_HELP: &str = "\
Examples:
  lmb bench boot --quick
  lmb bench boot --memory 64G --lmb-size 128M,256M,512M,1G,2G,4G --out boot.jsonl
  lmb bench boot --memory 16G --given boot,plugged --guest-block-size follow,2G
  lmb bench boot --memory 1G --lmb-size 256M --hotplug acpi,virtio-mem \\
    --empty-lmbs 0,256,1024,4096
  lmb bench boot --vmm lmb-vmm,qemu-pc --kernel-package \\
    linux-image-cloud-amd64,linux-image-6.12-cloud-amd64";

const DLPAR_HELP: &str = "\
Each configuration is booted, and then the amount is added, removed, added and removed again. With
a load, the added memory is filled first, and the removal and the second add are measured under it:
  touched   data lies in it, which the guest must move out
  dirtying  the same, and a process writes to every page of it without end
  pinned    one page in every 4 MiB of it cannot be moved: it waits in a pipe, as pages under
            direct I/O or in a network queue do
A step that is not complete by its deadline (--timeout) is a sample too, with what was left.

Examples:
  lmb bench dlpar --quick
  lmb bench dlpar --amount 32G --lmb-size 128M,256M,512M,1G,2G,4G --out dlpar.jsonl
  lmb bench dlpar --amount 4G --load none,touched,dirtying,pinned --timeout 30s
  lmb bench dlpar --amount 8G --hotplug acpi,virtio-mem
  lmb bench dlpar --amount 8G --vmm lmb-vmm,qemu-pc";

/// Measure what the LMB size costs
#[derive(Args, Debug)]
#[command(after_long_help = HELP)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub(super) command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum BenchCommand {
    /// Boot time over LMB sizes: VMM, kernel, init, all memory usable
    #[command(after_long_help = BOOT_HELP)]
    Boot(Box<BootArgs>),
    /// Time to add and remove memory over LMB sizes: device done, guest usable
    #[command(after_long_help = DLPAR_HELP)]
    Dlpar(Box<DlparArgs>),
    /// Run a prepared sweep, in the virtual KVM host
    #[command(hide = true)]
    Inside {
        /// The sweep
        work: PathBuf,
    },
}

/// Options of `lmb bench boot`.
#[derive(Args, Debug)]
pub struct BootArgs {
    /// All of the guest's memory, rounded up to whole LMBs [default: 16G; 8G
    /// with --quick]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_size)]
    memory: Vec<u64>,

    /// How the guest gets its memory
    #[arg(
        long,
        value_enum,
        value_name = "HOW,...",
        value_delimiter = ',',
        default_value = "boot"
    )]
    given: Vec<Given>,

    /// Memory that is there from the start with --given plugged [default: what
    /// the guest needs to plug the rest, in the largest LMB of the sweep]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    boot_memory: Option<u64>,

    /// LMBs that could be added later: so many more in the hotplug window,
    /// which stay empty
    #[arg(
        long,
        value_name = "LMBS,...",
        value_delimiter = ',',
        default_value = "0"
    )]
    empty_lmbs: Vec<u64>,

    #[command(flatten)]
    pub(super) sweep: SweepArgs,
}

/// Options of `lmb bench dlpar`.
#[derive(Args, Debug)]
pub struct DlparArgs {
    /// How much is added and removed [default: 8G; 2G with --quick]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_size)]
    amount: Vec<u64>,

    /// The guest's boot memory [default: what it needs for the amount and the
    /// load, in the largest LMB of the sweep]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_size)]
    memory: Vec<u64>,

    /// What goes on in the guest meanwhile
    #[arg(
        long,
        value_enum,
        value_name = "LOAD,...",
        value_delimiter = ',',
        default_value = "none"
    )]
    load: Vec<Load>,

    /// How much memory a load holds [default: a quarter of the amount]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    load_size: Option<u64>,

    /// The program that makes the load, which goes into the guest's initramfs
    /// [default: lmb-guest-load beside this program]
    #[arg(long, value_name = "PATH")]
    pub(super) load_program: Option<PathBuf>,

    /// Deadline of each add and remove, by the clock of the sweep
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = parse_timeout)]
    timeout: Duration,

    /// How many of add, remove, add, remove each guest does without a load: 3
    /// leaves the second removal out, which is most of the work
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u8).range(1..=4))]
    steps: u8,

    #[command(flatten)]
    pub(super) sweep: SweepArgs,
}

/// What both sweeps take.
#[derive(Args, Clone, Debug)]
pub struct SweepArgs {
    /// LMB sizes, powers of two from 2M to 4G; for other VMMs the size of the
    /// memory device's block [default: 128M,256M,512M,1G,2G,4G;
    /// 128M,512M,2G with --quick]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_size)]
    lmb_size: Vec<u64>,

    /// VMMs to measure; all but lmb-vmm by the programs that are installed
    #[arg(
        long,
        value_enum,
        value_name = "VMM,...",
        value_delimiter = ',',
        default_value = "lmb-vmm"
    )]
    pub(super) vmm: Vec<VmmChoice>,

    /// By what means memory is added and removed: virtio-mem or acpi (each LMB
    /// a device; lmb-vmm). What a kind cannot do is left out, with a line
    #[arg(long, value_name = "KIND,...", value_delimiter = ',', default_value = "virtio-mem",
          value_parser = hotplug)]
    hotplug: Vec<Hotplug>,

    /// vCPUs
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=254))]
    cpus: Vec<u32>,

    /// The guest's own memory block: follow (the LMB), or a power of two from
    /// 128M to 2G (lmb-vmm)
    #[arg(long, value_name = "SIZE|follow,...", value_delimiter = ',', default_value = "follow",
          value_parser = block)]
    guest_block_size: Vec<Block>,

    /// KVM slots of the hotplug window: auto, or a power of two (lmb-vmm,
    /// firecracker)
    #[arg(long, value_name = "SIZE|auto,...", value_delimiter = ',', default_value = "auto",
          value_parser = slot)]
    slot_size: Vec<Slot>,

    /// Host pages behind guest memory: off, thp, 2M or 1G (lmb-vmm)
    #[arg(long, value_name = "KIND,...", value_delimiter = ',', default_value = "thp",
          value_parser = ["off", "thp", "2M", "1G"])]
    hugepages: Vec<String>,

    /// Kernel entry: elf (the bzImage is unpacked on the host) or bzimage (the
    /// guest unpacks itself) (lmb-vmm; QEMU takes bzimage, the others elf)
    #[arg(long, value_name = "ENTRY,...", value_delimiter = ',', default_value = "elf",
          value_parser = ["elf", "bzimage"])]
    kernel_entry: Vec<String>,

    /// The guest's command line
    #[arg(long, value_name = "TEXT", default_value = STOCK_CMDLINE, allow_hyphen_values = true)]
    cmdline: String,

    /// Debian packages of guest kernels [default, without --kernel:
    /// linux-image-cloud-amd64]
    #[arg(long, value_name = "PACKAGE,...", value_delimiter = ',')]
    pub(super) kernel_package: Vec<String>,

    /// Guest kernels of one's own, before those of --kernel-package
    #[arg(long, value_name = "PATH,...", value_delimiter = ',')]
    pub(super) kernel: Vec<PathBuf>,

    /// The lib/modules/VERSION directory of each --kernel, in their order
    /// [default: /lib/modules/VERSION]
    #[arg(
        long,
        value_name = "DIR,...",
        value_delimiter = ',',
        requires = "kernel"
    )]
    pub(super) modules_dir: Vec<PathBuf>,

    /// Measured rounds [default: 5; 2 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: Option<u32>,

    /// Rounds before them, which are saved but not counted
    #[arg(long, value_name = "N", default_value_t = 1)]
    warm_up: u32,

    /// A first table in a few minutes: fewer and smaller sizes, two rounds
    #[arg(long)]
    quick: bool,

    /// Results file [default: lmb-boot-TIME.jsonl or lmb-dlpar-TIME.jsonl here]
    #[arg(long, value_name = "FILE.jsonl")]
    pub(super) out: Option<PathBuf>,

    /// Go on with the last sweep in --out: what it has is not run again
    #[arg(long = "continue", requires = "out")]
    pub(super) go_on: bool,

    /// Put a new sweep behind what --out has
    #[arg(long, conflicts_with = "go_on")]
    pub(super) append: bool,

    /// Print the samples as JSON lines in place of tables
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    pub(super) place: PlaceArgs,
}

/// Where a sweep runs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Where it runs")]
pub struct PlaceArgs {
    /// auto takes this machine's KVM where it can run stock kernels, else the
    /// virtual KVM host
    #[arg(long, value_name = "HOST", value_enum, default_value_t)]
    pub(super) host: HostChoice,

    /// What the virtual host's clock counts [default: instructions]
    #[arg(long, value_enum)]
    pub(super) clock: Option<host::Clock>,

    /// The virtual host's kernel
    #[arg(long, value_name = "PACKAGE", default_value = DEFAULT_KERNEL_PACKAGE)]
    pub(super) host_kernel_package: String,

    /// The virtual host's memory [default: what the sweep's dearest guest needs]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) host_memory: Option<u64>,

    /// CPUs of the virtual host; one by the instruction clock
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) host_cpus: u32,

    /// Wall time after which the virtual host is stopped, at most 24h
    #[arg(long, value_name = "TIME", default_value = "12h", value_parser = parse_timeout)]
    pub(super) host_limit: Duration,

    /// Time a guest may take to boot, by the sweep's clock
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = parse_timeout)]
    pub(super) boot_timeout: Duration,

    /// lmb-vmm [default: beside this program, else in $PATH]
    #[arg(long, value_name = "PATH")]
    pub(super) lmb_vmm: Option<PathBuf>,

    /// QEMU [default: qemu-system-x86_64 in $PATH]
    #[arg(long, value_name = "PATH")]
    pub(super) qemu: Option<PathBuf>,

    /// Firecracker [default: firecracker in $PATH]
    #[arg(long, value_name = "PATH")]
    pub(super) firecracker: Option<PathBuf>,

    /// Cloud Hypervisor [default: cloud-hypervisor in $PATH]
    #[arg(long, value_name = "PATH")]
    pub(super) cloud_hypervisor: Option<PathBuf>,

    /// The guests' /init [default: lmb-guest-agent beside this program]
    #[arg(long, value_name = "PATH")]
    pub(super) agent: Option<PathBuf>,
}

/// A guest block: 0 follows the LMB.
#[derive(Clone, Copy, Debug)]
struct Block(u64);

/// A slot size: 0 is the VMM's choice.
#[derive(Clone, Copy, Debug)]
struct Slot(u64);

fn hotplug(text: &str) -> Result<Hotplug, String> {
    text.parse::<Hotplug>().map_err(|error| error.to_string())
}

fn block(text: &str) -> Result<Block, String> {
    size_or("follow", text).map(Block)
}

fn slot(text: &str) -> Result<Slot, String> {
    size_or("auto", text).map(Slot)
}

fn size_or(word: &str, text: &str) -> Result<u64, String> {
    if text == word {
        return Ok(0);
    }
    parse_size(text).map_err(|error| format!("{error}; or `{word}`"))
}

/// A sweep's values, apart from kernels and VMMs, which must be found first.
#[derive(Clone, Debug)]
pub(super) struct Values {
    pub(super) hotplugs: Vec<Hotplug>,
    pub(super) lmb_sizes: Vec<u64>,
    pub(super) guest_blocks: Vec<u64>,
    pub(super) slot_sizes: Vec<u64>,
    pub(super) cpus: Vec<u32>,
    pub(super) kernel_entries: Vec<String>,
    pub(super) hugepages: Vec<String>,
    pub(super) cmdline: String,
    pub(super) rounds: u32,
    pub(super) warm_up: u32,
}

const MIB: u64 = 1 << 20;
const QUICK_LMBS: [u64; 3] = [128 * MIB, 512 * MIB, 2048 * MIB];
const ALL_LMBS: [u64; 6] = [
    128 * MIB,
    256 * MIB,
    512 * MIB,
    1024 * MIB,
    2048 * MIB,
    4096 * MIB,
];

impl SweepArgs {
    pub(super) fn values(&self) -> Values {
        let lmb_sizes = match (&self.lmb_size[..], self.quick) {
            ([], true) => QUICK_LMBS.to_vec(),
            ([], false) => ALL_LMBS.to_vec(),
            (given, _) => given.to_vec(),
        };
        Values {
            hotplugs: self.hotplug.clone(),
            lmb_sizes,
            guest_blocks: self.guest_block_size.iter().map(|block| block.0).collect(),
            slot_sizes: self.slot_size.iter().map(|slot| slot.0).collect(),
            cpus: self.cpus.clone(),
            kernel_entries: self.kernel_entry.clone(),
            hugepages: self.hugepages.clone(),
            cmdline: self.cmdline.clone(),
            rounds: self.rounds.unwrap_or(if self.quick { 2 } else { 5 }),
            warm_up: self.warm_up,
        }
    }
}

impl BootArgs {
    pub(super) fn measure(&self) -> Measure {
        let default = if self.sweep.quick { 8 << 30 } else { 16 << 30 };
        Measure::Boot {
            memory: or_default(&self.memory, default),
            given: self.given.clone(),
            boot_memory: self.boot_memory,
            empty_lmbs: self.empty_lmbs.clone(),
        }
    }
}

impl DlparArgs {
    pub(super) fn measure(&self) -> Measure {
        let default = if self.sweep.quick { 2 << 30 } else { 8 << 30 };
        Measure::Dlpar {
            amounts: or_default(&self.amount, default),
            memory: self.memory.clone(),
            loads: self.load.clone(),
            load_size: self.load_size,
            timeout_ms: u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX),
            steps: self.steps.into(),
        }
    }

    /// Whether a guest needs the program that makes loads.
    pub(super) fn has_load(&self) -> bool {
        self.load.iter().any(|load| *load != Load::None)
    }
}

fn or_default(given: &[u64], default: u64) -> Vec<u64> {
    if given.is_empty() {
        vec![default]
    } else {
        given.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn parse(words: &str) -> Result<BenchCommand, clap::Error> {
        let all = std::iter::once("bench").chain(words.split_whitespace());
        Line::try_parse_from(all).map(|line| line.bench.command)
    }

    #[test]
    fn the_command_line_is_consistent() {
        Line::command().debug_assert();
    }

    #[test]
    fn lists_and_words_are_taken_apart() {
        let line = "boot --lmb-size 128M,4GiB --guest-block-size follow,2G --slot-size auto,1G \
                    --cpus 1,2 --vmm lmb-vmm,qemu-pc --given boot,plugged --memory 64G --rounds 7 \
                    --hotplug acpi,virtio-mem --empty-lmbs 0,4096";
        let BenchCommand::Boot(args) = parse(line).unwrap() else {
            panic!("not a boot");
        };
        let values = args.sweep.values();
        assert_eq!(values.lmb_sizes, [128 * MIB, 4096 * MIB]);
        assert_eq!(values.guest_blocks, [0, 2048 * MIB]);
        assert_eq!(values.slot_sizes, [0, 1024 * MIB]);
        assert_eq!((values.rounds, values.warm_up), (7, 1));
        assert_eq!(values.hotplugs, [Hotplug::Acpi, Hotplug::VirtioMem]);
        let Measure::Boot {
            memory,
            given,
            empty_lmbs,
            ..
        } = args.measure()
        else {
            panic!("not a boot");
        };
        assert_eq!(memory, [64 << 30]);
        assert_eq!(given, [Given::Boot, Given::Plugged]);
        assert_eq!(empty_lmbs, [0, 4096]);
    }

    #[test]
    fn quick_is_small_and_gives_way_to_what_is_named() {
        let BenchCommand::Dlpar(args) = parse("dlpar --quick --lmb-size 1G").unwrap() else {
            panic!("not a dlpar");
        };
        assert_eq!(args.sweep.values().lmb_sizes, [1024 * MIB]);
        assert_eq!(args.sweep.values().rounds, 2);
        let Measure::Dlpar { amounts, steps, .. } = args.measure() else {
            panic!("not a dlpar");
        };
        assert_eq!((amounts, steps), (vec![2 << 30], 4));
        assert!(!args.has_load());
    }

    #[test]
    fn wrong_lines_are_refused() {
        for line in [
            "",
            "boot --lmb-size big",
            "boot --guest-block-size auto",
            "boot --vmm xen",
            "boot --rounds 0",
            "boot --cpus 0",
            "boot --hotplug dimm",
            "boot --empty-lmbs 1G",
            "dlpar --empty-lmbs 4",
            "boot --continue",
            "boot --out x --continue --append",
            "boot --modules-dir /x",
            "dlpar --load heavy",
            "dlpar --timeout 0",
            "dlpar --steps 0",
            "dlpar --steps 5",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
