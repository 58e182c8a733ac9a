//! The exit codes of `lmb`, the same for every command that asks a VM.

use std::process::ExitCode;

use lmb_vmm::protocol::{Operation, OperationState};

use crate::client::{CODE_DRIVER_NOT_ACTIVE, ClientError};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// What was asked is done (or runs, where no wait was asked).
    Done = 0,
    /// It failed, and the message says why.
    Error = 1,
    /// The command line was wrong.
    Usage = 2,
    /// The guest refused a part, or the deadline passed first and it may go on.
    Incomplete = 3,
    /// The operation was superseded, cancelled, or ended with its VM.
    Ended = 4,
    /// No guest driver is active that could follow.
    DriverNotActive = 5,
}

/// The codes as `--help` lists them.
pub const HELP: &str = "\
Exit codes:
  0  done: the guest has what was asked (with --no-wait: the operation runs)
  1  error: the message says what was wrong and what to do
  2  the command line was wrong
  3  incomplete: the guest refused a part, or the deadline passed first and it may go on
  4  superseded by a later operation, cancelled, or ended with its VM
  5  no memory driver is active in the guest";

impl Exit {
    /// The code for an operation as its reply shows it.
    #[must_use]
    pub fn of_operation(operation: &Operation) -> Self {
        match operation.state {
            OperationState::Running | OperationState::Done => Self::Done,
            OperationState::Incomplete => Self::Incomplete,
            OperationState::Superseded | OperationState::Cancelled | OperationState::Aborted => {
                Self::Ended
            }
        }
    }

    /// The code for an error that reached the edge.
    #[must_use]
    pub fn of_error(error: &anyhow::Error) -> Self {
        let client = error.chain().find_map(|e| e.downcast_ref::<ClientError>());
        match client.and_then(ClientError::code) {
            Some(CODE_DRIVER_NOT_ACTIVE) => Self::DriverNotActive,
            _ => Self::Error,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
