//! The guest's memory block follows the LMB, and layouts are explained and
//! refused as they should be.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use lmb_tests::{GuestSpec, Kernel, MIB, Output, vmm_program};
use lmb_vmm::protocol::MemoryAction;
use serde_json::Value;

use crate::cases::{Case, Needs};

pub(crate) const CASES: &[Case] = &[
    Case::new("geometry::guest_block_of_128_mib", 5, || block("128M", 128)),
    Case::new("geometry::guest_block_of_256_mib", 5, || block("256M", 256)),
    Case::new("geometry::guest_block_of_512_mib", 5, || block("512M", 512)),
    Case::new("geometry::guest_block_of_1_gib", 5, || block("1G", 1024)),
    Case::new("geometry::guest_block_of_2_gib", 8, || block("2G", 2048)),
    Case::new(
        "geometry::guest_block_of_its_own",
        10,
        guest_block_of_its_own,
    ),
    Case::new("geometry::guest_block_of_256_mib_6_12", 6, guest_block_6_12),
    Case::new("geometry::lmb_of_4_gib", 15, lmb_of_4_gib),
    Case::new(
        "geometry::a_window_of_64_tib_costs_little",
        20,
        a_window_of_64_tib_costs_little,
    ),
    nothing(
        "geometry::dry_run_lists_the_layout",
        dry_run_lists_the_layout,
    ),
    nothing("geometry::dry_run_of_64_tib", dry_run_of_64_tib),
    nothing(
        "geometry::boot_memory_is_rounded_up_with_a_notice",
        rounded_up_with_a_notice,
    ),
    nothing(
        "geometry::illegal_sizes_name_the_nearest",
        illegal_sizes_name_the_nearest,
    ),
    nothing(
        "geometry::another_lmb_size_prints_old_and_new",
        another_lmb_size,
    ),
    nothing(
        "geometry::a_file_with_unknown_fields_is_refused",
        unknown_fields_are_refused,
    ),
];

const fn nothing(name: &'static str, run: fn() -> Result<()>) -> Case {
    Case::new(name, 0, run).needing(Needs::Nothing)
}

/// Boots with LMBs of this size and reads the guest's own block size.
fn block(lmb: &str, block_mib: u64) -> Result<()> {
    let memory = if block_mib < 512 { "512M" } else { lmb };
    check_block(
        Kernel::V6_1,
        GuestSpec::new(Kernel::V6_1).memory(memory).lmb_size(lmb),
        block_mib,
    )
}

