//! Writing to guest memory during a boot, with errors that name the address.

use lmb_memory::GuestRam;
use vm_memory::{ByteValued, Bytes, GuestAddress};

use super::BootError;

/// An initrd in guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Initrd {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
}

/// Writes bytes at a guest-physical address.
///
/// # Errors
/// When the range is not boot memory.
pub fn write_bytes(ram: &GuestRam, address: u64, bytes: &[u8]) -> Result<(), BootError> {
    ram.write_slice(bytes, GuestAddress(address))
        .map_err(|source| BootError::GuestMemory { address, source })
}

pub(super) fn write_object<T: ByteValued>(
    ram: &GuestRam,
    address: u64,
    object: T,
) -> Result<(), BootError> {
    ram.write_obj(object, GuestAddress(address))
        .map_err(|source| BootError::GuestMemory { address, source })
}
