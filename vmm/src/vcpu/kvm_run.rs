//! The two touches of a vCPU's shared `kvm_run` page that the bindings leave
//! to raw pointers. This is one of the files where unsafe code is allowed.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, Ordering};

use kvm_ioctls::VcpuFd;

/// Makes a vCPU leave the guest, from any thread.
///
/// Setting `immediate_exit` closes the gap that a signal alone leaves: a vCPU
/// that is just about to enter the guest returns at once.
#[derive(Debug)]
pub(super) struct ImmediateExit {
    flag: *mut u8,
}

// SAFETY: the pointer is used for one atomic store only, which any thread may
// do, and `VcpuHandle`, where this lives, keeps the vCPU beside it.
unsafe impl Send for ImmediateExit {}

impl ImmediateExit {
    /// The flag of `vcpu`; it must not be used after the vCPU is dropped.
    pub(super) fn new(vcpu: &mut VcpuFd) -> Self {
        Self {
            flag: &raw mut vcpu.get_kvm_run().immediate_exit,
        }
    }

    /// Asks for the exit. The caller signals the thread afterwards.
    pub(super) fn request(&self) {
        // SAFETY: the flag lies in the vCPU's kvm_run mapping, which lives
        // until the vCPU is dropped, and `VcpuHandle` holds a reference to the
        // vCPU for as long as it holds this, whatever became of the thread.
        // The kernel reads the byte; nobody writes it but through this atomic
        // view.
        let flag = unsafe { AtomicU8::from_ptr(self.flag) };
        flag.store(1, Ordering::SeqCst);
    }
}

/// Suberror of the last KVM_EXIT_INTERNAL_ERROR (linux/kvm.h): 1 is an
/// instruction that KVM cannot emulate.
pub(super) fn internal_suberror(vcpu: &mut VcpuFd) -> u32 {
    let run = vcpu.get_kvm_run();
    // SAFETY: the caller saw KVM_EXIT_INTERNAL_ERROR, for which the kernel
    // filled this member of the union; any bit pattern is a valid u32.
    unsafe { run.__bindgen_anon_1.internal.suberror }
}
