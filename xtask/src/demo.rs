//! `cargo xtask demo`: one guest, memory added and removed, shown as tables.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use lmb_tools::host::{HostRun, detect};
use lmb_tools::output::entry_name;
use lmb_tools::packages::{self, Cache, DEFAULT_KERNEL_PACKAGE, KernelPackage, Progress};
use lmb_tools::units::{format_ms, format_size};
use lmb_vmm::protocol::{MemoryInfo, Operation, VmInfo};
use serde_json::Value;

use crate::artifacts::Programs;
use crate::inputs::{self, Guest, put};

/// The driver: boots, adds, removes, and prints one line of JSON.
const DRIVER: &str = "lmb-demo-guest";
/// What the demo may take in the virtual host.
const LIMIT: Duration = Duration::from_secs(300);

/// Options of `cargo xtask demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// A guest kernel of one's own (bzImage or ELF) in place of Debian's
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,
    /// The lib/modules/VERSION directory of --kernel
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules_dir: Option<PathBuf>,
    /// Size of an LMB
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    lmb_size: String,
}

/// What the driver reports.
struct Report {
    host: String,
    vm: VmInfo,
    memory: MemoryInfo,
    add: Operation,
    remove: Operation,
}

/// Runs the demo.
///
/// # Errors
/// When anything is missing or the guest does not do what is asked.
pub(crate) fn run(args: &DemoArgs) -> Result<bool> {
    let programs = Programs::build()?;
    let start = Instant::now();
    let progress = Progress::new();
    let note = |text: &str| progress.step(text);
    let cache = Cache::open()?;
    let debian = KernelPackage::fetch(&cache, DEFAULT_KERNEL_PACKAGE, false, &note)?;
    let kernel = match &args.kernel {
        Some(path) => KernelPackage::from_files(path, args.modules_dir.as_deref())?,
        None => debian.clone(),
    };
    let agent = programs.path("lmb-guest-agent")?;
    let guest = inputs::guest("6_1", kernel, &agent, &[], &cache, &note)?;
    let mut found = None;
    let mut line = |text: &str| match text.split_once(' ') {
        Some(("step", what)) => progress.step(what),
        Some(("result", json)) => found = Some(json.to_owned()),
        _ => progress.step(text),
    };
    if let Err(reason) = detect::native_kvm() {
        progress.step(&format!("booting a virtual KVM host, since {reason}"));
        in_virtual_host(args, &programs, &guest, debian, &cache, &mut line)?;
    } else {
        on_this_machine(args, &programs, &guest, &mut line)?;
    }
    progress.clear();
    let report = read(&found.context("the demo's guest reported nothing")?)?;
    println!("{}", tables(&report, &guest.kernel));
    println!(
        "took {:.1} s without the build",
        start.elapsed().as_secs_f64()
    );
    Ok(true)
}

fn on_this_machine(
    args: &DemoArgs,
    programs: &Programs,
    guest: &Guest,
    line: &mut dyn FnMut(&str),
) -> Result<()> {
    let output = Command::new(programs.path(DRIVER)?)
        .arg(&args.lmb_size)
        .env("LMB_VMM", programs.path("lmb-vmm")?)
        .env("LMB_GUEST_KERNEL_6_1", &guest.kernel.vmlinuz)
        .env("LMB_GUEST_INITRD_6_1", &guest.initrd)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run the demo's driver")?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .for_each(line);
    if !output.status.success() {
        bail!("the demo's guest failed ({})", output.status);
    }
    Ok(())
}

fn in_virtual_host(
    args: &DemoArgs,
    programs: &Programs,
    guest: &Guest,
    host_kernel: KernelPackage,
    cache: &Cache,
    line: &mut dyn FnMut(&str),
) -> Result<()> {
    let qemu = packages::qemu(&|_| {})?;
    let command = vec![DRIVER.into(), args.lmb_size.clone().into()];
    let mut host = HostRun::new(host_kernel, qemu, command);
    host.limit = LIMIT;
    let file = |source: &Path, dest: &str| put(source, dest);
    host.files = vec![
        file(&programs.path(DRIVER)?, &format!("bin/{DRIVER}")),
        file(&programs.path("lmb-vmm")?, "bin/lmb-vmm"),
        file(&guest.kernel.vmlinuz, "guest/kernel"),
        file(&guest.initrd, "guest/initrd"),
    ];
    host.environment = vec![
        ("LMB_GUEST_KERNEL_6_1".to_owned(), "/guest/kernel".into()),
        ("LMB_GUEST_INITRD_6_1".to_owned(), "/guest/initrd".into()),
    ];
    match host.run_lines(cache, &mut |text| line(text.trim_end_matches('\r')))? {
        0 => Ok(()),
        code => bail!("the demo's guest failed (exit code {code})"),
    }
}

fn read(json: &str) -> Result<Report> {
    let value: Value = serde_json::from_str(json).with_context(|| format!("no JSON: {json}"))?;
    let part = |name: &str| value.get(name).cloned().unwrap_or_default();
    Ok(Report {
        host: part("host").as_str().unwrap_or("unknown").to_owned(),
        vm: serde_json::from_value(part("vm"))?,
        memory: serde_json::from_value(part("memory"))?,
        add: serde_json::from_value(part("add"))?,
        remove: serde_json::from_value(part("remove"))?,
    })
}

fn tables(report: &Report, kernel: &KernelPackage) -> String {
    let Report { vm, memory, .. } = report;
    let ms = |stamp: Option<u64>| stamp.map_or_else(|| "-".to_owned(), |ns| format_ms(ns) + " ms");
    let window_lmbs: u64 = memory.windows.iter().map(|w| w.total_lmbs).sum();
    let mut facts = Table::new();
    facts.load_preset(UTF8_FULL_CONDENSED);
    for (name, value) in [
        ("LMB size", format_size(memory.lmb_size_bytes)),
        (
            "LMBs",
            format!("{} at boot, {window_lmbs} in the window", memory.boot_lmbs),
        ),
        (
            "guest's memory block",
            format_size(memory.guest_block_size_bytes),
        ),
        ("boot: first entry", ms(vm.boot.first_entry_ns)),
        ("boot: guest's init", ms(vm.boot.init_ns)),
        (
            "guest kernel",
            format!(
                "{} {}, entry {}",
                kernel.version,
                kernel.package_version.as_deref().unwrap_or(""),
                entry_name(vm.kernel.entry)
            ),
        ),
        ("guest command line", vm.kernel.cmdline.clone()),
        ("host", report.host.clone()),
    ] {
        facts.add_row([name.to_owned(), value]);
    }
    let mut phases = Table::new();
    phases.load_preset(UTF8_FULL_CONDENSED);
    phases.set_header([
        "since acceptance",
        "announced",
        "first request",
        "last answer",
        "usable in the guest",
        "replied",
        "LMBs",
        "guest requests",
    ]);
    for (name, operation) in [("add", &report.add), ("remove", &report.remove)] {
        let t = &operation.timeline;
        let usable = if t.usable_late { " (late)" } else { "" };
        let requests = &operation.requests;
        phases.add_row([
            format!(
                "{name} {}",
                format_size(operation.target_bytes.abs_diff(operation.from_bytes))
            ),
            ms(t.announced_ns),
            ms(t.first_request_ns),
            ms(t.last_answer_ns),
            ms(t.usable_ns) + usable,
            ms(t.replied_ns),
            requests.blocks.to_string(),
            (requests.plug + requests.unplug + requests.unplug_all).to_string(),
        ]);
    }
    for column in phases.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{facts}\n{phases}")
}
