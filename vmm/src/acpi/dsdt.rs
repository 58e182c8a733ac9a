//! DSDT: the serial port, the virtio-mmio devices and the soft-off state.

use acpi_tables::Aml;
use acpi_tables::aml::{
    Device, EISAName, IO, Interrupt, Memory32Fixed, Name, Package, Path, ResourceTemplate, Scope,
};
use acpi_tables::sdt::Sdt;

use super::{MmioDevice, OEM_ID, OEM_REVISION, OEM_TABLE_ID};
use crate::platform;

/// Linux's virtio-mmio driver binds to this ACPI id
/// (drivers/virtio/virtio_mmio.c).
const VIRTIO_MMIO_HID: &str = "LNRO0005";
/// Revision 2 and later: integers are 64 bits wide.
const REVISION: u8 = 2;

pub(super) fn build(devices: &[MmioDevice]) -> Vec<u8> {
    let mut aml = Vec::new();
    serial(&mut aml);
    for (number, device) in devices.iter().enumerate() {
        virtio_mmio(&mut aml, number, *device);
    }
    // \_S5: the sleep type that the guest writes to the sleep control register
    // to power off.
    Name::new(
        Path::new("_S5_"),
        &Package::new(vec![&platform::SLEEP_TYPE_OFF]),
    )
    .to_aml_bytes(&mut aml);
    // 36 is the header; the body follows it.
    let mut table = Sdt::new(*b"DSDT", 36, REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    table.append_slice(&aml);
    table.update_checksum();
    table.as_slice().to_vec()
}

fn serial(aml: &mut Vec<u8>) {
    let port = platform::COM1_PORT;
    Scope::new(
        Path::new("\\_SB_"),
        vec![&Device::new(
            Path::new("COM1"),
            vec![
                &Name::new(Path::new("_HID"), &EISAName::new("PNP0501")),
                &Name::new(Path::new("_UID"), &0_u8),
                &Name::new(
                    Path::new("_CRS"),
                    &ResourceTemplate::new(vec![
                        &IO::new(port, port, 1, 8),
                        &Interrupt::new(true, true, false, false, platform::COM1_GSI),
                    ]),
                ),
            ],
        )],
    )
    .to_aml_bytes(aml);
}

fn virtio_mmio(aml: &mut Vec<u8>, number: usize, device: MmioDevice) {
    let name = format!("\\_SB_.VM{number:02X}");
    Device::new(
        Path::new(&name),
        vec![
            &Name::new(Path::new("_HID"), &VIRTIO_MMIO_HID),
            &Name::new(Path::new("_UID"), &(number as u64)),
            // Memory accesses of the device are coherent.
            &Name::new(Path::new("_CCA"), &1_u8),
            &Name::new(
                Path::new("_CRS"),
                &ResourceTemplate::new(vec![
                    &Memory32Fixed::new(true, device.address, platform::MMIO_DEVICE_BYTES),
                    &Interrupt::new(true, true, false, false, device.gsi),
                ]),
            ),
        ],
    )
    .to_aml_bytes(aml);
}
