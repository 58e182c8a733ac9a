//! Guests that cannot do what is asked, and operations that end otherwise
//! than done.

use std::time::{Duration, Instant};

use anyhow::Result;
use lmb_tests::{GIB, GuestVm, MIB};
use lmb_tools::client::ClientError;
use lmb_vmm::protocol::{MemoryAction, MemoryRequest, Operation, OperationState};

use crate::cases::Case;
use crate::shared::{self, Standing};

const STALLING: Standing = Standing::Stalling;
const DRIVERLESS: Standing = Standing::Driverless;

pub(crate) const CASES: &[Case] = &[
    Case::on(
        STALLING,
        "mem::deadline_ends_as_incomplete",
        10,
        deadline_ends_as_incomplete,
    ),
    Case::on(
        STALLING,
        "mem::guest_may_finish_after_the_deadline",
        10,
        guest_may_finish_after_the_deadline,
    ),
    Case::on(
        STALLING,
        "mem::second_operation_supersedes",
        8,
        second_operation_supersedes,
    ),
    Case::on(
        STALLING,
        "mem::cancel_keeps_what_is_plugged",
        8,
        cancel_keeps_what_is_plugged,
    ),
    Case::on(
        STALLING,
        "mem::reset_aborts_the_operation",
        15,
        reset_aborts_the_operation,
    ),
    Case::on(
        DRIVERLESS,
        "mem::no_driver_is_said_at_once",
        1,
        no_driver_is_said_at_once,
    ),
];

/// Asks for more than the guest will plug while nobody onlines it.
fn too_much(vm: &GuestVm, timeout_ms: u64, wait: bool) -> Result<Operation> {
    Ok(vm.client().start_operation(&MemoryRequest {
        action: MemoryAction::Set,
        size_bytes: Some(4 * GIB + 256 * MIB),
        lmbs: None,
        timeout_ms,
        wait,
        wait_usable: false,
        ..MemoryRequest::new(MemoryAction::Set)
    })?)
}

fn deadline_ends_as_incomplete() -> Result<()> {
    shared::with(STALLING, |vm| {
        let start = Instant::now();
        let operation = too_much(vm, 4000, true)?;
        let took = start.elapsed();
        assert_eq!(
            operation.state,
            OperationState::Incomplete,
            "{operation:#?}"
        );
        assert!(took >= Duration::from_secs(4), "{took:?}");
        assert!(took < Duration::from_secs(7), "{took:?}");
        assert!(operation.plugged_bytes > 256 * MIB, "{operation:#?}");
        assert!(
            operation.plugged_bytes < operation.target_bytes,
            "{operation:#?}"
        );
        assert_eq!(operation.timeline.last_answer_ns, None, "{operation:#?}");
        assert_eq!(operation.timeline.usable_ns, None, "{operation:#?}");
        let message = operation.message.unwrap_or_default();
        assert!(
            message.contains("GiB") || message.contains("MiB"),
            "{message}"
        );
        // The target stands, and status says so.
        let memory = vm.memory()?;
        assert_eq!(memory.target_bytes, 4 * GIB + 256 * MIB);
        assert_eq!(memory.total_bytes, operation.plugged_bytes);
        Ok(())
    })
}

fn guest_may_finish_after_the_deadline() -> Result<()> {
    shared::with(STALLING, |vm| {
        let operation = too_much(vm, 1500, true)?;
        assert_eq!(
            operation.state,
            OperationState::Incomplete,
            "{operation:#?}"
        );
        // Somebody onlines the blocks, and the guest goes on by itself.
        vm.sh_ok(
            "echo online_movable > /sys/devices/system/memory/auto_online_blocks; \
             for f in /sys/devices/system/memory/memory*/state; do \
             grep -q offline $f && echo online_movable > $f; done; true",
        )?;
        lmb_tests::wait::until("the guest to finish", lmb_tests::wait::CHANGE, || {
            let memory = vm.memory()?;
            Ok((memory.total_bytes == memory.target_bytes).then_some(()))
        })?;
        vm.sh_ok("echo offline > /sys/devices/system/memory/auto_online_blocks")?;
        // What ended as incomplete stays so.
        let after = vm.client().operation(operation.id)?;
        assert_eq!(after.state, OperationState::Incomplete);
        Ok(())
    })
}

fn second_operation_supersedes() -> Result<()> {
    shared::with(STALLING, |vm| {
        let first = too_much(vm, 60_000, false)?;
        assert_eq!(first.state, OperationState::Running);
        // Nobody onlines it, so it is not waited for as usable.
        let second = vm.begin(MemoryAction::Set, 512 * MIB)?;
        let second = vm.await_end(second.id)?;
        assert_eq!(second.state, OperationState::Done, "{second:#?}");
        assert!(second.id > first.id);
        let first = vm.client().operation(first.id)?;
        assert_eq!(first.state, OperationState::Superseded, "{first:#?}");
        assert!(first.message.is_some(), "{first:#?}");
        assert_eq!(vm.memory()?.total_bytes, 512 * MIB);
        Ok(())
    })
}

fn cancel_keeps_what_is_plugged() -> Result<()> {
    shared::with(STALLING, |vm| {
        let operation = too_much(vm, 60_000, false)?;
        lmb_tests::wait::until("the first block", lmb_tests::wait::SHORT, || {
            let memory = vm.memory()?;
            Ok((memory.total_bytes > memory.boot_bytes).then_some(()))
        })?;
        let cancelled = vm.client().cancel(operation.id)?;
        assert_eq!(cancelled.state, OperationState::Cancelled, "{cancelled:#?}");
        // A request under way at that moment may still be taken back.
        let memory = lmb_tests::wait::until("the guest to agree", lmb_tests::wait::SHORT, || {
            let memory = vm.memory()?;
            Ok((memory.total_bytes == memory.target_bytes).then_some(memory))
        })?;
        assert!(memory.total_bytes < 4 * GIB + 256 * MIB, "{memory:#?}");
        // Twice is a refusal.
        assert!(vm.client().cancel(operation.id).is_err());
        Ok(())
    })
}

fn reset_aborts_the_operation() -> Result<()> {
    shared::with(STALLING, |vm| {
        let operation = too_much(vm, 60_000, false)?;
        vm.client().reset()?;
        vm.await_shell()?;
        vm.await_driver()?;
        let operation = vm.client().operation(operation.id)?;
        assert_eq!(operation.state, OperationState::Aborted, "{operation:#?}");
        Ok(())
    })
}

fn no_driver_is_said_at_once() -> Result<()> {
    shared::with(DRIVERLESS, |vm| {
        assert!(!vm.memory()?.windows[0].driver_active);
        let start = Instant::now();
        for (action, bytes) in [
            (MemoryAction::Add, 128 * MIB),
            (MemoryAction::Set, 512 * MIB),
        ] {
            let refused = vm.change(action, bytes).err();
            let refused = refused
                .as_ref()
                .and_then(|e| e.downcast_ref::<ClientError>());
            let code = refused.and_then(ClientError::code);
            assert_eq!(code, Some("driver_not_active"), "{action:?}: {refused:?}");
        }
        assert!(
            start.elapsed() < Duration::from_secs(1),
            "{:?}",
            start.elapsed()
        );
        let reply = vm.curl().post(
            "/memory/operations",
            r#"{"action":"add","lmbs":1,"wait":true}"#,
        )?;
        assert_eq!(reply.refusal()?.code, "driver_not_active", "{reply:?}");
        assert_eq!(vm.memory()?.target_bytes, 256 * MIB);
        Ok(())
    })
}
