//! ACPI tables of a hardware-reduced platform (ACPI 6.5, 4.1).
//!
//! What stands where: RSDP first (a scan of 0xE0000.. finds it too), then
//! DSDT, FADT, MADT, SRAT and XSDT, each aligned to 16 bytes. Devices are
//! declared in the DSDT; a stock kernel has no other way to find a virtio-mmio
//! device, since its command-line form is compiled out.
//!
//! The memory devices of `--hotplug acpi` have an SSDT of their own, hundreds
//! of kilobytes long where LMBs are thousands, and a status table that the VMM
//! writes while the guest runs. Both stand in a [`TopArea`].

mod dsdt;
mod memory;
mod srat;
#[cfg(test)]
mod tests;

use acpi_tables::Aml;
use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::xsdt::XSDT;
use lmb_devices::acpi_mem::MAX_LMBS;
use lmb_memory::{Hotplug, Layout, MAX_ACPI_LMBS};

use self::memory::MemoryDevices;
use crate::boot::memmap::low_ram_end;
use crate::boot::{ACPI, ACPI_MAX_BYTES, HIGH_START};
use crate::platform;

const OEM_ID: [u8; 6] = *b"LMBVMM";
const OEM_TABLE_ID: [u8; 8] = *b"LMBVMM01";
const OEM_REVISION: u32 = 1;
const PAGE_BYTES: u64 = 4096;

/// FADT IA-PC boot flags (ACPI 6.5, table 5.11): no VGA to probe (bit 2), no
/// CMOS clock (bit 5). Absent bits say: no 8042, no legacy devices.
const IAPC_BOOT_ARCH: u16 = 1 << 2 | 1 << 5;

/// Why the tables cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum AcpiError {
    /// The tables outgrow their place.
    #[error(
        "the ACPI tables need {0} bytes and have room for {max}: use fewer CPUs",
        max = ACPI_MAX_BYTES
    )]
    TooBig(usize),
    /// The memory devices do not fit into low memory.
    #[error(
        "the ACPI tables of {lmbs} LMBs need {needed} bytes of low memory, which has {low_end}: \
         give the guest more --memory"
    )]
    NoRoom {
        /// LMBs of the window.
        lmbs: u32,
        /// Bytes needed.
        needed: u64,
        /// Bytes of low memory.
        low_end: u64,
    },
}

// Layouts and devices agree on how many LMBs there can be.
const _: () = assert!(MAX_ACPI_LMBS == MAX_LMBS as u64);

/// A virtio-mmio device to declare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmioDevice {
    /// First register.
    pub address: u32,
    /// Interrupt, as a global system interrupt.
    pub gsi: u32,
}

/// The top of low RAM, kept from the guest's use: the SSDT of memory devices
/// from [`TopArea::start`], the status table in the last pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopArea {
    /// First guest-physical address, on a page boundary.
    pub start: u64,
    /// End of low RAM.
    pub end: u64,
    /// Guest-physical address of the status table: a byte for each LMB.
    pub status_table: u64,
    /// LMBs that have one.
    pub lmbs: u32,
    /// The SSDT.
    pub table: Vec<u8>,
}

/// All tables of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    /// One image for guest-physical address [`ACPI`].
    pub image: Vec<u8>,
    /// What has no room there.
    pub top: Option<TopArea>,
}

/// Builds all tables.
///
/// # Errors
/// When they have no room where they go.
pub fn build(layout: &Layout, cpus: u32, devices: &[MmioDevice]) -> Result<Tables, AcpiError> {
    let top = top_area(layout)?;
    let mut image = Image::default();
    let rsdp_at = image.reserve(Rsdp::len());
    let dsdt = image.append(&dsdt::build(devices));
    let fadt = image.append(&bytes(&fadt(dsdt)));
    let madt = image.append(&bytes(&madt(cpus)));
    let srat = image.append(&srat::build(layout, cpus));
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    for table in [fadt, madt, srat]
        .into_iter()
        .chain(top.as_ref().map(|top| top.start))
    {
        xsdt.add_entry(table);
    }
    let xsdt = image.append(&bytes(&xsdt));
    let rsdp = bytes(&Rsdp::new(OEM_ID, xsdt));
    image.bytes[rsdp_at..rsdp_at + rsdp.len()].copy_from_slice(&rsdp);
    if image.bytes.len() as u64 > ACPI_MAX_BYTES {
        return Err(AcpiError::TooBig(image.bytes.len()));
    }
    Ok(Tables {
        image: image.bytes,
        top,
    })
}

