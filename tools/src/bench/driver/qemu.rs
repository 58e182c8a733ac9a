//! QEMU with KVM, as `pc` or `microvm`, controlled over QMP.
//!
//! The guest's agent writes its boot marks to the first port of lmb-vmm's
//! boot-mark device. Here that port is an `isa-debugcon`, whose bytes come
//! over a socket and are stamped as they arrive; it reads as the device's
//! presence byte, and its tables carry the OEM id by which the agent knows
//! that the port may be touched. What else the device tells (how much memory
//! is wanted) is missing, so the agent reports each memory block that comes
//! online or goes, and the last of them before things are quiet counts.
//!
//! "Device done" is the time that QEMU writes into its
//! MEMORY_DEVICE_SIZE_CHANGE event. QEMU sends these at most once a second,
//! but the last one carries the moment of the last change.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::marks::{self, Mark, Marks};
use super::process::{Process, Running};
use super::qmp::{Event, Qmp};
use super::{Booted, Change, Changed, Driver, Vm, span};
use crate::bench::figures::{cpu_ns, monotonic_ns, realtime_ns};
use crate::bench::sample::{BootPhases, Config, DlparPhases};
use crate::bench::work::GuestFiles;

/// How long QEMU may take for its control socket and for a command.
const CALL: Duration = Duration::from_secs(30);

/// The machine types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    /// `pc` (i440FX).
    Pc,
    /// `microvm`.
    Microvm,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Qemu {
    pub(super) program: PathBuf,
    pub(super) firmware: Option<PathBuf>,
    pub(super) machine: Machine,
}

impl Driver for Qemu {
    fn start(&self, config: &Config, files: &GuestFiles, place: &Path) -> Result<Box<dyn Vm>> {
        let listen = |name: &str| {
            UnixListener::bind(place.join(name))
                .with_context(|| format!("cannot listen at {}/{name}", place.display()))
        };
        let (control, marks) = (listen("qmp.sock")?, listen("marks.sock")?);
        let mut command = Command::new(&self.program);
        if let Some(firmware) = &self.firmware {
            command.arg("-L").arg(firmware);
        }
        command.args(arguments(self.machine, config, place));
        command.arg("-kernel").arg(&files.kernel);
        command.arg("-initrd").arg(&files.initrd);
        let mut running = Process::start(&mut command, place)?;
        let process = &mut running.process;
        let opened = accept(&control, process).and_then(|stream| {
            let marks = Marks::read(accept(&marks, process)?, process.id())?;
            Ok((Qmp::open(stream, CALL)?, marks))
        });
        let (qmp, marks) =
            opened.with_context(|| format!("QEMU says:\n{}", process.complaints()))?;
        Ok(Box::new(QemuVm {
            running,
            qmp,
            marks,
            plugged_bytes: 0,
            plugs_at_boot_bytes: config.plugged_at_boot_bytes,
            clock_offset_ns: realtime_ns().saturating_sub(monotonic_ns()),
        }))
    }
}

/// Waits for QEMU to connect.
fn accept(listener: &UnixListener, process: &mut Process) -> Result<UnixStream> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let step = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    let start = Instant::now();
    while start.elapsed() < CALL {
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        match poll(&mut fds, Some(&step)) {
            Ok(1..) => {
                let (stream, _) = listener.accept().context("cannot take QEMU's connection")?;
                return Ok(stream);
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => process.check_alive()?,
            Err(error) => return Err(error).context("cannot wait for QEMU"),
        }
    }
    bail!("QEMU did not connect within {CALL:?}")
}

