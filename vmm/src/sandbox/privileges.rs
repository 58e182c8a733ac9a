//! no_new_privs, and the capabilities of a process started as root.

use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities, set_no_new_privs,
};

use super::SandboxError;

/// Gives up every way to more rights, and all capabilities. The bounding set
/// stays: it says what a started program may gain, which no_new_privs has
/// settled.
pub(super) fn drop_all() -> Result<(), SandboxError> {
    set_no_new_privs(true).map_err(|errno| SandboxError::new("set no_new_privs", errno))?;
    // Linux before 4.3 has no ambient set.
    let _ = clear_ambient_capability_set();
    set_capabilities(
        None,
        CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        },
    )
    .map_err(|errno| SandboxError::new("drop its capabilities", errno))
}
