//! What a new LMB size does to a VM's definition.
//!
//! As on PowerVM, the LMB size takes effect at a restart, and the counts (and,
//! by rounding, the sizes) of a definition are adjusted to it then.

use std::fmt::Write as _;

use lmb_memory::{Bytes, Layout};

use crate::config::{ConfigError, DEFAULT_LMB, HostLimits, Options, VmConfig};

/// A definition (a configuration file) that is started with another LMB size.
#[derive(Debug)]
pub struct LmbChange {
    old: Options,
    old_lmb: Bytes,
    new_lmb: Bytes,
}

impl LmbChange {
    /// Whether `options` give `definition` another LMB size.
    #[must_use]
    pub fn find(definition: &Options, options: &Options) -> Option<Self> {
        if *definition == Options::default() {
            return None;
        }
        let old_lmb = definition.lmb_size.unwrap_or(DEFAULT_LMB);
        let new_lmb = options.lmb_size.unwrap_or(DEFAULT_LMB);
        (old_lmb != new_lmb).then(|| Self {
            old: definition.clone(),
            old_lmb,
            new_lmb,
        })
    }

    /// Old → new in one line: LMB size, and boot and window in LMBs and sizes.
    ///
    /// # Errors
    /// When the definition was not legal even with its own LMB size.
    pub fn describe(&self, limits: HostLimits, new: &Layout) -> Result<String, ConfigError> {
        let old = VmConfig::new(self.old.clone())?.layout(limits)?;
        let mut line = format!(
            "LMB size {} → {}: boot memory {} LMBs ({}) → {} LMBs ({})",
            self.old_lmb,
            self.new_lmb,
            old.boot_lmbs.get(),
            old.boot_bytes,
            new.boot_lmbs.get(),
            new.boot_bytes,
        );
        let window = |layout: &Layout| {
            layout.window.as_ref().map_or_else(
                || "none".to_owned(),
                |window| format!("{} LMBs ({})", window.lmbs.get(), window.range.len()),
            )
        };
        // Writing to a String does not fail.
        let _ = write!(line, ", window {} → {}", window(&old), window(new));
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HostLimits = HostLimits {
        phys_bits: 46,
        max_map_count: None,
        max_slots: 32_764,
    };

    fn options(json: &str) -> Options {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn counts_and_sizes_follow_the_new_lmb_size() {
        let definition = options(r#"{"memory": "2560M", "max_memory": "16896M"}"#);
        let started = options(r#"{"lmb_size": "512M"}"#).over(definition.clone());
        let change = LmbChange::find(&definition, &started).unwrap();
        let layout = VmConfig::new(started).unwrap().layout(LIMITS).unwrap();
        let line = change.describe(LIMITS, &layout).unwrap();
        assert_eq!(
            line,
            "LMB size 256 MiB → 512 MiB: boot memory 10 LMBs (2560 MiB) → 5 LMBs (2560 MiB), \
             window 56 LMBs (14 GiB) → 28 LMBs (14 GiB)"
        );
    }

    #[test]
    fn the_same_size_or_no_definition_is_no_change() {
        let definition = options(r#"{"memory": "1G"}"#);
        let same = options(r#"{"lmb_size": "256M"}"#).over(definition.clone());
        assert!(LmbChange::find(&definition, &same).is_none());
        let flags = options(r#"{"lmb_size": "1G"}"#);
        assert!(LmbChange::find(&Options::default(), &flags).is_none());
    }
}
