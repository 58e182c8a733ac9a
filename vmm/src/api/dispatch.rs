//! Carries out what a request asks for, on the coordinator and the VM. Runs
//! on the event loop's thread; nothing here waits.

use super::http::Reply;
use super::metrics;
use super::routes::Action;
use crate::coordinator::{CancelError, Coordinator, OperationId, RequestError};
use crate::protocol::{BootTimeline, MemoryRequest, Operation, OperationState, VmInfo};

/// What the API asks of the machine itself. Both requests are noted and
/// carried out after the reply, by the event loop.
pub trait VmControl {
    /// The VM as a whole; `boot` are the stamps of the latest boot.
    fn vm_info(&self, boot: &BootTimeline) -> VmInfo;
    /// Asks for the VM's end, as if its power button were held.
    fn power_off(&mut self);
    /// Asks for a reset, as if its reset button were pressed.
    fn reset(&mut self);
}

/// What a request may act on.
pub struct Context<'a> {
    /// Memory and operations.
    pub coordinator: &'a mut Coordinator,
    /// The machine.
    pub vm: &'a mut dyn VmControl,
}

/// What a request comes to.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The reply.
    Reply(Reply),
    /// The reply comes when the operation has ended.
    Hold(Held),
}

/// A reply that waits for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) operation: OperationId,
    /// Also until the guest has reported the memory usable, or the deadline.
    pub(super) wait_usable: bool,
}

/// Carries `action` out. `accepted_ns` is when its request had been read.
pub(super) fn dispatch(action: Action, accepted_ns: u64, context: &mut Context<'_>) -> Outcome {
    let reply = match action {
        Action::Vm => Reply::json(200, &vm_info(context)),
        Action::PowerOff => {
            context.vm.power_off();
            Reply::no_content()
        }
        Action::Reset => {
            context.vm.reset();
            Reply::no_content()
        }
        Action::Memory => Reply::json(200, &context.coordinator.memory_info()),
        Action::Lmbs => Reply::json(200, &context.coordinator.lmb_list()),
        Action::StartOperation(request) => return start(&request, accepted_ns, context),
        Action::Operations => Reply::json(200, &context.coordinator.operations()),
        Action::Operation(id) => match context.coordinator.operation(id) {
            Some(operation) => Reply::json(200, &operation),
            None => unknown(&CancelError::Unknown(id)),
        },
        Action::Cancel(id) => match context.coordinator.cancel(id) {
            Ok(operation) => Reply::json(200, &operation),
            Err(error @ CancelError::Unknown(_)) => unknown(&error),
            Err(error @ CancelError::Ended(..)) => {
                Reply::error(409, "operation_ended", error.to_string())
            }
        },
        Action::Metrics => {
            let text = metrics::render(
                &vm_info(context),
                &context.coordinator.memory_info(),
                &context.coordinator.operation_counts(),
            );
            Reply::new(200, metrics::CONTENT_TYPE, text.into_bytes())
        }
    };
    Outcome::Reply(reply)
}

/// The reply of a held call, if it is due: the operation has ended, or was
/// forgotten meanwhile.
pub(super) fn held_reply(held: Held, now_ns: u64, context: &mut Context<'_>) -> Option<Reply> {
    let Held {
        operation,
        wait_usable,
    } = held;
    if !context
        .coordinator
        .reply_due(operation, wait_usable, now_ns)
    {
        return None;
    }
    Some(match context.coordinator.reply(operation) {
        Some(operation) => Reply::json(200, &operation),
        None => unknown(&CancelError::Unknown(operation)),
    })
}

fn vm_info(context: &Context<'_>) -> VmInfo {
    context.vm.vm_info(context.coordinator.boot().timeline())
}

fn unknown(error: &CancelError) -> Reply {
    Reply::error(404, "not_found", error.to_string())
}

fn start(request: &MemoryRequest, accepted_ns: u64, context: &mut Context<'_>) -> Outcome {
    let started = context.coordinator.start_operation(request, accepted_ns);
    let id = match started {
        Ok(id) => id,
        Err(error) => {
            let reply = Reply::error(status_of(&error), error.code(), error.to_string());
            return Outcome::Reply(reply);
        }
    };
    if request.wait {
        return Outcome::Hold(Held {
            operation: id,
            wait_usable: request.wait_usable,
        });
    }
    Outcome::Reply(match context.coordinator.operation(id) {
        Some(operation) => started_reply(&operation),
        None => unknown(&CancelError::Unknown(id)),
    })
}

/// 202 while the operation runs; one that had nothing to do has ended.
fn started_reply(operation: &Operation) -> Reply {
    let status = match operation.state {
        OperationState::Running => 202,
        _ => 200,
    };
    Reply::json(status, operation)
}

fn status_of(error: &RequestError) -> u16 {
    match error {
        RequestError::BadAmount(_)
        | RequestError::ZeroAmount(..)
        | RequestError::BadTimeout(_)
        | RequestError::NotWholeLmbs { .. }
        | RequestError::BadOption(_)
        | RequestError::BadIndices(_)
        | RequestError::NoSuchLmb(..)
        | RequestError::BootLmb(..)
        | RequestError::BelowBoot { .. }
        | RequestError::AboveMax { .. } => 400,
        RequestError::NoWindow
        | RequestError::DriverNotActive
        | RequestError::GuestNotUp
        | RequestError::IndicesNeedAcpi
        | RequestError::LmbState(..)
        | RequestError::WindowFailed(_)
        | RequestError::Resetting => 409,
        RequestError::Books(_) => 500,
    }
}
