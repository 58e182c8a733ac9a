//! The boot-mark device as a guest sees it: sixteen I/O ports, reached through
//! /dev/port so that no kernel module is needed.
//!
//! A mark is one write of nine bytes: a code, at which the host takes its
//! stamp, and eight bytes of value, little-endian. A read of the same nine
//! bytes gives a presence byte and how much hotplugged memory the guest is
//! meant to have. Each byte costs an exit to the VMM, so both are used rarely.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// First of the device's I/O ports.
const PORT_BASE: u64 = 0x520;
/// What a read of the first port gives where the device exists ('L').
const PRESENT: u8 = 0x4c;
/// Bytes of a mark: code and value.
const MARK_BYTES: usize = 9;

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The guest's init runs.
    Init,
    /// The hotplug driver is loaded.
    DriverLoaded,
    /// The wanted hotplugged memory is online; found by an event.
    Usable,
    /// The same, found by looking, so that the stamp may be late.
    UsableLate,
}

impl Mark {
    const fn code(self) -> u8 {
        match self {
            Self::Init => 2,
            Self::DriverLoaded => 3,
            Self::Usable => 4,
            Self::UsableLate => 5,
        }
    }
}

fn encode(mark: Mark, value: u64) -> [u8; MARK_BYTES] {
    let mut bytes = [0; MARK_BYTES];
    bytes[0] = mark.code();
    bytes[1..].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn decode(bytes: [u8; MARK_BYTES]) -> Option<u64> {
    let (first, rest) = bytes.split_first()?;
    let value = <[u8; 8]>::try_from(rest).ok()?;
    (*first == PRESENT).then_some(u64::from_le_bytes(value))
}

/// The device, in a guest that has it.
#[derive(Debug)]
pub(crate) struct Marks {
    ports: File,
}

impl Marks {
    /// Opens the device. `Ok(None)` where another VMM runs this guest: there
    /// nothing may be written to ports that could be somebody else's.
    ///
    /// # Errors
    /// When /dev/port cannot be opened or read (no devtmpfs, a locked-down
    /// kernel).
    pub(crate) fn open() -> io::Result<Option<Self>> {
        let ports = File::options().read(true).write(true).open("/dev/port")?;
        let mut presence = [0];
        ports.read_exact_at(&mut presence, PORT_BASE)?;
        Ok((presence == [PRESENT]).then_some(Self { ports }))
    }

    /// Writes a mark: one system call, so that nothing comes between.
    ///
    /// # Errors
    /// When the kernel refuses the write.
    pub(crate) fn write(&self, mark: Mark, value: u64) -> io::Result<()> {
        self.ports.write_all_at(&encode(mark, value), PORT_BASE)
    }

    /// Bytes of hotplugged memory that the guest is meant to have.
    ///
    /// # Errors
    /// When the kernel refuses the read or the device is gone.
    pub(crate) fn target_bytes(&self) -> io::Result<u64> {
        let mut bytes = [0; MARK_BYTES];
        self.ports.read_exact_at(&mut bytes, PORT_BASE)?;
        decode(bytes).ok_or_else(|| io::Error::other("the boot-mark device no longer answers"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_its_code_and_a_little_endian_value() {
        assert_eq!(
            encode(Mark::Usable, 0x0102_0304_0506_0708),
            [4, 8, 7, 6, 5, 4, 3, 2, 1]
        );
        assert_eq!(encode(Mark::Init, 0), [2, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encode(Mark::DriverLoaded, 1)[0], 3);
        assert_eq!(encode(Mark::UsableLate, 1)[0], 5);
    }

    #[test]
    fn a_target_counts_only_where_the_device_is() {
        assert_eq!(decode([0x4c, 0, 0, 0, 0x40, 0, 0, 0, 0]), Some(1 << 30));
        assert_eq!(decode([0xff; MARK_BYTES]), None);
        assert_eq!(decode([0; MARK_BYTES]), None);
    }
}
