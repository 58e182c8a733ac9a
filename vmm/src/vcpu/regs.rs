//! Registers with which a vCPU enters the guest.

use kvm_bindings::{Msrs, kvm_fpu, kvm_lapic_state, kvm_msr_entry, kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;

use crate::boot::load::Entry;
use crate::boot::{GDT, PML4, START_INFO, ZERO_PAGE};
use crate::protocol::EntryKind;

/// IA32_MISC_ENABLE, bit 0: fast string operations.
const MSR_IA32_MISC_ENABLE: u32 = 0x1a0;
const FAST_STRINGS: u64 = 1;
/// IA32_MTRR_DEF_TYPE: enabled (bit 11), write-back (6). Without it Linux
/// takes all memory for uncacheable.
const MSR_MTRR_DEF_TYPE: u32 = 0x2ff;
const MTRR_WRITE_BACK: u64 = 1 << 11 | 6;

const CR0_PE: u64 = 1;
/// Extension type, always set.
const CR0_ET: u64 = 1 << 4;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;

/// Local APIC registers (Intel SDM vol. 3A, table 11-1).
const APIC_LVT0: usize = 0x350;
const APIC_LVT1: usize = 0x360;
const MODE_NMI: u32 = 0x4 << 8;
const MODE_EXTINT: u32 = 0x7 << 8;

/// The global descriptor table of both entries: null, null, code, data, TSS.
/// The selectors are the ones the boot protocols name (code 0x10, data 0x18).
#[must_use]
pub fn gdt(kind: EntryKind) -> Vec<u8> {
    let code = match kind {
        EntryKind::Elf => 0x00cf_9b00_0000_ffff_u64,
        EntryKind::Bzimage => 0x00af_9b00_0000_ffff,
    };
    [0, 0, code, 0x00cf_9300_0000_ffff, 0x0000_8b00_0000_0067]
        .iter()
        .flat_map(|entry| entry.to_le_bytes())
        .collect()
}

/// Sets the boot vCPU to the kernel's entry.
///
/// # Errors
/// When KVM refuses a register set.
pub fn set_boot_vcpu(vcpu: &VcpuFd, entry: Entry) -> Result<(), kvm_ioctls::Error> {
    let mut regs = kvm_regs {
        rip: entry.address,
        // Bit 1 is always set.
        rflags: 2,
        ..Default::default()
    };
    match entry.kind {
        EntryKind::Elf => regs.rbx = START_INFO,
        EntryKind::Bzimage => regs.rsi = ZERO_PAGE,
    }
    vcpu.set_regs(&regs)?;
    vcpu.set_fpu(&kvm_fpu {
        fcw: 0x37f,
        mxcsr: 0x1f80,
        ..Default::default()
    })?;
    set_segments(vcpu, entry.kind)
}

fn set_segments(vcpu: &VcpuFd, kind: EntryKind) -> Result<(), kvm_ioctls::Error> {
    let mut sregs = vcpu.get_sregs()?;
    let long = kind == EntryKind::Bzimage;
    sregs.cs = segment(0x10, 0xb, !long, long);
    let data = segment(0x18, 0x3, true, false);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.tr = kvm_segment {
        s: 0,
        limit: 0x67,
        g: 0,
        ..segment(0x20, 0xb, false, false)
    };
    sregs.gdt.base = GDT;
    sregs.gdt.limit = 5 * 8 - 1;
    sregs.idt.base = 0;
    sregs.idt.limit = 0;
    // All other bits clear, caching (CD, NW) on, as the PVH entry demands.
    sregs.cr0 = CR0_PE | CR0_ET;
    if long {
        sregs.cr3 = PML4;
        sregs.cr4 |= CR4_PAE;
        sregs.cr0 |= CR0_PG;
        sregs.efer |= EFER_LME | EFER_LMA;
    }
    vcpu.set_sregs(&sregs)
}

fn segment(selector: u16, kind: u8, db: bool, l: bool) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_: kind,
        present: 1,
        dpl: 0,
        db: u8::from(db),
        s: 1,
        l: u8::from(l),
        g: 1,
        ..Default::default()
    }
}

/// MSRs of every vCPU. One that this host's KVM does not know is left alone:
/// the guest finds it as absent as the host does.
///
/// # Errors
/// When KVM fails for another reason.
pub fn set_msrs(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    for (index, data) in [
        (MSR_IA32_MISC_ENABLE, FAST_STRINGS),
        (MSR_MTRR_DEF_TYPE, MTRR_WRITE_BACK),
    ] {
        let entry = kvm_msr_entry {
            index,
            data,
            ..Default::default()
        };
        let msrs =
            Msrs::from_entries(&[entry]).map_err(|_| kvm_ioctls::Error::new(libc::ENOMEM))?;
        if vcpu.set_msrs(&msrs)? == 0 {
            tracing::debug!("KVM does not know MSR {index:#x}");
        }
    }
    Ok(())
}

/// Local interrupt pins as a PC's firmware leaves them: LINT0 external, LINT1
/// NMI.
///
/// # Errors
/// When KVM refuses.
pub fn set_lapic_pins(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let mut lapic = vcpu.get_lapic()?;
    set_delivery_mode(&mut lapic, APIC_LVT0, MODE_EXTINT);
    set_delivery_mode(&mut lapic, APIC_LVT1, MODE_NMI);
    vcpu.set_lapic(&lapic)
}

fn set_delivery_mode(lapic: &mut kvm_lapic_state, register: usize, mode: u32) {
    let bytes = &mut lapic.regs[register..register + 4];
    let mut value = [0_u8; 4];
    for (to, from) in value.iter_mut().zip(bytes.iter()) {
        *to = from.cast_unsigned();
    }
    let value = (u32::from_le_bytes(value) & !0x700) | mode;
    for (to, from) in bytes.iter_mut().zip(value.to_le_bytes()) {
        *to = from.cast_signed();
    }
}
