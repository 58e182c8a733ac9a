//! no_new_privs, and the capabilities of a process started as root.

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

use super::SandboxError;

/// Gives up every way to more rights, and all capabilities.
pub(super) fn drop_all() -> Result<(), SandboxError> {
    set_no_new_privs(true).map_err(|errno| SandboxError::new("set no_new_privs", errno))?;
    drop_capabilities().map_err(|errno| SandboxError::new("drop its capabilities", errno))
}

fn drop_capabilities() -> rustix::io::Result<()> {
    // Linux before 4.3 has no ambient set.
    let _ = clear_ambient_capability_set();
    let held = capabilities(None)?;
    // The bounding set counts for started programs alone, of which there are
    // none; whoever may not change it has nothing to gain by it either.
    if held.effective.contains(CapabilitySet::SETPCAP) {
        for bit in 0..u64::BITS {
            let capability = CapabilitySet::from_bits_retain(1 << bit);
            match capability_is_in_bounding_set(capability) {
                Ok(true) => remove_capability_from_bounding_set(capability)?,
                Ok(false) => {}
                // The kernel knows no more.
                Err(_) => break,
            }
        }
    }
    set_capabilities(
        None,
        CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        },
    )
}
