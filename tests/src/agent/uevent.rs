//! Kernel uevents, as a netlink datagram carries them: `action@devpath`, then
//! `KEY=value` strings, each ended by a zero byte. Of these only the head of
//! those about memory blocks matters here, so nothing else is looked at.
//!
//! Source: Linux, lib/kobject_uevent.c and drivers/base/memory.c.

/// Where memory-block devices live below /sys.
const MEMORY_DEVICES: &str = "/devices/system/memory/memory";

/// What happened to a memory block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockAction {
    /// The block's device was created; the block is offline.
    Add,
    /// The block's pages are in use by the page allocator.
    Online,
    /// The block's pages left the page allocator.
    Offline,
    /// The block's device is gone.
    Remove,
}

/// A uevent about a memory block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockEvent {
    /// Number of the memory block (its address divided by the block size).
    pub(crate) block: u64,
    /// What happened to it.
    pub(crate) action: BlockAction,
}

/// Reads one datagram; `None` for everything that is not about a memory block
/// appearing, disappearing or changing its state.
pub(crate) fn parse(datagram: &[u8]) -> Option<BlockEvent> {
    let head = datagram.split(|byte| *byte == 0).next()?;
    let (action, path) = std::str::from_utf8(head).ok()?.split_once('@')?;
    let action = match action {
        "add" => BlockAction::Add,
        "online" => BlockAction::Online,
        "offline" => BlockAction::Offline,
        "remove" => BlockAction::Remove,
        _ => return None,
    };
    let block = block_number(path.strip_prefix(MEMORY_DEVICES)?)?;
    Some(BlockEvent { block, action })
}

/// The number behind `memory` in a block's name; `None` for other names.
pub(crate) fn block_number(digits: &str) -> Option<u64> {
    // `parse` alone would take a leading plus sign.
    let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    if all_digits {
        digits.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_the_kernel_sends() {
        let datagram = b"online@/devices/system/memory/memory32\0ACTION=online\0\
            DEVPATH=/devices/system/memory/memory32\0SUBSYSTEM=memory\0SEQNUM=812\0";
        let event = parse(datagram).unwrap();
        assert_eq!(event.block, 32);
        assert_eq!(event.action, BlockAction::Online);
    }

    #[test]
    fn leaves_other_uevents_alone() {
        for datagram in [
            &b"add@/devices/virtual/tty/tty1\0ACTION=add\0"[..],
            b"add@/devices/system/memory\0",
            b"add@/devices/system/memory/memory\0",
            b"add@/devices/system/memory/memory+3\0",
            b"add@/devices/system/memory/memory3/power\0",
            b"add@/devices/system/memory/memory18446744073709551616\0",
            b"change@/devices/system/memory/memory3\0",
            b"bind@/devices/system/memory/memory3\0",
            b"add\0",
            b"@\0",
            b"\0",
            b"",
            b"libudev\0\xfe\xed\xca\xfe",
        ] {
            assert_eq!(parse(datagram), None, "{datagram:?}");
        }
    }

    proptest! {
        #[test]
        fn every_block_of_every_action_is_read(block: u64, which in 0_usize..4, tail: Vec<u8>) {
            let (word, action) = [
                ("add", BlockAction::Add),
                ("online", BlockAction::Online),
                ("offline", BlockAction::Offline),
                ("remove", BlockAction::Remove),
            ][which];
            let mut datagram = format!("{word}@{MEMORY_DEVICES}{block}\0").into_bytes();
            datagram.extend(tail);
            prop_assert_eq!(parse(&datagram), Some(BlockEvent { block, action }));
        }

        #[test]
        fn no_datagram_is_too_odd(datagram: Vec<u8>) {
            // Only a head that names a block may give an event.
            if let Some(event) = parse(&datagram) {
                let text = String::from_utf8_lossy(&datagram).into_owned();
                let name = format!("{MEMORY_DEVICES}{}", event.block);
                prop_assert!(text.contains(&name));
            }
        }
    }
}
