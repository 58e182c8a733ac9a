//! The demo's driver, which runs where the guest runs: boots a stock guest,
//! adds 1 GiB and removes it. `step …` lines say what goes on; a last line,
//! `result …`, carries everything as JSON.

use std::process::ExitCode;

use anyhow::{Context, Result};
use lmb_tests::{GIB, GuestSpec, Kernel};
use lmb_tools::host::detect;
use lmb_vmm::protocol::MemoryAction;
use serde_json::json;

fn main() -> ExitCode {
    let lmb_size = std::env::args().nth(1).unwrap_or_else(|| "256M".to_owned());
    // The VM's logs come with an error, as with a test's.
    match lmb_tests::report::run(|| demo(&lmb_size)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(report) => {
            eprintln!("{report}");
            ExitCode::FAILURE
        }
    }
}

fn demo(lmb_size: &str) -> Result<()> {
    println!("step booting the guest");
    let vm = GuestSpec::new(Kernel::V6_1)
        .memory("1G")
        .max_memory("16G")
        .lmb_size(lmb_size)
        .boot_with_driver()
        .context("the guest does not boot")?;
    println!("step adding 1 GiB");
    let add = vm.change_ok(MemoryAction::Add, GIB)?;
    let memory = vm.memory()?;
    println!("step removing 1 GiB");
    let remove = vm.change_ok(MemoryAction::Remove, GIB)?;
    let result = json!({
        "host": detect::host_kind(),
        "vm": vm.client().vm()?,
        "memory": memory,
        "add": add,
        "remove": remove,
    });
    println!("result {result}");
    Ok(())
}
