//! ACPI tables of a hardware-reduced platform (ACPI 6.5, 4.1).
//!
//! What stands where: RSDP first (a scan of 0xE0000.. finds it too), then
//! DSDT, FADT, MADT, SRAT and XSDT, each aligned to 16 bytes. Devices are
//! declared in the DSDT; a stock kernel has no other way to find a virtio-mmio
//! device, since its command-line form is compiled out.

mod dsdt;
mod srat;

use acpi_tables::Aml;
use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::xsdt::XSDT;
use lmb_memory::Layout;

use crate::boot::{ACPI, ACPI_MAX_BYTES};
use crate::platform;

const OEM_ID: [u8; 6] = *b"LMBVMM";
const OEM_TABLE_ID: [u8; 8] = *b"LMBVMM01";
const OEM_REVISION: u32 = 1;

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
}

/// A virtio-mmio device to declare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmioDevice {
    /// First register.
    pub address: u32,
    /// Interrupt, as a global system interrupt.
    pub gsi: u32,
}

/// Builds all tables as one image for guest-physical address [`ACPI`].
///
/// # Errors
/// When the image has no room there.
pub fn build(layout: &Layout, cpus: u32, devices: &[MmioDevice]) -> Result<Vec<u8>, AcpiError> {
    let mut image = Image::default();
    let rsdp_at = image.reserve(Rsdp::len());
    let dsdt = image.append(&dsdt::build(devices));
    let fadt = image.append(&bytes(&fadt(dsdt)));
    let madt = image.append(&bytes(&madt(cpus)));
    let srat = image.append(&srat::build(layout, cpus));
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    for table in [fadt, madt, srat] {
        xsdt.add_entry(table);
    }
    let xsdt = image.append(&bytes(&xsdt));
    let rsdp = bytes(&Rsdp::new(OEM_ID, xsdt));
    image.bytes[rsdp_at..rsdp_at + rsdp.len()].copy_from_slice(&rsdp);
    if image.bytes.len() as u64 > ACPI_MAX_BYTES {
        return Err(AcpiError::TooBig(image.bytes.len()));
    }
    Ok(image.bytes)
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
