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

use std::ops::Range;

use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, And, Arg, Device, EISAName, Else, Field, FieldAccessType,
    FieldEntry, FieldLockRule, FieldUpdateRule, If, Interrupt, LessThan, Local, Method, MethodCall,
    Name, NotEqual, Notify, OpRegion, OpRegionSpace, Or, Path, ResourceTemplate, Scope, ShiftLeft,
    ShiftRight, Store, While, ZERO,
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

/// AML that was built before.
struct Built(Vec<u8>);

impl Aml for Built {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        sink.vec(&self.0);
    }
}

/// A name of four characters: a letter and a number.
fn numbered(letter: char, number: u32) -> String {
    format!("{letter}{number:03X}")
}

pub(super) fn build(devices: &MemoryDevices) -> Vec<u8> {
    let mut aml = Vec::new();
    Scope::new(
        Path::new("\\_SB_"),
        vec![&container(devices), &event_device()],
    )
    .to_aml_bytes(&mut aml);
    // 36 is the header; the body follows it.
    let mut table = Sdt::new(*b"SSDT", 36, REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    table.append_slice(&aml);
    table.update_checksum();
    table.as_slice().to_vec()
}

fn built(aml: &dyn Aml) -> Built {
    let mut bytes = Vec::new();
    aml.to_aml_bytes(&mut bytes);
    Built(bytes)
}

fn hid(id: &str) -> Name {
    Name::new(Path::new("_HID"), &EISAName::new(id))
}

fn uid(id: &dyn Aml) -> Name {
    Name::new(Path::new("_UID"), id)
}

/// `\_SB.MHPC`.
fn container(devices: &MemoryDevices) -> Built {
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
    let send = halves(0..groups, GROUP_LMBS, &|number| {
        let path = format!("{CONTAINER_PATH}.{}.SEND", numbered('G', number));
        built(&MethodCall::new(Path::new(&path), vec![&Arg(0), &Arg(1)]))
    });
    let groups: Vec<Built> = (0..groups).map(|number| group(devices, number)).collect();
    let (hid, uid, tell) = (hid(CONTAINER), uid(&"LMBs"), tell());
    let mut children: Vec<&dyn Aml> = vec![&hid, &uid, &registers, &fields, &status, &tell];
    children.extend(groups.iter().map(|group| group as &dyn Aml));
    let send = Method::new(Path::new("SEND"), 2, false, vec![&send]);
    children.push(&send);
    built(&Device::new(Path::new("MHPC"), children))
}

/// Decides by halves of `numbers` which one `Arg0` belongs to, where each
/// stands for `step` LMBs; then does what `leaf` gives for it.
fn halves(numbers: Range<u32>, step: u32, leaf: &dyn Fn(u32) -> Built) -> Built {
    let middle = numbers.start + (numbers.end - numbers.start) / 2;
    if middle == numbers.start {
        return leaf(numbers.start);
    }
    let low = halves(numbers.start..middle, step, leaf);
    let high = halves(middle..numbers.end, step, leaf);
    let first_high = middle * step;
    let mut aml = built(&If::new(&LessThan::new(&Arg(0), &first_high), vec![&low]));
    Else::new(vec![&high]).to_aml_bytes(&mut aml.0);
    aml
}

/// `TELL (LMB, source event, status)`: a report in the form of the OST register.
fn tell() -> Built {
    let low_byte = |arg| built(&And::new(&ZERO, &Arg(arg), &0xff_u8));
    let (source, status) = (low_byte(1), low_byte(2));
    let source = ShiftLeft::new(&Local(0), &source, &16_u8);
    let status = ShiftLeft::new(&Local(1), &status, &24_u8);
    let lmb_and_source = Or::new(&ZERO, &Arg(0), &Local(0));
    let report = Or::new(&ZERO, &lmb_and_source, &Local(1));
    let register = Path::new("RPRT");
    let write = Store::new(&register, &report);
    built(&Method::new(
        Path::new("TELL"),
        3,
        false,
        vec![&source, &status, &write],
    ))
}

/// `\_SB.MHPC.Gnnn`.
fn group(devices: &MemoryDevices, number: u32) -> Built {
    let first = number * GROUP_LMBS;
    let lmbs = first..devices.lmbs.min(first + GROUP_LMBS);
    let send = halves(lmbs.clone(), 1, &|lmb| {
        built(&Notify::new(&Path::new(&numbered('L', lmb)), &Arg(1)))
    });
    let mut children = Vec::new();
    for child in [
        &hid(CONTAINER) as &dyn Aml,
        &uid(&number),
        &Name::new(Path::new("_PXM"), &devices.node),
        &Method::new(Path::new("SEND"), 2, false, vec![&send]),
    ] {
        child.to_aml_bytes(&mut children);
    }
    for number in lmbs {
        lmb(devices, number).to_aml_bytes(&mut children);
    }
    let name = numbered('G', number);
    built(&Device::new(Path::new(&name), vec![&Built(children)]))
}

/// `\_SB.MHPC.Gnnn.Lnnn`.
fn lmb(devices: &MemoryDevices, number: u32) -> Built {
    // The layout keeps the window below 2^63.
    let start = devices.start + u64::from(number) * devices.lmb_bytes;
    let end = start + (devices.lmb_bytes - 1);
    let range = AddressSpace::new_memory(
        AddressSpaceCacheable::Cacheable,
        true,
        start,
        end,
        None::<u64>,
    );
    let mut status = vec![FieldEntry::Named(*b"_STA", 8)];
    if number > 0 {
        status.insert(0, FieldEntry::Reserved(number as usize * 8));
    }
    built(&Device::new(
        Path::new(&numbered('L', number)),
        vec![
            &hid(MEMORY),
            &uid(&number),
            &Name::new(Path::new("_CRS"), &ResourceTemplate::new(vec![&range])),
            &Field::new(
                Path::new("STAT"),
                FieldAccessType::Byte,
                FieldLockRule::NoLock,
                FieldUpdateRule::Preserve,
                status,
            ),
            &Method::new(
                Path::new("_EJ0"),
                1,
                false,
                vec![&Store::new(&Path::new("EJCT"), &number)],
            ),
            &Method::new(
                Path::new("_OST"),
                3,
                false,
                vec![&MethodCall::new(
                    Path::new("TELL"),
                    vec![&number, &Arg(0), &Arg(1)],
                )],
            ),
        ],
    ))
}

/// `\_SB.GEVT`: reads notices until none is left, which lowers the interrupt.
fn event_device() -> Built {
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
    built(&Device::new(
        Path::new("GEVT"),
        vec![
            &Name::new(Path::new("_HID"), &EVENT_DEVICE),
            &uid(&0_u8),
            &Name::new(Path::new("_CRS"), &ResourceTemplate::new(vec![&interrupt])),
            &Method::new(Path::new("_EVT"), 1, true, vec![&take, &all]),
        ],
    ))
}