/// QEMU's arguments, the guest's files apart.
fn arguments(machine: Machine, config: &Config, place: &Path) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut option = |name: &str, value: String| all.extend([name.to_owned(), value]);
    let path = |name: &str| place.join(name).display().to_string().replace(',', ",,");
    let machine_options = match machine {
        // SMM, the VMware port and the APIC's option ROM (below) lead to
        // writes of the CPU's segments, after which a nested QEMU refuses
        // user-space port access; nothing of what is measured needs them.
        Machine::Pc => "pc,smm=off,vmport=off",
        Machine::Microvm => "microvm,acpi=on,rtc=on,isa-serial=on",
    };
    option(
        "-machine",
        format!("{machine_options},accel=kvm,memory-backend=ram,x-oem-id=LMBVMM"),
    );
    option("-global", "apic-common.vapic=off".to_owned());
    option("-cpu", "host".to_owned());
    option("-smp", config.cpus.to_string());
    let window = config.max_memory_bytes.saturating_sub(config.memory_bytes);
    let maxmem = if window > 0 {
        format!(",maxmem={}B", config.max_memory_bytes)
    } else {
        String::new()
    };
    option("-m", format!("{}B{maxmem}", config.memory_bytes));
    option(
        "-object",
        format!(
            "memory-backend-ram,id=ram,size={}B,reserve=off",
            config.memory_bytes
        ),
    );
    for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
        all.push(flag.to_owned());
    }
    let mut option = |name: &str, value: String| all.extend([name.to_owned(), value]);
    option("-display", "none".to_owned());
    option("-chardev", "stdio,id=console,signal=off".to_owned());
    option("-serial", "chardev:console".to_owned());
    option(
        "-chardev",
        format!("socket,id=qmp,path={}", path("qmp.sock")),
    );
    option("-mon", "chardev=qmp,mode=control".to_owned());
    option(
        "-chardev",
        format!("socket,id=marks,path={}", path("marks.sock")),
    );
    option(
        "-device",
        "isa-debugcon,iobase=0x520,readback=0x4c,chardev=marks".to_owned(),
    );
    if window > 0 {
        option(
            "-object",
            format!("memory-backend-ram,id=vmem,size={window}B,reserve=off"),
        );
        option(
            "-device",
            format!(
                "virtio-mem-pci,id=vmem0,memdev=vmem,block-size={}B,requested-size={}B",
                config.lmb_size_bytes, config.plugged_at_boot_bytes
            ),
        );
    }
    option("-append", config.cmdline.clone());
    all
}

#[derive(Debug)]
struct QemuVm {
    running: Running,
    qmp: Qmp,
    marks: Marks,
    plugged_bytes: u64,
    plugs_at_boot_bytes: u64,
    clock_offset_ns: u64,
}

impl QemuVm {
    /// Waits until the device has plugged `target_bytes`: when it had, and how
    /// much it has plugged by then.
    fn await_size(&mut self, target_bytes: u64, limit: Duration) -> Result<(Option<u64>, u64)> {
        let start = Instant::now();
        let mut reached = self.plugged_bytes;
        while reached != target_bytes {
            let left = limit.saturating_sub(start.elapsed());
            let Some(event) = self.qmp.event(left)? else {
                return Ok((None, self.size()?));
            };
            if let Some((size_bytes, at_ns)) = size_change(&event, self.clock_offset_ns) {
                reached = size_bytes;
                if reached == target_bytes {
                    return Ok((Some(at_ns), reached));
                }
            }
        }
        Ok((None, reached))
    }

    /// What the device has plugged now.
    fn size(&mut self) -> Result<u64> {
        let devices = self.qmp.execute("query-memory-devices", &json!({}), CALL)?;
        devices
            .pointer("/0/data/size")
            .and_then(serde_json::Value::as_u64)
            .context("QEMU names no size of its memory device")
    }
}

/// What a size-change event says: the size, and when on CLOCK_MONOTONIC.
fn size_change(event: &Event, clock_offset_ns: u64) -> Option<(u64, u64)> {
    if event.name != "MEMORY_DEVICE_SIZE_CHANGE" {
        return None;
    }
    let size_bytes = event.data.get("size")?.as_u64()?;
    let at_ns = event.realtime_us.checked_mul(1000)?;
    Some((size_bytes, at_ns.checked_sub(clock_offset_ns)?))
}

impl Vm for QemuVm {
    fn await_boot(&mut self, limit: Duration) -> Result<Booted> {
        let started_ns = self.running.process.started_ns;
        let since = |mark: Mark| span(mark.at_ns.saturating_sub(started_ns), mark.cpu_ns);
        // The prompt comes after the mark, and also from a guest whose agent
        // found no port to write to.
        self.running.console.await_prompt(limit)?;
        let init = self.marks.wait_for(marks::INIT, marks::QUIET)?;
        let init = init.context(
            "the guest's agent wrote no boot mark: it does not know this machine's mark port",
        )?;
        let usable = if self.plugs_at_boot_bytes > 0 {
            let (_, size) = self.await_size(self.plugs_at_boot_bytes, limit)?;
            self.plugged_bytes = size;
            if size == self.plugs_at_boot_bytes {
                self.marks.last(marks::BLOCK_ONLINE)?.map(since)
            } else {
                None
            }
        } else {
            Some(since(init))
        };
        Ok(Booted {
            phases: BootPhases {
                first_entry: None,
                init: Some(since(init)),
                usable,
            },
            exits: None,
        })
    }

