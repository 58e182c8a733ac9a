//! The machine that the guest sees: fixed addresses, ports and interrupts.

/// Local APIC.
pub const LAPIC_ADDRESS: u32 = 0xfee0_0000;
/// I/O APIC.
pub const IOAPIC_ADDRESS: u32 = 0xfec0_0000;
/// Three pages that KVM on Intel needs in guest-physical space, out of every
/// RAM's and device's way.
pub const KVM_TSS_ADDRESS: usize = 0xfffb_d000;
/// First virtio-mmio device; each has a page of its own.
pub const MMIO_BASE: u32 = 0xd000_0000;
/// Distance between virtio-mmio devices.
pub const MMIO_STRIDE: u32 = 0x1000;
/// Registers of one virtio-mmio device: 0x100 and its configuration space.
pub const MMIO_DEVICE_BYTES: u32 = 0x200;
/// Interrupt of the first virtio-mmio device.
pub const MMIO_FIRST_GSI: u32 = 5;
/// First serial port.
pub const COM1_PORT: u16 = 0x3f8;
/// Its interrupt.
pub const COM1_GSI: u32 = 4;
/// Boot-mark device.
pub const MARKS_PORT: u16 = lmb_devices::marks::PORT_BASE;
/// Power device: sleep control, sleep status and reset registers.
pub const POWER_PORT: u16 = 0x600;
/// FADT SLEEP_CONTROL_REG.
pub const SLEEP_CONTROL_PORT: u16 = POWER_PORT;
/// FADT SLEEP_STATUS_REG.
pub const SLEEP_STATUS_PORT: u16 = POWER_PORT + 1;
/// FADT RESET_REG.
pub const RESET_PORT: u16 = POWER_PORT + 2;
/// What the guest writes there.
pub const RESET_VALUE: u8 = 1;
/// Command port of a PC's keyboard controller; only its reset line exists.
pub const KEYBOARD_PORT: u16 = 0x64;
/// Registers of the ACPI memory devices.
pub const ACPI_MEM_PORT: u16 = lmb_devices::acpi_mem::PORT_BASE;
/// Their interrupt: the I/O APIC's last, out of the way of virtio-mmio devices.
pub const ACPI_MEM_GSI: u32 = 23;
/// Sleep type of soft-off (\_S5).
pub const SLEEP_TYPE_OFF: u8 = 5;
/// Most vCPUs: xAPIC ids below 0xff, the broadcast id.
pub const MAX_CPUS: u32 = 254;