/// The memory devices' tables, if the window has such devices.
fn top_area(layout: &Layout) -> Result<Option<TopArea>, AcpiError> {
    let Some(window) = layout.window.filter(|_| layout.hotplug == Hotplug::Acpi) else {
        return Ok(None);
    };
    // The layout allows no more than MAX_LMBS.
    let lmbs = u32::try_from(window.lmbs.get()).unwrap_or(MAX_LMBS);
    let end = low_ram_end(layout);
    let no_room = |needed| AcpiError::NoRoom {
        lmbs,
        needed,
        low_end: end,
    };
    let status_bytes = u64::from(lmbs).next_multiple_of(PAGE_BYTES);
    let status_table = end
        .checked_sub(status_bytes)
        .ok_or_else(|| no_room(status_bytes))?;
    let table = memory::build(&MemoryDevices {
        start: window.range.start().get(),
        lmb_bytes: layout.lmb_size.bytes().get(),
        lmbs,
        node: 0,
        status_table,
    });
    let table_bytes = (table.len() as u64).next_multiple_of(PAGE_BYTES);
    let start = status_table
        .checked_sub(table_bytes)
        .filter(|start| *start >= HIGH_START)
        .ok_or_else(|| no_room(status_bytes + table_bytes))?;
    Ok(Some(TopArea {
        start,
        end,
        status_table,
        lmbs,
        table,
    }))
}

/// The tables' bytes, and where the next one goes.
#[derive(Default)]
struct Image {
    bytes: Vec<u8>,
}

impl Image {
    fn reserve(&mut self, size: usize) -> usize {
        let at = self.bytes.len();
        self.bytes.resize((at + size).next_multiple_of(16), 0);
        at
    }

    /// Returns the table's guest-physical address.
    fn append(&mut self, table: &[u8]) -> u64 {
        let at = self.reserve(table.len());
        self.bytes[at..at + table.len()].copy_from_slice(table);
        ACPI + at as u64
    }
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut out = Vec::new();
    table.to_aml_bytes(&mut out);
    out
}

fn io_register(port: u16) -> GAS {
    GAS::new(
        AddressSpace::SystemIo,
        8,
        0,
        AccessSize::ByteAccess,
        u64::from(port),
    )
}

fn fadt(dsdt: u64) -> impl Aml {
    let mut fadt = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION)
        .dsdt_64(dsdt)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup)
        .flag(Flags::Headless)
        // Neither button exists as fixed hardware.
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton)
        .preferred_pm_profile(PmProfile::EnterpriseServer);
    fadt.iapc_boot_arch = IAPC_BOOT_ARCH.into();
    fadt.reset_reg = io_register(platform::RESET_PORT);
    fadt.reset_value = platform::RESET_VALUE;
    fadt.sleep_control_reg = io_register(platform::SLEEP_CONTROL_PORT);
    fadt.sleep_status_reg = io_register(platform::SLEEP_STATUS_PORT);
    fadt.finalize()
}

fn madt(cpus: u32) -> MADT {
    let mut madt = MADT::new(
        OEM_ID,
        OEM_TABLE_ID,
        OEM_REVISION,
        LocalInterruptController::Address(platform::LAPIC_ADDRESS),
    );
    for cpu in 0..cpus {
        // The configuration holds CPUs to 254, the xAPIC's range.
        let id = u8::try_from(cpu).unwrap_or(u8::MAX);
        madt.add_structure(ProcessorLocalApic::new(id, id, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(0, platform::IOAPIC_ADDRESS, 0));
    madt
}
