//! QEMU's command line for the virtual KVM host, and its version.
//!
//! Why each part is there:
//! - ERMS and FSRM are hidden: the instruction clock counts `rep movsb` as one
//!   instruction a byte, eight times what `rep movsq` counts, which no real
//!   processor does.
//! - `highres=off` by the instruction clock: QEMU's SVM leaves an injected
//!   interrupt pending, and delivers it twice when its loop is left before the
//!   guest's next exit. A timer within microseconds of an injection does that;
//!   on the 4 ms tick there is none.
//! - `highres=off nohz=off` by the wall clock: QEMU's SVM helpers change the
//!   set of pending interrupts in the CPU's thread while the main loop adds the
//!   APIC's to it, and one of them can get lost. A one-shot timer then never
//!   comes, and a host whose guest spins stands for good; the next of a
//!   periodic tick makes up for it.
//! - `tsc=reliable clocksource=tsc`: without it the kernel may fall back to
//!   the HPET, whose every read is an exit.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use super::{Clock, HostError, HostRun, Threads};

/// The files a running host reads and writes.
pub(super) struct RunFiles<'a> {
    pub(super) initramfs: &'a Path,
    pub(super) console: &'a Path,
    pub(super) status: &'a Path,
    pub(super) monitor: &'a Path,
    /// Whether standard input is the socket of the command's input.
    pub(super) input: bool,
}

const LEAST_MEMORY_MIB: u64 = 512;
const MOST_NODES: usize = 128;
const MOST_CPUS: u32 = 255;
const DEFAULT_DISTANCE: u8 = 20;

/// Refuses what cannot work, before anything is started.
pub(super) fn check(run: &HostRun) -> Result<(), HostError> {
    let refuse = |text: String| Err(HostError::Refused(text));
    if run.command.is_empty() {
        return refuse("no command is named; write it after --".into());
    }
    if run.cpus == 0 || run.cpus > MOST_CPUS {
        return refuse(format!("{} CPUs: give 1 to {MOST_CPUS}", run.cpus));
    }
    if run.clock == Clock::Instructions {
        if run.cpus != 1 {
            return refuse(format!(
                "{} CPUs by the instruction clock: it works with --cpus 1 only",
                run.cpus
            ));
        }
        if run.threads() == Threads::Multi {
            return refuse("the instruction clock works with --threads single only".into());
        }
    }
    if run.memory_mib < LEAST_MEMORY_MIB {
        return refuse(format!(
            "{} MiB of memory: the host needs {LEAST_MEMORY_MIB} MiB or more",
            run.memory_mib
        ));
    }
    if !(36..=52).contains(&run.phys_bits) {
        return refuse(format!(
            "{} physical address bits: give 36 to 52",
            run.phys_bits
        ));
    }
    let pages_mib = run
        .hugepages_2m
        .checked_mul(2)
        .and_then(|small| small.checked_add(run.hugepages_1g.checked_mul(1024)?));
    if pages_mib.is_none_or(|mib| mib >= run.memory_mib) {
        return refuse(format!(
            "the huge pages do not fit into {} MiB of memory: give more --memory",
            run.memory_mib
        ));
    }
    check_nodes(run)
}

fn check_nodes(run: &HostRun) -> Result<(), HostError> {
    let refuse = |text: String| Err(HostError::Refused(text));
    let nodes = run.nodes_mib.len();
    if nodes > MOST_NODES {
        return refuse(format!("{nodes} NUMA nodes: give at most {MOST_NODES}"));
    }
    if run.nodes_mib.contains(&0) {
        return refuse("a NUMA node without memory: give each at least 1 MiB".into());
    }
    let sum = run
        .nodes_mib
        .iter()
        .try_fold(0u64, |sum, node| sum.checked_add(*node));
    if nodes > 0 && sum != Some(run.memory_mib) {
        return refuse(format!(
            "the nodes' memory does not sum up to the host's {} MiB",
            run.memory_mib
        ));
    }
    for distance in &run.distances {
        let node = |number: u32| usize::try_from(number).is_ok_and(|number| number < nodes);
        if distance.a == distance.b || !node(distance.a) || !node(distance.b) {
            return refuse(format!(
                "the distance {}-{}={} is not between two of the {nodes} nodes",
                distance.a, distance.b, distance.value
            ));
        }
        if distance.value <= 10 {
            return refuse(format!(
                "the distance {}-{}={} is not 11 to 255",
                distance.a, distance.b, distance.value
            ));
        }
    }
    Ok(())
}

