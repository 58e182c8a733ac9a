//! Cloud Hypervisor with a virtio-mem device, whose blocks are 2 MiB; memory is
//! changed over its API.
//! Source: Cloud Hypervisor's docs/memory.md, docs/hotplug.md and
//! vmm/src/api/openapi/cloud-hypervisor.yaml (0.3.0).

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

/// See the module's head.
#[derive(Debug)]
pub(super) struct CloudHypervisor {
    pub(super) program: PathBuf,
}

impl Driver for CloudHypervisor {
    fn start(&self, config: &Config, files: &GuestFiles, place: &Path) -> Result<Box<dyn Vm>> {
        let api = Api {
            vmm: "Cloud Hypervisor",
            socket: place.join("api.sock"),
        };
        let kernel = files.vmlinux.as_deref();
        let kernel =
            kernel.context("Cloud Hypervisor is given an unpacked kernel; there is none")?;
        let mut command = Command::new(&self.program);
        command.args(arguments(config));
        command.arg("--api-socket").arg(&api.socket);
        command.arg("--kernel").arg(kernel);
        command.arg("--initramfs").arg(&files.initrd);
        let (running, marks) = Process::start_marked(&mut command, place)?;
        Ok(Box::new(RemoteVm::new(
            running,
            marks,
            Resize {
                api,
                boot_bytes: config.memory_bytes,
            },
            config.plugged_at_boot_bytes,
        )))
    }
}

/// Its arguments, files and socket apart.
fn arguments(config: &Config) -> Vec<String> {
    let mut memory = format!("size={}", config.memory_bytes);
    let window = config.max_memory_bytes.saturating_sub(config.memory_bytes);
    if window > 0 {
        memory.push_str(&format!(",hotplug_method=virtio-mem,hotplug_size={window}"));
    }
    if config.plugged_at_boot_bytes > 0 {
        memory.push_str(&format!(
            ",hotplugged_size={}",
            config.plugged_at_boot_bytes
        ));
    }
    let cpus = format!("boot={}", config.cpus);
    [
        ("--cpus", cpus.as_str()),
        ("--memory", &memory),
        ("--cmdline", &config.cmdline),
        ("--serial", "tty"),
        ("--console", "off"),
    ]
    .iter()
    .flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()])
    .collect()
}

#[derive(Debug)]
struct Resize {
    api: Api,
    boot_bytes: u64,
}

impl Control for Resize {
    fn request(&self, bytes: u64) -> Result<()> {
        let all = self.boot_bytes.checked_add(bytes);
        let all = all.context("that is more memory than 64 bits hold")?;
        let body = json!({"desired_ram": all});
        self.api.send("PUT", "/api/v1/vm.resize", &body)
    }

    fn plugged_bytes(&self) -> Result<u64> {
        let info = self.api.get("/api/v1/vm.info")?;
        info.get("memory_actual_size")
            .and_then(Value::as_u64)
            .and_then(|all| all.checked_sub(self.boot_bytes))
            .context("Cloud Hypervisor's vm.info has no memory_actual_size above boot memory")
    }

    /// Newer releases count what is plugged, older ones what was asked for.
    fn runs_ahead(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{DONE, Server, ok};
    use super::*;
    use crate::bench::testing::config;

    #[test]
    fn a_boot_has_no_memory_device() {
        assert_eq!(
            arguments(&config()),
            [
                "--cpus",
                "boot=1",
                "--memory",
                "size=1073741824",
                "--cmdline",
                "console=ttyS0 quiet",
                "--serial",
                "tty",
                "--console",
                "off",
            ]
        );
    }

    #[test]
    fn a_window_is_virtio_mem() {
        let mut config = config();
        config.max_memory_bytes = 5 << 30;
        let memory = |config: &Config| arguments(config)[3].clone();
        assert_eq!(
            memory(&config),
            "size=1073741824,hotplug_method=virtio-mem,hotplug_size=4294967296"
        );
        config.plugged_at_boot_bytes = 4 << 30;
        assert!(memory(&config).ends_with(",hotplugged_size=4294967296"));
    }

    #[test]
    fn sizes_on_the_api_include_boot_memory() {
        let info = r#"{"config":{},"state":"Running","memory_actual_size":3221225472}"#;
        let server = Server::start(&[
            DONE,
            &ok(info),
            &ok(r#"{"config":{},"state":"Running","memory_actual_size":1}"#),
        ]);
        let resize = Resize {
            api: server.api("Cloud Hypervisor"),
            boot_bytes: 1 << 30,
        };
        resize.request(2 << 30).unwrap();
        assert_eq!(resize.plugged_bytes().unwrap(), 2 << 30);
        assert!(resize.plugged_bytes().is_err());
        assert!(resize.request(u64::MAX).is_err());
        let requests = server.requests();
        assert_eq!(
            requests[0],
            (
                "PUT /api/v1/vm.resize".to_owned(),
                "{\"desired_ram\":3221225472}".to_owned()
            )
        );
        assert_eq!(requests[1].0, "GET /api/v1/vm.info");
    }
}
