//! Register offsets and bits of virtio-mmio version 2 (virtio 1.2, sections
//! 2.1, 4.2.2).

/// Reads as [`MAGIC`].
pub const MAGIC_VALUE: u64 = 0x000;
/// Reads as [`VERSION_2`].
pub const VERSION: u64 = 0x004;
/// Device type.
pub const DEVICE_ID: u64 = 0x008;
/// Reads as [`VENDOR`].
pub const VENDOR_ID: u64 = 0x00c;
/// 32 feature bits of the device, by [`DEVICE_FEATURES_SEL`].
pub const DEVICE_FEATURES: u64 = 0x010;
/// Which 32 feature bits [`DEVICE_FEATURES`] shows.
pub const DEVICE_FEATURES_SEL: u64 = 0x014;
/// 32 feature bits accepted by the driver, by [`DRIVER_FEATURES_SEL`].
pub const DRIVER_FEATURES: u64 = 0x020;
/// Which 32 feature bits a write of [`DRIVER_FEATURES`] sets.
pub const DRIVER_FEATURES_SEL: u64 = 0x024;
/// Which queue the queue registers refer to.
pub const QUEUE_SEL: u64 = 0x030;
/// Largest size of the selected queue; 0 if there is no such queue.
pub const QUEUE_NUM_MAX: u64 = 0x034;
/// Size of the selected queue.
pub const QUEUE_NUM: u64 = 0x038;
/// Whether the selected queue is in use.
pub const QUEUE_READY: u64 = 0x044;
/// Tells the device that the written queue has new buffers.
pub const QUEUE_NOTIFY: u64 = 0x050;
/// Pending interrupt causes.
pub const INTERRUPT_STATUS: u64 = 0x060;
/// Clears the written interrupt causes.
pub const INTERRUPT_ACK: u64 = 0x064;
/// Device status; writing 0 resets the device.
pub const STATUS: u64 = 0x070;
/// Descriptor table, low half.
pub const QUEUE_DESC_LOW: u64 = 0x080;
/// Descriptor table, high half.
pub const QUEUE_DESC_HIGH: u64 = 0x084;
/// Available ring ("driver area"), low half.
pub const QUEUE_DRIVER_LOW: u64 = 0x090;
/// Available ring, high half.
pub const QUEUE_DRIVER_HIGH: u64 = 0x094;
/// Used ring ("device area"), low half.
pub const QUEUE_DEVICE_LOW: u64 = 0x0a0;
/// Used ring, high half.
pub const QUEUE_DEVICE_HIGH: u64 = 0x0a4;
/// Shared memory region to look at; no device here has one.
pub const SHM_SEL: u64 = 0x0ac;
/// Length of the shared memory region, low half: all ones, there is none.
pub const SHM_LEN_LOW: u64 = 0x0b0;
/// Length, high half.
pub const SHM_LEN_HIGH: u64 = 0x0b4;
/// Base of the shared memory region, low half: all ones, there is none.
pub const SHM_BASE_LOW: u64 = 0x0b8;
/// Base, high half.
pub const SHM_BASE_HIGH: u64 = 0x0bc;
/// Changes whenever the configuration space does.
pub const CONFIG_GENERATION: u64 = 0x0fc;
/// First byte of the device's configuration space.
pub const CONFIG: u64 = 0x100;

/// "virt", little-endian.
pub const MAGIC: u32 = 0x7472_6976;
/// The register layout's version.
pub const VERSION_2: u32 = 2;
/// "LMBV", little-endian.
pub const VENDOR: u32 = u32::from_le_bytes(*b"LMBV");

/// Interrupt cause: buffers were used.
pub const INTERRUPT_USED: u32 = 1;
/// Interrupt cause: the configuration or the device status changed.
pub const INTERRUPT_CONFIG: u32 = 2;

/// Status: the guest has noticed the device.
pub const STATUS_ACKNOWLEDGE: u32 = 1;
/// Status: the guest has a driver for it.
pub const STATUS_DRIVER: u32 = 2;
/// Status: the driver is set up and the device is live.
pub const STATUS_DRIVER_OK: u32 = 4;
/// Status: feature negotiation is complete.
pub const STATUS_FEATURES_OK: u32 = 8;
/// Status: the device cannot go on until it is reset (set by the device).
pub const STATUS_NEEDS_RESET: u32 = 64;
/// Status: the driver has given up.
pub const STATUS_FAILED: u32 = 128;
