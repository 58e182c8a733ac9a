//! A definition file (`--config`) on its way into the virtual KVM host: the
//! files it names are copied in, and it names their places there.
//!
//! Only the fields that matter for this are looked at; lmb-vmm judges the
//! file. Flags go over fields, there as here.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::{Map, Value};

use crate::units::parse_size;

/// The fields of a definition file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Definition(Map<String, Value>);

impl Definition {
    /// Reads `path`.
    ///
    /// # Errors
    /// When it cannot be read or is no JSON object.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the definition {}", path.display()))?;
        let value = serde_json::from_str(&text)
            .with_context(|| format!("the definition {} is no JSON", path.display()))?;
        match value {
            Value::Object(fields) => Ok(Self(fields)),
            _ => bail!(
                "the definition {} is no JSON object; write it like {{\"memory\": \"1G\"}}",
                path.display()
            ),
        }
    }

    /// The file that `field` names, which then names `inside`. A value that is
    /// no text stays, for lmb-vmm to refuse.
    pub(super) fn move_file(&mut self, field: &str, inside: &str) -> Option<PathBuf> {
        match self.0.get_mut(field) {
            Some(Value::String(path)) => {
                Some(PathBuf::from(std::mem::replace(path, inside.to_owned())))
            }
            _ => None,
        }
    }

    /// The text of `field`.
    pub(super) fn text(&self, field: &str) -> Option<&str> {
        self.0.get(field)?.as_str()
    }

    /// The size that `field` says, in bytes, if it reads as one.
    pub(super) fn size(&self, field: &str) -> Option<u64> {
        match self.0.get(field)? {
            Value::String(text) => parse_size(text).ok(),
            number => number.as_u64(),
        }
    }

    /// The file's new text.
    pub(super) fn to_json(&self) -> String {
        Value::Object(self.0.clone()).to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(text: &str) -> anyhow::Result<Definition> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Definition::read(file.path())
    }

    #[test]
    fn files_move_and_the_rest_stays() {
        let mut definition = read(
            r#"{"kernel": "boot/vmlinuz", "memory": "1G", "lmb_size": 268435456,
                "hotplug": "acpi", "odd": [1]}"#,
        )
        .unwrap();
        assert_eq!(definition.size("memory"), Some(1 << 30));
        assert_eq!(definition.size("lmb_size"), Some(256 << 20));
        assert_eq!(
            definition.move_file("kernel", "/guest/kernel"),
            Some("boot/vmlinuz".into())
        );
        assert_eq!(definition.move_file("initrd", "/guest/initrd"), None);
        assert_eq!(
            serde_json::from_str::<Value>(&definition.to_json()).unwrap(),
            serde_json::json!({
                "kernel": "/guest/kernel", "memory": "1G", "lmb_size": 268_435_456,
                "hotplug": "acpi", "odd": [1]
            })
        );
    }

    #[test]
    fn wrong_values_are_left_to_the_vmm() {
        let mut definition = read(r#"{"kernel": 7, "memory": "lots", "serial": null}"#).unwrap();
        assert_eq!(definition.move_file("kernel", "/k"), None);
        assert_eq!(definition.size("memory"), None);
        assert_eq!(definition.text("serial"), None);
        assert!(definition.to_json().contains("\"kernel\":7"));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for (text, part) in [("[1]", "no JSON object"), ("{", "no JSON")] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let error = Definition::read(Path::new("/nonexistent/vm.json")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/vm.json"));
    }
}