    fn await_driver(&mut self, limit: Duration) -> Result<()> {
        self.marks
            .wait_for(marks::DRIVER, limit)?
            .map(drop)
            .context("the guest's agent did not load the memory driver in time")
    }

    fn change(&mut self, change: Change) -> Result<Changed> {
        let before = self.plugged_bytes;
        let target_bytes = if change.add {
            before.checked_add(change.amount_bytes)
        } else {
            before.checked_sub(change.amount_bytes)
        }
        .context("there is not that much memory to remove")?;
        self.qmp.forget_events()?;
        self.marks.forget();
        let pid = self.running.process.id();
        let (asked_ns, asked_cpu) = (monotonic_ns(), cpu_ns(pid));
        self.qmp.execute(
            "qom-set",
            &json!({"path": "/machine/peripheral/vmem0", "property": "requested-size",
                    "value": target_bytes}),
            CALL,
        )?;
        let (done_at, size) = self.await_size(target_bytes, change.timeout)?;
        self.plugged_bytes = size;
        let complete = size == target_bytes;
        let code = if change.add {
            marks::BLOCK_ONLINE
        } else {
            marks::BLOCK_GONE
        };
        let last = self.marks.last(code)?.filter(|_| complete);
        let used = |now: Option<u64>| Some(now?.saturating_sub(asked_cpu?));
        Ok(Changed {
            phases: DlparPhases {
                device_done: done_at.map(|at| span(at.saturating_sub(asked_ns), None)),
                usable: last
                    .map(|mark| span(mark.at_ns.saturating_sub(asked_ns), used(mark.cpu_ns))),
                ..DlparPhases::default()
            },
            done_bytes: size.abs_diff(before),
            complete,
            ..Changed::default()
        })
    }

    fn running(&self) -> &Running {
        &self.running
    }

    fn running_mut(&mut self) -> &mut Running {
        &mut self.running
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::testing::config;

    fn value<'a>(all: &'a [String], name: &str) -> Vec<&'a str> {
        all.windows(2)
            .filter(|pair| pair[0] == name)
            .map(|pair| pair[1].as_str())
            .collect()
    }

    #[test]
    fn a_boot_has_no_memory_device() {
        let all = arguments(Machine::Pc, &config(), Path::new("/tmp/a,b"));
        assert_eq!(value(&all, "-m"), ["1073741824B"]);
        assert!(!all.iter().any(|a| a.contains("virtio-mem")));
        assert!(all.contains(&"socket,id=qmp,path=/tmp/a,,b/qmp.sock".to_owned()));
        assert_eq!(value(&all, "-append"), ["console=ttyS0 quiet"]);
        let machine = value(&all, "-machine")[0];
        assert!(
            machine.starts_with("pc,smm=off,vmport=off,") && machine.contains("x-oem-id=LMBVMM")
        );
    }

    #[test]
    fn a_window_is_a_memory_device_with_the_lmb_as_its_block() {
        let mut config = config();
        config.max_memory_bytes = 5 << 30;
        config.plugged_at_boot_bytes = 2 << 30;
        let all = arguments(Machine::Microvm, &config, Path::new("/p"));
        assert_eq!(value(&all, "-m"), ["1073741824B,maxmem=5368709120B"]);
        assert!(value(&all, "-device").contains(
            &"virtio-mem-pci,id=vmem0,memdev=vmem,block-size=268435456B,requested-size=2147483648B"
        ));
        assert!(
            value(&all, "-object")
                .contains(&"memory-backend-ram,id=vmem,size=4294967296B,reserve=off")
        );
    }

    #[test]
    fn a_size_change_is_placed_on_the_monotonic_clock() {
        let event = |name: &str, data, realtime_us| Event {
            name: name.to_owned(),
            data,
            realtime_us,
        };
        let size = json!({"id": "vmem0", "size": 4096});
        let name = "MEMORY_DEVICE_SIZE_CHANGE";
        assert_eq!(
            size_change(&event(name, size.clone(), 7), 3000),
            Some((4096, 4000))
        );
        for (event, offset) in [
            (event("STOP", size.clone(), 7), 0),
            (event(name, json!({"size": -1}), 7), 0),
            (event(name, json!(null), 7), 0),
            (event(name, size.clone(), u64::MAX), 0),
            (event(name, size, 7), 8000),
        ] {
            assert_eq!(size_change(&event, offset), None, "{event:?}");
        }
    }
}
