//! lmb-vmm: a KVM virtual machine monitor whose guest memory is made of LMBs
//! (Logical Memory Blocks).
//!
//! [`config`] says what to build, [`machine`] builds it, [`vmm`] runs it: one
//! event loop that owns the hotplug [`coordinator`] and the control [`api`].
//! Clients know [`protocol`] alone.

pub mod acpi;
pub mod api;
pub mod boot;
pub mod bus;
pub mod config;
pub mod console;
pub mod control;
pub mod coordinator;
pub mod files;
pub mod host;
pub mod kvm;
pub mod machine;
pub mod platform;
pub mod protocol;
pub mod reset;
pub mod restart;
pub mod sandbox;
pub mod signals;
pub mod slots;
pub mod timeline;
pub mod vcpu;
pub mod vmm;
