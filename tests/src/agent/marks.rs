//! The boot-mark device as a guest sees it: nine I/O ports, used from user
//! space so that no kernel module is needed.
//!
//! A mark is a write of nine bytes in order: a code, at which the host takes
//! its stamp, and eight bytes of value, little-endian. A read of the same nine
//! bytes in order gives a presence byte, at which the rest is latched, and how
//! much hotplugged memory the guest is meant to have. Each byte costs an exit
//! to the VMM, so both are used rarely.
//!
//! Where another VMM is measured it may offer the first port alone, as a plain
//! debug port with the same presence byte. It takes codes and knows no target,
//! which reads as all ones then; so each memory block that comes or goes is a
//! code of its own, and who measures counts them.
//!
//! Where it offers no port, the kernel command line says `lmb.marks=console`, and
//! each code is a byte on the console, plus [`ON_CONSOLE`]: bytes that no UTF-8
//! has, so that they are told from text.

use std::fs::File;
use std::io::{self, Read, Write};

use crate::sys::Ports;

/// First of the device's I/O ports.
const PORT_BASE: u16 = 0x520;
/// ACPI's device table, by whose maker a guest knows its VMM.
const DSDT: &str = "/sys/firmware/acpi/tables/DSDT";
/// OEMID in a table's header (ACPI 6.5, 5.2.6) and what it is with lmb-vmm.
const OEM_ID: std::ops::Range<usize> = 10..16;
const OEM: &[u8] = b"LMBVMM";
/// What a read of the first port gives where the device exists ('L').
const PRESENT: u8 = 0x4c;
/// Bytes of a mark: code and value, one for each port.
const MARK_BYTES: usize = 9;
const PORTS: u16 = 9;
/// A mark's byte on the console, less its code.
const ON_CONSOLE: u8 = 0xf8;

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
    /// A memory block came online, under a VMM that knows no target.
    BlockOnline,
    /// A memory block is gone, under a VMM that knows no target.
    BlockGone,
}

impl Mark {
    const fn code(self) -> u8 {
        match self {
            Self::Init => 2,
            Self::DriverLoaded => 3,
            Self::Usable => 4,
            Self::UsableLate => 5,
            Self::BlockOnline => 6,
            Self::BlockGone => 7,
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

/// Where marks go.
#[derive(Debug)]
pub(crate) enum Marks {
    /// To the device, in a guest that has it.
    Device(Ports),
    /// To the console.
    Console(File),
}

impl Marks {
    /// Opens the device; /sys must be there. `Ok(None)` where another VMM runs
    /// this guest: there no port is touched, which could be somebody else's.
    ///
    /// # Errors
    /// When the kernel gives user space no I/O ports.
    pub(crate) fn open() -> io::Result<Option<Self>> {
        if !made_by_lmb_vmm() {
            return Ok(None);
        }
        let ports = Ports::open(PORT_BASE, PORTS)?;
        Ok((ports.read(0) == PRESENT).then_some(Self::Device(ports)))
    }

    /// Opens the console; /dev must be there.
    ///
    /// # Errors
    /// When the guest has no console.
    pub(crate) fn on_console() -> io::Result<Self> {
        let console = File::options().write(true).open("/dev/console")?;
        Ok(Self::Console(console))
    }

    /// Writes a mark.
    pub(crate) fn write(&self, mark: Mark, value: u64) {
        match self {
            Self::Device(ports) => {
                for (offset, byte) in (0..PORTS).zip(encode(mark, value)) {
                    ports.write(offset, byte);
                }
            }
            Self::Console(_) => self.write_code(mark),
        }
    }

    /// Writes a mark without a value: one exit, where there is a device.
    pub(crate) fn write_code(&self, mark: Mark) {
        match self {
            Self::Device(ports) => ports.write(0, mark.code()),
            Self::Console(console) => {
                let mut console = console;
                // Nobody else could be told.
                let _ = console.write_all(&[ON_CONSOLE + mark.code()]);
            }
        }
    }

    /// Whether the VMM knows how much memory the guest is meant to have.
    pub(crate) fn know_target(&self) -> bool {
        matches!(self, Self::Device(_)) && self.target_bytes() != Some(u64::MAX)
    }

    /// Bytes of hotplugged memory that the guest is meant to have; `None` when
    /// no device answers.
    pub(crate) fn target_bytes(&self) -> Option<u64> {
        let Self::Device(ports) = self else {
            return None;
        };
        let mut bytes = [0; MARK_BYTES];
        for (offset, byte) in (0..PORTS).zip(&mut bytes) {
            *byte = ports.read(offset);
        }
        decode(bytes)
    }
}

fn made_by_lmb_vmm() -> bool {
    let mut header = [0; OEM_ID.end];
    File::open(DSDT)
        .and_then(|mut table| table.read_exact(&mut header))
        .is_ok_and(|()| header[OEM_ID] == *OEM)
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
        assert_eq!(Mark::BlockOnline.code(), 6);
        assert_eq!(Mark::BlockGone.code(), 7);
    }

    #[test]
    fn a_target_counts_only_where_the_device_is() {
        assert_eq!(decode([0x4c, 0, 0, 0, 0x40, 0, 0, 0, 0]), Some(1 << 30));
        assert_eq!(decode([0xff; MARK_BYTES]), None);
        assert_eq!(decode([0; MARK_BYTES]), None);
    }
}
