//! Landlock: what the process can reach by name. Nothing, but for removing the
//! control socket's file (and, since Landlock's rules are about directories,
//! others beside it).

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};

use super::SandboxError;

/// The newest ABI whose rights are all given up, as far as the kernel knows
/// them.
const NEWEST: ABI = ABI::V10;

/// Restricts the calling thread and those it will start. Returns the ABI that
/// is in force; none on a kernel without Landlock.
pub(super) fn restrict(socket: Option<&Path>) -> Result<Option<u32>, SandboxError> {
    let failed = |what| move |error: RulesetError| SandboxError::new(what, error);
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(NEWEST)))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .map_err(failed("make a Landlock ruleset"))?;
    if let Some(socket) = socket {
        let directory = match socket.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let directory = PathFd::new(directory)
            .map_err(|error| SandboxError::new("look at the control socket's directory", error))?;
        ruleset = ruleset
            .add_rule(PathBeneath::new(directory, AccessFs::RemoveFile))
            .map_err(failed("allow the control socket's removal"))?;
    }
    let status = ruleset
        .restrict_self()
        .map_err(failed("restrict itself by Landlock"))?;
    Ok(match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => u32::try_from(effective_abi as i32).ok(),
        _ => None,
    })
}
