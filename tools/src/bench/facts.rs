//! What a guest says of itself: its memory block, how many there are, and the
//! memory driver's mode. Read by its shell after everything that is measured
//! of a boot, once for each configuration.
//!
//! Where LMBs are ACPI devices there is no driver. There the guest says whether
//! its memory blocks are to hold their own description, and what MemTotal
//! gained by an add shows whether they do.

use anyhow::Result;
use lmb_memory::Hotplug;

use super::driver::Vm;
use super::runner::meminfo_bytes;
use super::sample::{Config, Guest};
use crate::output::printable;

/// Most kernel lines kept of a guest.
const LINES: usize = 24;
const LINE_CHARS: usize = 200;

const COUNT: &str = "ls -d /sys/devices/system/memory/memory[0-9]* | wc -l";

/// Asks the guest, whose shell is open.
pub(super) fn ask(vm: &mut dyn Vm, config: &Config) -> Result<Guest> {
    let block = vm.run("cat /sys/devices/system/memory/block_size_bytes")?;
    let count = vm.run(COUNT)?;
    if is_acpi(config) {
        let parameter = vm.run("cat /sys/module/memory_hotplug/parameters/memmap_on_memory")?;
        return Ok(Guest {
            driver_mode: Some(config.hotplug.clone()),
            memmap_on_memory: word(&parameter),
            ..read(&block, &count, "")
        });
    }
    // The driver names its device `virtio_mem virtioN:`.
    let lines = vm.run("dmesg | grep -i 'virtio_mem'")?;
    Ok(read(&block, &count, &lines))
}

/// Whether the configuration's LMBs are ACPI devices.
pub(super) fn is_acpi(config: &Config) -> bool {
    config.hotplug == Hotplug::Acpi.name()
}

/// A guest's memory as it stands: MemTotal, and how many memory blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    total_bytes: u64,
    blocks: u64,
}

impl Memory {
    /// Asks the guest, whose shell is open. `None` where it makes no sense.
    pub(super) fn ask(vm: &mut dyn Vm) -> Result<Option<Self>> {
        let meminfo = vm.run("cat /proc/meminfo")?;
        let count = vm.run(COUNT)?;
        Ok(Self::read(&meminfo, &count))
    }

    fn read(meminfo: &str, count: &str) -> Option<Self> {
        Some(Self {
            total_bytes: meminfo_bytes(meminfo, "MemTotal")?,
            blocks: count.trim().parse().ok()?,
        })
    }

    /// What each block that has come since `before` added to MemTotal.
    pub(super) fn per_block_bytes(self, before: Self) -> Option<u64> {
        let gained = self.total_bytes.checked_sub(before.total_bytes)?;
        gained.checked_div(self.blocks.checked_sub(before.blocks)?)
    }
}

/// A short answer of one word.
fn word(text: &str) -> Option<String> {
    let text = printable(text.trim());
    let single = !text.is_empty() && text.len() <= 16 && !text.contains(char::is_whitespace);
    single.then_some(text)
}

fn read(block: &str, count: &str, lines: &str) -> Guest {
    let lines: Vec<String> = lines
        .lines()
        .take(LINES)
        .map(|line| printable(line.trim()).chars().take(LINE_CHARS).collect())
        .collect();
    Guest {
        block_size_bytes: u64::from_str_radix(block.trim(), 16).ok(),
        memory_blocks: count.trim().parse().ok(),
        driver_mode: mode(&lines),
        lines,
        ..Guest::default()
    }
}

/// The driver prints the size of its sub-blocks or of its big blocks
/// (drivers/virtio/virtio_mem.c, `virtio_mem_init`).
fn mode(lines: &[String]) -> Option<String> {
    let says = |words: [&str; 2]| {
        lines
            .iter()
            .any(|line| words.iter().any(|word| line.contains(word)))
    };
    let name = if says(["subblock size", "sub-block size"]) {
        "sub-block"
    } else if says(["bigblock size", "big block size"]) {
        "big-block"
    } else {
        return None;
    };
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES_OF_6_1: &str = "\
[    0.9] virtio_mem virtio0: start address: 0x100000000
[    0.9] virtio_mem virtio0: region size: 0x100000000
[    0.9] virtio_mem virtio0: device block size: 0x10000000
[    0.9] virtio_mem virtio0: memory block size: 0x8000000
";

    #[test]
    fn the_mode_is_what_the_driver_names() {
        let sub = format!("{LINES_OF_6_1}[    0.9] virtio_mem virtio0: subblock size: 0x400000\n");
        let guest = read("8000000\n", "9\n", &sub);
        assert_eq!(guest.block_size_bytes, Some(128 << 20));
        assert_eq!(guest.memory_blocks, Some(9));
        assert_eq!(guest.driver_mode.as_deref(), Some("sub-block"));
        assert_eq!(guest.lines.len(), 5);
        let big =
            format!("{LINES_OF_6_1}[    0.9] virtio_mem virtio0: big block size: 0x10000000\n");
        assert_eq!(read("", "", &big).driver_mode.as_deref(), Some("big-block"));
    }

    #[test]
    fn what_a_block_adds_shows_whether_it_describes_itself() {
        let at = |kib: u64, blocks: u64| {
            Memory::read(&format!("MemTotal: {kib} kB\n"), &format!("{blocks}\n")).unwrap()
        };
        let before = at(1_000_000, 8);
        let mib = 1024;
        let plain = at(1_000_000 + 4 * 128 * mib, 12);
        assert_eq!(plain.per_block_bytes(before), Some(128 << 20));
        let holding = at(1_000_000 + 4 * 126 * mib, 12);
        assert_eq!(holding.per_block_bytes(before), Some(126 << 20));
        assert_eq!(before.per_block_bytes(before), None);
        assert_eq!(before.per_block_bytes(plain), None);
        assert_eq!(Memory::read("", "8"), None);
    }

    #[test]
    fn a_parameter_is_one_word() {
        assert_eq!(word("Y\n").as_deref(), Some("Y"));
        assert_eq!(word("force\n").as_deref(), Some("force"));
        for text in ["", "\n", "cat: can't open", &"x".repeat(17)] {
            assert_eq!(word(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_guest_that_says_nothing_or_nonsense_is_taken_as_it_is() {
        assert_eq!(read("", "", ""), Guest::default());
        let noise = read(
            "zz",
            "-1",
            &format!("\u{1b}[31m{}\n", "x".repeat(5000)).repeat(100),
        );
        assert_eq!((noise.block_size_bytes, noise.memory_blocks), (None, None));
        assert_eq!(noise.lines.len(), LINES);
        assert!(
            noise
                .lines
                .iter()
                .all(|line| line.chars().count() <= LINE_CHARS)
        );
        assert!(!noise.lines[0].contains('\u{1b}'));
    }
}
