//! What a guest says of itself: its memory block, how many there are, and the
//! memory driver's mode. Read by its shell after everything that is measured
//! of a boot, once for each configuration.

use anyhow::Result;

use super::driver::Vm;
use super::sample::Guest;
use crate::output::printable;

/// Most kernel lines kept of a guest.
const LINES: usize = 24;
const LINE_CHARS: usize = 200;

/// Asks the guest, whose shell is open.
pub(super) fn ask(vm: &mut dyn Vm) -> Result<Guest> {
    let block = vm.run("cat /sys/devices/system/memory/block_size_bytes")?;
    let count = vm.run("ls -d /sys/devices/system/memory/memory[0-9]* | wc -l")?;
    // The driver names its device `virtio_mem virtioN:`.
    let lines = vm.run("dmesg | grep -i 'virtio_mem'")?;
    Ok(read(&block, &count, &lines))
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
