//! SSDT of `--hotplug acpi`: a memory device for each LMB of the window, and
//! the event device that tells them of changes (the registers are those of
//! lmb_devices::acpi_mem).
//!
//! ```text
//! Device (\_SB.MHPC)                 container of the registers and devices
//!   OperationRegion (REGS, SystemIO, …)       NEXT, EJCT, RPRT
//!   OperationRegion (STAT, SystemMemory, …)   a byte for each LMB
//!   Method (SEND, 2)                 Notify LMB Arg0 with Arg1
//!   Method (TELL, 3)                 report on LMB Arg0
//!   Device (G000)                    64 LMBs, and their node (_PXM)
//!     Method (SEND, 2)               the same within these 64
//!     Device (L000)                  an LMB: _HID, _UID, _CRS, _STA, _EJ0, _OST
//!     …
//! Device (\_SB.GEVT)                 generic event device: _CRS, _EVT
//! ```
//!
//! What makes it fast where thousands of LMBs are empty: ACPICA looks a name up
//! by walking its scope, so no scope has more than 64 devices. `_STA` is a
//! field, which is read without running a method and, being a byte of memory,
//! without leaving the guest. `SEND` decides by halves, so a notice costs a
//! dozen comparisons and not one for each LMB. `_PXM` stands in the groups: a
//! device without it belongs where its parent does (ACPI 6.5, 6.2.15).
//!
//! By the instruction clock 4,096 empty LMBs add 1.1 s to a boot of Linux 6.1
//! that takes 1.6 s without. All in one scope they add 5.8 s, with a method for
//! `_STA` 1.4 s. Linux itself takes 0.7 s of it for devices that have a name and
//! nothing else, and 0.2 s for being told by `_EJ0` that they can be ejected.

use std::ops::Range;

use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, And, Arg, EISAName, Field, FieldAccessType, FieldEntry,
    FieldLockRule, FieldUpdateRule, Interrupt, LessThan, Local, MethodCall, NotEqual, Notify,
    OpRegion, OpRegionSpace, Or, Path, ResourceTemplate, ShiftLeft, ShiftRight, Store, While, ZERO,
};
use acpi_tables::sdt::Sdt;
use acpi_tables::{Aml, AmlSink};
use lmb_devices::acpi_mem::{self, NO_NOTICE};

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID};
use crate::platform;

/// Revision 2 and later: integers are 64 bits wide.
const REVISION: u8 = 2;
/// LMBs in one group's scope.
const GROUP_LMBS: u32 = 64;
/// About how many bytes the table takes, and an LMB in it.
const TABLE_BYTES: usize = 1024;
const LMB_BYTES: usize = 150;
/// Linux's container and memory devices
/// (drivers/acpi/{container,acpi_memhotplug}.c).
const CONTAINER: &str = "PNP0A06";
const MEMORY: &str = "PNP0C80";
/// Generic event device (drivers/acpi/evged.c).
const EVENT_DEVICE: &str = "ACPI0013";
/// Where registers and devices are. A method calls into it by the whole path:
/// its own scope is below its device's.
const CONTAINER_PATH: &str = "\\_SB_.MHPC";

/// A window as its memory devices show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryDevices {
    /// Guest-physical address of the first LMB.
    pub(super) start: u64,
    /// Size of an LMB.
    pub(super) lmb_bytes: u64,
    /// LMBs, at most [`acpi_mem::MAX_LMBS`].
    pub(super) lmbs: u32,
    /// Proximity domain.
    pub(super) node: u32,
    /// Guest-physical address of the status table, a byte for each LMB.
    pub(super) status_table: u64,
}

