//! Firecracker, started from a configuration file, so that no waiting for its
//! socket is part of a boot; memory is changed over its API.
//! Source: Firecracker's src/firecracker/swagger/firecracker.yaml (1.17) and
//! docs/memory-hotplug.md; hotplug came with 1.14.
//!
//! It takes an unpacked kernel only, and its devices stand in ACPI's tables.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::api::Api;
use super::process::Process;
use super::remote::{Control, RemoteVm};
use super::{Driver, Vm};
use crate::bench::sample::Config;
use crate::bench::work::GuestFiles;

const MIB: u64 = 1 << 20;
/// Where its memory device is.
const HOTPLUG: &str = "/hotplug/memory";

/// See the module's head.
#[derive(Debug)]
pub(super) struct Firecracker {
    pub(super) program: PathBuf,
}

impl Driver for Firecracker {
    fn start(&self, config: &Config, files: &GuestFiles, place: &Path) -> Result<Box<dyn Vm>> {
        let file = place.join("config.json");
        fs::write(&file, serde_json::to_vec(&configuration(config, files)?)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
        let api = Api {
            vmm: "Firecracker",
            socket: place.join("api.sock"),
        };
        let mut command = Command::new(&self.program);
        command.arg("--api-sock").arg(&api.socket);
        command.arg("--config-file").arg(&file);
        // Its log goes to standard output, where the console is.
        command.args(["--level", "Error"]);
        let (mut running, marks) = Process::start_marked(&mut command, place)?;
        let hotplug = Hotplug { api };
        if config.plugged_at_boot_bytes > 0 {
            // The file has no such thing. The guest's driver is loaded later.
            hotplug
                .api
                .await_listening(&mut running.process)
                .and_then(|()| hotplug.request(config.plugged_at_boot_bytes))
                .with_context(|| format!("Firecracker says:\n{}", running.process.complaints()))?;
        }
        Ok(Box::new(RemoteVm::new(
            running,
            marks,
            hotplug,
            config.plugged_at_boot_bytes,
        )))
    }
}

/// The file that a VM is made from: bodies of the API's requests by name.
fn configuration(config: &Config, files: &GuestFiles) -> Result<Value> {
    let kernel = files.vmlinux.as_deref();
    let kernel = kernel.context("Firecracker takes an unpacked kernel only, and there is none")?;
    let mut all = json!({
        "boot-source": {
            "kernel_image_path": kernel,
            "initrd_path": files.initrd,
            "boot_args": config.cmdline,
        },
        "drives": [],
        "machine-config": {
            "vcpu_count": config.cpus,
            "mem_size_mib": mib(config.memory_bytes)?,
        },
    });
    let window = config.max_memory_bytes.saturating_sub(config.memory_bytes);
    if window > 0 {
        all["memory-hotplug"] = json!({
            "total_size_mib": mib(window)?,
            "block_size_mib": mib(config.lmb_size_bytes)?,
            "slot_size_mib": mib(config.slot_size_bytes)?,
        });
    }
    Ok(all)
}

fn mib(bytes: u64) -> Result<u64> {
    bytes
        .is_multiple_of(MIB)
        .then_some(bytes / MIB)
        .with_context(|| format!("{bytes} bytes are not whole MiB, in which Firecracker counts"))
}

#[derive(Debug)]
struct Hotplug {
    api: Api,
}

impl Control for Hotplug {
    fn request(&self, bytes: u64) -> Result<()> {
        let body = json!({"requested_size_mib": mib(bytes)?});
        self.api.send("PATCH", HOTPLUG, &body)
    }

    fn plugged_bytes(&self) -> Result<u64> {
        let status = self.api.get(HOTPLUG)?;
        status
            .get("plugged_size_mib")
            .and_then(Value::as_u64)
            .and_then(|mib| mib.checked_mul(MIB))
            .with_context(|| format!("Firecracker's {HOTPLUG} has no plugged_size_mib: {status}"))
    }

    fn runs_ahead(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{DONE, Server, ok};
    use super::*;
    use crate::bench::testing::config;

    fn files() -> GuestFiles {
        GuestFiles {
            kernel: "/k/vmlinuz".into(),
            initrd: "/k/initrd".into(),
            vmlinux: Some("/k/vmlinux".into()),
        }
    }

    #[test]
    fn a_boot_has_no_memory_device() {
        assert_eq!(
            configuration(&config(), &files()).unwrap(),
            json!({
                "boot-source": {
                    "kernel_image_path": "/k/vmlinux",
                    "initrd_path": "/k/initrd",
                    "boot_args": "console=ttyS0 quiet",
                },
                "drives": [],
                "machine-config": {"vcpu_count": 1, "mem_size_mib": 1024},
            })
        );
    }

    #[test]
    fn a_window_is_a_memory_device_with_the_lmb_as_its_block() {
        let mut config = config();
        config.max_memory_bytes = 5 << 30;
        config.slot_size_bytes = 1 << 30;
        let all = configuration(&config, &files()).unwrap();
        assert_eq!(
            all["memory-hotplug"],
            json!({"total_size_mib": 4096, "block_size_mib": 256, "slot_size_mib": 1024})
        );
        config.max_memory_bytes += 4096;
        assert!(configuration(&config, &files()).is_err());
    }

    #[test]
    fn a_packed_kernel_is_refused() {
        let mut files = files();
        files.vmlinux = None;
        let error = configuration(&config(), &files).unwrap_err().to_string();
        assert!(error.contains("unpacked kernel"), "{error}");
    }

    #[test]
    fn memory_is_requested_and_looked_at_in_mib() {
        let status = r#"{"total_size_mib":4096,"slot_size_mib":1024,"block_size_mib":256,
            "plugged_size_mib":512,"requested_size_mib":1024}"#;
        let server = Server::start(&[DONE, &ok(status), &ok("{\"plugged_size_mib\":-1}")]);
        let hotplug = Hotplug {
            api: server.api("Firecracker"),
        };
        hotplug.request(1 << 30).unwrap();
        assert_eq!(hotplug.plugged_bytes().unwrap(), 512 << 20);
        assert!(hotplug.plugged_bytes().is_err());
        assert!(hotplug.request((1 << 30) + 1).is_err());
        let requests = server.requests();
        assert_eq!(
            requests[0],
            (
                "PATCH /hotplug/memory".to_owned(),
                "{\"requested_size_mib\":1024}".to_owned()
            )
        );
        assert_eq!(requests[1].0, "GET /hotplug/memory");
    }
}