/// All arguments of QEMU. The command's output leaves by its standard output;
/// its input, if there is one, is the socket that is QEMU's standard input.
pub(super) fn arguments(run: &HostRun, files: &RunFiles<'_>) -> Vec<OsString> {
    let mut list = Arguments(Vec::new());
    list.text(
        "-accel",
        match run.threads() {
            Threads::Single => "tcg,thread=single",
            Threads::Multi => "tcg,thread=multi",
        },
    );
    if run.clock == Clock::Instructions {
        list.text("-icount", "shift=0,sleep=off");
        list.text("-rtc", "clock=vm");
    }
    list.text(
        "-cpu",
        &format!("max,-erms,-fsrm,phys-bits={}", run.phys_bits),
    );
    list.text("-smp", &run.cpus.to_string());
    list.text("-m", &format!("{}M", run.memory_mib));
    nodes(run, &mut list);
    list.0.extend(
        ["-nodefaults", "-no-user-config", "-no-reboot"]
            .iter()
            .map(OsString::from),
    );
    list.text("-display", "none");
    list.path("-chardev", "file,id=console,path=", files.console, "");
    if files.input {
        // The `stdio` backend would read the socket, too.
        list.text("-chardev", "file,id=output,path=/dev/stdout");
        list.text("-chardev", "socket,id=input,fd=0");
        list.text("-device", "virtio-serial-pci,max_ports=2");
        list.text("-device", "virtserialport,chardev=input");
    } else {
        list.text("-chardev", "stdio,id=output,signal=off");
    }
    list.path("-chardev", "file,id=status,path=", files.status, "");
    for port in ["console", "output", "status"] {
        list.text("-serial", &format!("chardev:{port}"));
    }
    let socket = ",server=on,wait=off";
    list.path("-chardev", "socket,id=monitor,path=", files.monitor, socket);
    list.text("-mon", "chardev=monitor,mode=readline");
    list.0
        .extend([OsString::from("-kernel"), run.kernel.vmlinuz.clone().into()]);
    list.0
        .extend([OsString::from("-initrd"), files.initramfs.into()]);
    list.text("-append", &command_line(run));
    list.0
}

fn nodes(run: &HostRun, list: &mut Arguments) {
    let nodes = run.nodes_mib.len();
    if nodes == 0 {
        return;
    }
    let cpus = usize::try_from(run.cpus).unwrap_or(usize::MAX);
    for (node, mib) in run.nodes_mib.iter().enumerate() {
        list.text(
            "-object",
            &format!("memory-backend-ram,id=memory{node},size={mib}M"),
        );
        let mut text = format!("node,nodeid={node},memdev=memory{node}");
        // CPUs are dealt out in turn; with fewer CPUs than nodes the last
        // nodes have memory only.
        for cpu in (node..cpus).step_by(nodes) {
            let _ = write!(text, ",cpus={cpu}");
        }
        list.text("-numa", &text);
    }
    for a in 0..nodes {
        for b in a + 1..nodes {
            let named = |one: u32, other: u32| {
                usize::try_from(one) == Ok(a) && usize::try_from(other) == Ok(b)
            };
            let value = run
                .distances
                .iter()
                .rev()
                .find(|distance| named(distance.a, distance.b) || named(distance.b, distance.a))
                .map_or(DEFAULT_DISTANCE, |distance| distance.value);
            list.text("-numa", &format!("dist,src={a},dst={b},val={value}"));
        }
    }
}

fn command_line(run: &HostRun) -> String {
    let mut text =
        "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable clocksource=tsc".to_owned();
    text.push_str(match run.clock {
        Clock::Instructions => " highres=off",
        Clock::Wall => " highres=off nohz=off",
    });
    for (size, count) in [("1G", run.hugepages_1g), ("2M", run.hugepages_2m)] {
        if count > 0 {
            let _ = write!(text, " hugepagesz={size} hugepages={count}");
        }
    }
    text
}

struct Arguments(Vec<OsString>);

impl Arguments {
    fn text(&mut self, option: &str, value: &str) {
        self.0.extend([option.into(), value.into()]);
    }

    /// An option with a path in it; QEMU wants its commas doubled.
    fn path(&mut self, option: &str, before: &str, path: &Path, after: &str) {
        use std::os::unix::ffi::{OsStrExt, OsStringExt};
        let mut value = before.as_bytes().to_vec();
        for byte in path.as_os_str().as_bytes() {
            value.push(*byte);
            if *byte == b',' {
                value.push(b',');
            }
        }
        value.extend_from_slice(after.as_bytes());
        self.0.extend([option.into(), OsString::from_vec(value)]);
    }
}

/// The version QEMU names, as `7.2.22`.
pub(super) fn version(qemu: &Path) -> anyhow::Result<String> {
    use anyhow::Context;
    let output = Command::new(qemu)
        .arg("--version")
        .output()
        .with_context(|| format!("cannot run {}", qemu.display()))?;
    parse_version(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("{} --version names no version of QEMU", qemu.display()))
}

fn parse_version(text: &str) -> Option<String> {
    let rest = text.strip_prefix("QEMU emulator version ")?;
    rest.split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
#[path = "qemu_tests.rs"]
mod tests;
