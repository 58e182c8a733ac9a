//! SRAT: which memory and which CPUs belong to which node.
//!
//! Written for one-node guests too: a hot-pluggable range tells Linux how far
//! its memory may grow (it sizes the direct map's randomisation and the
//! swiotlb by it), and without it hotplugged memory has no node.

use acpi_tables::sdt::Sdt;
use lmb_memory::Layout;
use zerocopy::byteorder::{LE, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID};

/// Bytes of the fixed part: the table header and 12 reserved bytes.
const FIXED_BYTES: u32 = 48;
/// SRAT revision of ACPI 6.
const REVISION: u8 = 3;
const ENABLED: u32 = 1;
const HOT_PLUGGABLE: u32 = 1 << 1;

/// Processor Local APIC/SAPIC Affinity Structure (ACPI 6.5, 5.2.16.1).
#[derive(IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct ApicAffinity {
    kind: u8,
    length: u8,
    domain_low: u8,
    apic_id: u8,
    flags: U32<LE>,
    local_sapic_eid: u8,
    domain_high: [u8; 3],
    clock_domain: U32<LE>,
}

/// Memory Affinity Structure (ACPI 6.5, 5.2.16.2).
#[derive(IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct MemoryAffinity {
    kind: u8,
    length: u8,
    domain: [u8; 4],
    reserved: U16<LE>,
    base: U64<LE>,
    size_bytes: U64<LE>,
    reserved2: U32<LE>,
    flags: U32<LE>,
    reserved3: U64<LE>,
}

pub(super) fn build(layout: &Layout, cpus: u32) -> Vec<u8> {
    let mut table = Sdt::new(
        *b"SRAT",
        FIXED_BYTES,
        REVISION,
        OEM_ID,
        OEM_TABLE_ID,
        OEM_REVISION,
    );
    table.write_u32(36, 1);
    for cpu in 0..cpus {
        table.append(ApicAffinity {
            kind: 0,
            length: 16,
            domain_low: 0,
            apic_id: u8::try_from(cpu).unwrap_or(u8::MAX),
            flags: ENABLED.into(),
            local_sapic_eid: 0,
            domain_high: [0; 3],
            clock_domain: 0.into(),
        });
    }
    for piece in &layout.boot {
        table.append(memory(
            piece.range.start().get(),
            piece.range.len().get(),
            ENABLED,
        ));
    }
    if let Some(window) = &layout.window {
        table.append(memory(
            window.range.start().get(),
            window.range.len().get(),
            ENABLED | HOT_PLUGGABLE,
        ));
    }
    table.update_checksum();
    table.as_slice().to_vec()
}

fn memory(base: u64, size_bytes: u64, flags: u32) -> MemoryAffinity {
    MemoryAffinity {
        kind: 1,
        length: 40,
        domain: [0; 4],
        reserved: 0.into(),
        base: base.into(),
        size_bytes: size_bytes.into(),
        reserved2: 0.into(),
        flags: flags.into(),
        reserved3: 0.into(),
    }
}