fn check_block(kernel: Kernel, spec: GuestSpec, block_mib: u64) -> Result<()> {
    let mut vm = spec.boot()?;
    let text = vm.sh_ok("cat /sys/devices/system/memory/block_size_bytes")?;
    assert_eq!(
        u64::from_str_radix(&text, 16)?,
        block_mib * MIB,
        "{kernel:?}"
    );
    assert_eq!(vm.memory()?.guest_block_size_bytes, block_mib * MIB);
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

fn guest_block_6_12() -> Result<()> {
    let spec = GuestSpec::new(Kernel::V6_12)
        .memory("512M")
        .lmb_size("256M");
    check_block(Kernel::V6_12, spec, 256)
}

fn guest_block_of_its_own() -> Result<()> {
    let spec = GuestSpec::new(Kernel::V6_1)
        .memory("512M")
        .lmb_size("128M")
        .flag("guest-block-size", "512M")
        .max_memory("2560M");
    let mut vm = spec.boot_with_driver()?;
    let text = vm.sh_ok("cat /sys/devices/system/memory/block_size_bytes")?;
    assert_eq!(u64::from_str_radix(&text, 16)?, 512 * MIB);
    // Memory still comes in LMBs, inside of the guest's larger blocks.
    let before = vm.mem_total_bytes()?;
    let add = vm.change_ok(MemoryAction::Add, 1152 * MIB)?;
    assert_eq!(add.requests.blocks, 9);
    assert_eq!(vm.mem_total_bytes()?, before + 1152 * MIB);
    vm.change_ok(MemoryAction::Remove, 1152 * MIB)?;
    assert_eq!(vm.mem_total_bytes()?, before);
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

fn lmb_of_4_gib() -> Result<()> {
    let mut vm = GuestSpec::new(Kernel::V6_1)
        .memory("4G")
        .lmb_size("4G")
        .max_memory("8G")
        // The guest would zero what it gives back, and the host need 4 GiB.
        .append("init_on_alloc=0")
        .boot_with_driver()?;
    let before = vm.mem_total_bytes()?;
    let add = vm.change_ok(MemoryAction::Add, 4096 * MIB)?;
    assert_eq!(add.requests.blocks, 1, "{add:#?}");
    assert_eq!(vm.mem_total_bytes()?, before + 4096 * MIB);
    vm.change_ok(MemoryAction::Remove, 4096 * MIB)?;
    assert_eq!(vm.complaints()?, [""; 0]);
    Ok(())
}

fn a_window_of_64_tib_costs_little() -> Result<()> {
    const LMBS: u64 = 524_288;
    let window_mib = LMBS * 128;
    let spec = GuestSpec::new(Kernel::V6_1).lmb_size("128M");
    let small = spec.boot()?.own_pss_bytes()?;
    let mut vm = spec
        .max_memory(&format!("{}M", window_mib + 256))
        .boot_with_driver()?;
    let large = vm.own_pss_bytes()?;
    let boot = vm.client().vm()?.boot;
    let entry = boot.first_entry_ns.context("no entry")?;
    let kernel = boot.kernel_loaded_ns.context("no kernel")?;
    ensure!(
        large < small + 2 * MIB,
        "{small} bytes without the window, {large} with it"
    );
    // Unpacking the kernel dominates; the books must not show beside it.
    ensure!(entry < kernel + 1_000_000_000, "{boot:?}");
    let memory = vm.memory()?;
    assert_eq!(memory.max_bytes, (window_mib + 256) * MIB);
    assert_eq!(memory.windows[0].total_lmbs, LMBS);
    assert_eq!(memory.windows[0].size_bytes, window_mib * MIB);
    assert_eq!(memory.windows[0].plugged_lmbs, 0);
    let before = vm.mem_total_bytes()?;
    let add = vm.change_ok(MemoryAction::Add, 128 * MIB)?;
    assert_eq!(add.requests.blocks, 1, "{add:#?}");
    assert_eq!(vm.mem_total_bytes()?, before + 128 * MIB);
    let plugged = vm.own_pss_bytes()?;
    ensure!(
        plugged < small + 2 * MIB,
        "{small} bytes without the window, {plugged} with an LMB of it"
    );
    vm.change_ok(MemoryAction::Remove, 128 * MIB)?;
    Ok(())
}

fn run(arguments: &[&str]) -> Result<Output> {
    let output = Command::new(vmm_program()?)
        .args(arguments)
        .output()
        .context("cannot run lmb-vmm")?;
    Ok(Output {
        status: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

fn dry_run_lists_the_layout() -> Result<()> {
    let arguments = [
        "--dry-run",
        "--memory",
        "4G",
        "--max-memory",
        "12G",
        "--lmb-size",
        "256M",
    ];
    let text = run(&arguments)?;
    assert_eq!(text.status, 0, "{text:?}");
    for part in ["256 MiB", "4 GiB", "8 GiB"] {
        assert!(text.stdout.contains(part), "{part}: {}", text.stdout);
    }
    let output = run(&[&arguments[..], &["--json"]].concat())?;
    let json: Value =
        serde_json::from_str(&output.stdout).with_context(|| format!("{output:?}"))?;
    assert_eq!(json["boot_lmbs"], 16);
    assert_eq!(json["window"]["lmbs"], 32);
    assert_eq!(json["guest_block_size_bytes"], 256 * MIB);
    let pieces = json["boot_pieces"].as_array().context("no pieces")?;
    let sum: u64 = pieces.iter().filter_map(|p| p["size_bytes"].as_u64()).sum();
    assert_eq!(sum, 4096 * MIB, "{json}");
    assert!(
        pieces.len() >= 2,
        "a piece on each side of the hole: {json}"
    );
    Ok(())
}

fn dry_run_of_64_tib() -> Result<()> {
    let output = run(&[
        "--dry-run",
        "--json",
        "--memory",
        "1G",
        "--max-memory",
        "67109888M",
        "--lmb-size",
        "128M",
    ])?;
    assert_eq!(output.status, 0, "{output:?}");
    let json: Value = serde_json::from_str(&output.stdout)?;
    assert_eq!(json["window"]["lmbs"], 524_288);
    assert!(
        json["worst_case_mappings"].as_u64() > Some(65_530),
        "{json}"
    );
    let notices = json["notices"].to_string();
    assert!(notices.contains("max_map_count"), "{notices}");
    Ok(())
}

fn rounded_up_with_a_notice() -> Result<()> {
    let output = run(&["--dry-run", "--memory", "300M", "--lmb-size", "256M"])?;
    assert_eq!(output.status, 0, "{output:?}");
    let all = format!("{}{}", output.stdout, output.stderr);
    let notice = all
        .lines()
        .find(|line| line.contains("300 MiB"))
        .with_context(|| format!("no notice names 300 MiB: {all}"))?;
    assert!(notice.contains("512 MiB"), "{notice}");
    // Nothing to say of a size that fits.
    let output = run(&[
        "--dry-run",
        "--json",
        "--memory",
        "512M",
        "--lmb-size",
        "256M",
    ])?;
    let json: Value = serde_json::from_str(&output.stdout)?;
    assert_eq!(json["notices"], Value::Array(Vec::new()), "{json}");
    Ok(())
}

fn illegal_sizes_name_the_nearest() -> Result<()> {
    let cases: [(&[&str], &[&str]); 4] = [
        (&["--lmb-size", "3M"], &["2 MiB", "4 MiB"]),
        (&["--lmb-size", "8G"], &["4 GiB"]),
        (&["--lmb-size", "1M"], &["2 MiB"]),
        (
            &["--memory", "1G", "--max-memory", "1300M"],
            &["1280 MiB", "1536 MiB"],
        ),
    ];
    for (arguments, nearest) in cases {
        let output = run(&[&["--dry-run"], arguments].concat())?;
        assert_ne!(output.status, 0, "{arguments:?}: {output:?}");
        for size in nearest {
            assert!(
                output.stderr.contains(size),
                "{arguments:?}, {size}: {}",
                output.stderr
            );
        }
    }
    Ok(())
}

fn definition(json: &str) -> Result<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), json)?;
    Ok(file)
}

fn another_lmb_size() -> Result<()> {
    let file = definition(r#"{"memory":"2560M","max_memory":"16896M","lmb_size":"256M"}"#)?;
    let path = file.path().display().to_string();
    let output = run(&["--dry-run", "--config", &path, "--lmb-size", "512M"])?;
    assert_eq!(output.status, 0, "{output:?}");
    let all = format!("{}{}", output.stdout, output.stderr);
    let line = all
        .lines()
        .find(|line| line.contains('→'))
        .with_context(|| format!("no old → new: {all}"))?;
    for part in ["256 MiB", "512 MiB", "10 LMBs", "5 LMBs"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    Ok(())
}

fn unknown_fields_are_refused() -> Result<()> {
    let file = definition(r#"{"memory":"1G","lmb-sise":"256M"}"#)?;
    let path = file.path().display().to_string();
    let output = run(&["--dry-run", "--config", &path])?;
    assert_ne!(output.status, 0, "{output:?}");
    assert!(output.stderr.contains("lmb-sise"), "{output:?}");
    Ok(())
}
