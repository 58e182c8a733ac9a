//! `lmb mem` and its exit codes.

use anyhow::{Context, Result};
use lmb_tests::{GuestVm, MIB, Output};
use serde_json::Value;

use crate::cases::Case;
use crate::shared::{self, Standing};

const STOCK: Standing = Standing::Stock61;

pub(crate) const CASES: &[Case] = &[
    Case::on(STOCK, "lmb::mem_show", 1, mem_show),
    Case::on(STOCK, "lmb::mem_add_set_remove", 6, mem_add_set_remove),
    Case::on(STOCK, "lmb::mem_operations", 3, mem_operations),
    Case::on(
        STOCK,
        "lmb::wrong_usage_and_refusals",
        1,
        wrong_usage_and_refusals,
    ),
    Case::on(
        Standing::Stalling,
        "lmb::incomplete_has_its_own_exit_code",
        5,
        incomplete,
    ),
    Case::on(
        Standing::Driverless,
        "lmb::no_driver_has_its_own_exit_code",
        1,
        no_driver,
    ),
];

fn expect(output: Output, status: i32) -> Result<Output> {
    assert_eq!(output.status, status, "{output:?}");
    Ok(output)
}

fn json(vm: &GuestVm, arguments: &[&str], status: i32) -> Result<Value> {
    let output = expect(vm.lmb(arguments)?, status)?;
    serde_json::from_str(&output.stdout).with_context(|| format!("{output:?}"))
}

fn mem_show() -> Result<()> {
    shared::with(STOCK, |vm| {
        let text = expect(vm.lmb(&["mem", "show"])?, 0)?.stdout;
        assert!(
            text.contains("128 MiB") && text.contains("256 MiB"),
            "{text}"
        );
        let info = json(vm, &["mem", "show", "--json"], 0)?;
        assert_eq!(info["lmb_size_bytes"], 128 * MIB);
        Ok(())
    })
}

fn mem_add_set_remove() -> Result<()> {
    shared::with(STOCK, |vm| {
        let add = json(vm, &["mem", "add", "256M", "--json"], 0)?;
        assert_eq!(add["state"], "done");
        assert_eq!(add["plugged_bytes"], 512 * MIB);
        expect(vm.lmb(&["mem", "add", "-q", "2", "--wait-usable"])?, 0)?;
        assert_eq!(vm.memory()?.total_bytes, 768 * MIB);
        expect(vm.lmb(&["mem", "set", "512M"])?, 0)?;
        assert_eq!(vm.memory()?.total_bytes, 512 * MIB);
        let text = expect(vm.lmb(&["mem", "remove", "-q", "2", "--timeout", "2m"])?, 0)?.stdout;
        assert!(!text.is_empty());
        assert_eq!(vm.memory()?.total_bytes, 256 * MIB);
        Ok(())
    })
}

fn mem_operations() -> Result<()> {
    shared::with(STOCK, |vm| {
        let id = expect(vm.lmb(&["mem", "add", "-q", "1", "--no-wait"])?, 0)?.stdout;
        let id: u64 = id.trim().parse().with_context(|| id.clone())?;
        vm.await_end(id)?;
        let one = json(vm, &["mem", "operations", &id.to_string(), "--json"], 0)?;
        assert_eq!(one["state"], "done", "{one}");
        let all = expect(vm.lmb(&["mem", "operations"])?, 0)?.stdout;
        assert!(all.contains(&id.to_string()), "{all}");
        Ok(())
    })
}

fn wrong_usage_and_refusals() -> Result<()> {
    shared::with(STOCK, |vm| {
        expect(vm.lmb(&["mem", "add"])?, 2)?;
        expect(vm.lmb(&["mem", "add", "1G", "-q", "1"])?, 2)?;
        expect(vm.lmb(&["mem", "add", "a lot"])?, 2)?;
        let output = expect(vm.lmb(&["mem", "add", "100M"])?, 1)?;
        // The nearest legal sizes.
        assert!(output.stderr.contains("128 MiB"), "{output:?}");
        let output = expect(vm.lmb(&["mem", "add", "64G"])?, 1)?;
        assert!(
            output.stderr.contains("MiB") || output.stderr.contains("GiB"),
            "{output:?}"
        );
        expect(vm.lmb(&["mem", "operations", "999999"])?, 1)?;
        expect(vm.lmb(&["mem", "cancel", "999999"])?, 1)?;
        Ok(())
    })
}

fn incomplete() -> Result<()> {
    shared::with(Standing::Stalling, |vm| {
        let output = expect(vm.lmb(&["mem", "add", "4G", "--timeout", "1500ms"])?, 3)?;
        let said = format!("{}{}", output.stdout, output.stderr);
        assert!(said.contains("incomplete"), "{said}");
        // Cancelled by id, by another lmb.
        let id = expect(vm.lmb(&["mem", "set", "4352M", "--no-wait"])?, 0)?.stdout;
        let id = id.trim();
        expect(vm.lmb(&["mem", "cancel", id])?, 0)?;
        let one = json(vm, &["mem", "operations", id, "--json"], 0)?;
        assert_eq!(one["state"], "cancelled", "{one}");
        Ok(())
    })
}

fn no_driver() -> Result<()> {
    shared::with(Standing::Driverless, |vm| {
        let output = expect(vm.lmb(&["mem", "add", "1G"])?, 5)?;
        assert!(output.stderr.contains("driver"), "{output:?}");
        let text = expect(vm.lmb(&["mem", "show"])?, 0)?.stdout;
        assert!(
            text.contains("driver") || text.contains("not active"),
            "{text}"
        );
        Ok(())
    })
}