pub(super) fn build(devices: &MemoryDevices) -> Vec<u8> {
    // 36 is the header; the body follows it.
    let header = Sdt::new(*b"SSDT", 36, REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    let mut table = Vec::with_capacity(TABLE_BYTES + devices.lmbs as usize * LMB_BYTES);
    table.extend_from_slice(header.as_slice());
    package(&mut table, SCOPE, |out| {
        Path::new("\\_SB_").to_aml_bytes(out);
        container(out, devices);
        event_device(out);
    });
    complete(&mut table);
    table
}

/// Writes a table's length and checksum into its header (ACPI 6.5, 5.2.6).
fn complete(table: &mut [u8]) {
    let length = u32::try_from(table.len()).unwrap_or(u32::MAX);
    table[4..8].copy_from_slice(&length.to_le_bytes());
    table[9] = 0;
    let sum = table.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    table[9] = sum.wrapping_neg();
}

/// A name of one segment.
#[derive(Clone, Copy)]
struct Segment([u8; 4]);

impl Segment {
    /// A letter and three hexadecimal digits.
    fn numbered(letter: u8, number: u32) -> Self {
        let digit = |shift: u32| b"0123456789ABCDEF"[(number >> shift & 0xf) as usize];
        Self([letter, digit(8), digit(4), digit(0)])
    }

    fn as_str(&self) -> &str {
        // Letters and digits are text.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl Aml for Segment {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        sink.vec(&self.0);
    }
}

/// Opcodes of what is written without the crate's types.
const NAME: &[u8] = &[0x08];
const METHOD: &[u8] = &[0x14];
const DEVICE: &[u8] = &[0x5b, 0x82];
const SCOPE: &[u8] = &[0x10];
const IF: &[u8] = &[0xa0];
const ELSE: &[u8] = &[0xa1];

/// Flag of a method beside its number of arguments.
const SERIALIZED: u8 = 1 << 3;

/// Writes a package in place: its opcode, its length and what `body` writes.
///
/// The crate's types allocate and copy each part once a level. For thousands
/// of LMBs that took longer than all other preparation of a boot.
fn package(out: &mut Vec<u8>, opcode: &[u8], body: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(opcode);
    let start = out.len();
    body(out);
    let (field, bytes) = package_length(out.len() - start);
    out.splice(start..start, field.into_iter().take(bytes));
}

/// The length field of a package with a body of this size, and how many bytes
/// of it count. It includes itself (ACPI 6.5, 20.2.4).
fn package_length(body_bytes: usize) -> ([u8; 4], usize) {
    // A table of more than 256 MiB does not come about.
    let body_bytes = u32::try_from(body_bytes).unwrap_or(u32::MAX >> 4);
    let more = match body_bytes {
        0..=0x3e => return ((body_bytes + 1).to_le_bytes(), 1),
        0x3f..=0xffd => 1,
        0xffe..=0xf_fffc => 2,
        _ => 3,
    };
    let length = body_bytes + 1 + more;
    let field = (length >> 4) << 8 | more << 6 | length & 0xf;
    (field.to_le_bytes(), 1 + more as usize)
}

fn method(out: &mut Vec<u8>, name: &[u8; 4], flags: u8, body: impl FnOnce(&mut Vec<u8>)) {
    package(out, METHOD, |out| {
        out.extend_from_slice(name);
        out.push(flags);
        body(out);
    });
}

fn named(out: &mut Vec<u8>, name: &[u8; 4], value: &dyn Aml) {
    out.extend_from_slice(NAME);
    out.extend_from_slice(name);
    value.to_aml_bytes(out);
}

/// `\_SB.MHPC`.
fn container(out: &mut Vec<u8>, devices: &MemoryDevices) {
    let registers = OpRegion::new(
        Path::new("REGS"),
        OpRegionSpace::SystemIO,
        &platform::ACPI_MEM_PORT,
        &acpi_mem::PORT_COUNT,
    );
    let register = |name: &[u8; 4]| FieldEntry::Named(*name, 32);
    // In the order of their offsets.
    let fields = Field::new(
        Path::new("REGS"),
        FieldAccessType::DWord,
        FieldLockRule::NoLock,
        FieldUpdateRule::WriteAsZeroes,
        vec![register(b"NEXT"), register(b"EJCT"), register(b"RPRT")],
    );
    let status = OpRegion::new(
        Path::new("STAT"),
        OpRegionSpace::SystemMemory,
        &devices.status_table,
        &devices.lmbs,
    );
    let groups = devices.lmbs.div_ceil(GROUP_LMBS);
    package(out, DEVICE, |out| {
        out.extend_from_slice(b"MHPC");
        named(out, b"_HID", &EISAName::new(CONTAINER));
        named(out, b"_UID", &"LMBs");
        registers.to_aml_bytes(out);
        fields.to_aml_bytes(out);
        status.to_aml_bytes(out);
        tell(out);
        for number in 0..groups {
            group(out, devices, number);
        }
        method(out, b"SEND", 2, |out| {
            halves(out, 0..groups, GROUP_LMBS, &|out, number| {
                let group = Segment::numbered(b'G', number);
                let path = format!("{CONTAINER_PATH}.{}.SEND", group.as_str());
                MethodCall::new(Path::new(&path), vec![&Arg(0), &Arg(1)]).to_aml_bytes(out);
            });
        });
    });
}

/// Decides by halves of `numbers` which one `Arg0` belongs to, where each
/// stands for `step` LMBs; then does what `leaf` writes for it.
fn halves(out: &mut Vec<u8>, numbers: Range<u32>, step: u32, leaf: &dyn Fn(&mut Vec<u8>, u32)) {
    let middle = numbers.start + (numbers.end - numbers.start) / 2;
    if middle == numbers.start {
        return leaf(out, numbers.start);
    }
    package(out, IF, |out| {
        LessThan::new(&Arg(0), &(middle * step)).to_aml_bytes(out);
        halves(out, numbers.start..middle, step, leaf);
    });
    package(out, ELSE, |out| {
        halves(out, middle..numbers.end, step, leaf);
    });
}

/// `TELL (LMB, source event, status)`: a report in the form of the OST register.
fn tell(out: &mut Vec<u8>) {
    method(out, b"TELL", 3, |out| {
        let source = And::new(&ZERO, &Arg(1), &0xff_u8);
        let status = And::new(&ZERO, &Arg(2), &0xff_u8);
        let source = ShiftLeft::new(&ZERO, &source, &16_u8);
        let status = ShiftLeft::new(&ZERO, &status, &24_u8);
        let both = Or::new(&ZERO, &source, &status);
        let report = Or::new(&ZERO, &Arg(0), &both);
        Store::new(&Segment(*b"RPRT"), &report).to_aml_bytes(out);
    });
}

/// `\_SB.MHPC.Gnnn`.
fn group(out: &mut Vec<u8>, devices: &MemoryDevices, number: u32) {
    let first = number * GROUP_LMBS;
    let lmbs = first..devices.lmbs.min(first + GROUP_LMBS);
    let memory_id = EISAName::new(MEMORY);
    package(out, DEVICE, |out| {
        Segment::numbered(b'G', number).to_aml_bytes(out);
        named(out, b"_HID", &EISAName::new(CONTAINER));
        named(out, b"_UID", &number);
        named(out, b"_PXM", &devices.node);
        for number in lmbs.clone() {
            lmb(out, devices, number, &memory_id);
        }
        method(out, b"SEND", 2, |out| {
            halves(out, lmbs, 1, &|out, lmb| {
                Notify::new(&Segment::numbered(b'L', lmb), &Arg(1)).to_aml_bytes(out);
            });
        });
    });
}

/// `\_SB.MHPC.Gnnn.Lnnn`.
fn lmb(out: &mut Vec<u8>, devices: &MemoryDevices, number: u32, id: &EISAName) {
    // The layout keeps the window below 2^63.
    let start = devices.start + u64::from(number) * devices.lmb_bytes;
    let range = AddressSpace::new_memory(
        AddressSpaceCacheable::Cacheable,
        true,
        start,
        start + (devices.lmb_bytes - 1),
        None::<u64>,
    );
    let mut status = vec![FieldEntry::Named(*b"_STA", 8)];
    if number > 0 {
        status.insert(0, FieldEntry::Reserved(number as usize * 8));
    }
    let status = Field::new(
        Path::new("STAT"),
        FieldAccessType::Byte,
        FieldLockRule::NoLock,
        FieldUpdateRule::Preserve,
        status,
    );
    package(out, DEVICE, |out| {
        Segment::numbered(b'L', number).to_aml_bytes(out);
        named(out, b"_HID", id);
        named(out, b"_UID", &number);
        named(out, b"_CRS", &ResourceTemplate::new(vec![&range]));
        status.to_aml_bytes(out);
        method(out, b"_EJ0", 1, |out| {
            Store::new(&Segment(*b"EJCT"), &number).to_aml_bytes(out);
        });
        method(out, b"_OST", 3, |out| {
            MethodCall::new(Path::new("TELL"), vec![&number, &Arg(0), &Arg(1)]).to_aml_bytes(out);
        });
    });
}

/// `\_SB.GEVT`: reads notices until none is left, which lowers the interrupt.
fn event_device(out: &mut Vec<u8>) {
    let next = Path::new(&format!("{CONTAINER_PATH}.NEXT"));
    let take = Store::new(&Local(0), &next);
    let lmb = And::new(&ZERO, &Local(0), &0xffff_u16);
    let value = ShiftRight::new(&ZERO, &Local(0), &16_u8);
    let send = MethodCall::new(
        Path::new(&format!("{CONTAINER_PATH}.SEND")),
        vec![&lmb, &value],
    );
    let pending = NotEqual::new(&Local(0), &NO_NOTICE);
    let all = While::new(&pending, vec![&send, &take]);
    let interrupt = Interrupt::new(true, false, false, false, platform::ACPI_MEM_GSI);
    package(out, DEVICE, |out| {
        out.extend_from_slice(b"GEVT");
        named(out, b"_HID", &EVENT_DEVICE);
        named(out, b"_UID", &0_u8);
        named(out, b"_CRS", &ResourceTemplate::new(vec![&interrupt]));
        method(out, b"_EVT", 1 | SERIALIZED, |out| {
            take.to_aml_bytes(out);
            all.to_aml_bytes(out);
        });
    });
}
