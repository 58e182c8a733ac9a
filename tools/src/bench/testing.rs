//! What several tests here start from.

use super::sample::Config;

/// A plain boot of lmb-vmm.
pub(super) fn config() -> Config {
    Config {
        vmm: "lmb-vmm".to_owned(),
        vmm_version: "0.1.0".to_owned(),
        hotplug: "virtio-mem".to_owned(),
        kernel: "6.1.0-test".to_owned(),
        kernel_entry: "elf".to_owned(),
        cmdline: "console=ttyS0 quiet".to_owned(),
        cpus: 1,
        memory_bytes: 1 << 30,
        max_memory_bytes: 1 << 30,
        plugged_at_boot_bytes: 0,
        lmb_size_bytes: 256 << 20,
        guest_block_option_bytes: 0,
        slot_size_bytes: 0,
        hugepages: "thp".to_owned(),
        load: "none".to_owned(),
    }
}
