//! lmb-vmm: a KVM virtual machine monitor whose guest memory is made of LMBs.

pub mod protocol;
