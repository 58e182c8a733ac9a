//! The VMM as a child process, on this machine's KVM.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::console::{Input, Vm};

/// A child process, killed when this is dropped.
#[derive(Debug)]
pub(super) struct ChildVm(Child);

impl ChildVm {
    /// Starts it with its standard input as `input` says.
    pub(super) fn start(command: &mut Command, input: Input) -> io::Result<Self> {
        let stdin = match input {
            Input::Terminal => Stdio::piped(),
            Input::Inherited => Stdio::inherit(),
            Input::Nothing => Stdio::null(),
        };
        command.stdin(stdin).spawn().map(Self)
    }
}

impl Vm for ChildVm {
    type End = ExitStatus;

    fn console(&mut self) -> io::Result<Option<OwnedFd>> {
        Ok(self.0.stdin.take().map(OwnedFd::from))
    }

    fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    fn ask_to_end(&mut self) -> io::Result<()> {
        // It has not been waited for, so its number is still its own.
        match kill_process(Pid::from_child(&self.0), Signal::TERM) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn kill(&mut self) -> io::Result<()> {
        self.0.kill()
    }
}

impl Drop for ChildVm {
    fn drop(&mut self) {
        // A VM without its lmb must not stay. Both fail only when it has
        // ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
