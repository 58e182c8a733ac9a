//! A VM of a VMM that offers no port for the agent's boot marks, and says of
//! its memory device no more than how much is plugged now.
//!
//! The marks come over the guest's console. "Guest usable" is the last mark of
//! a block that came online or went. Nobody is asked while memory changes,
//! which would take the guest's time: once as many blocks as were wanted have
//! come or gone, or when marks have stopped, the VMM is asked until it says
//! that all is plugged. "Device done" is the time of that answer, and so late.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::marks::{self, Mark, Marks};
use super::process::Running;
use super::{Booted, Change, Changed, Vm, span};
use crate::bench::figures::{cpu_ns, monotonic_ns};
use crate::bench::sample::{BootPhases, DlparPhases};

/// How often a VMM is asked whether its device is done, once the guest is.
const PERIOD: Duration = Duration::from_millis(4);

/// What a VMM is asked over its API.
pub(super) trait Control: std::fmt::Debug {
    /// Asks for so much hotplugged memory.
    fn request(&self, bytes: u64) -> Result<()>;
    /// How much is plugged now.
    fn plugged_bytes(&self) -> Result<u64>;
    /// Whether that can be what was asked for, before it is there. Then the
    /// guest's blocks must agree.
    fn runs_ahead(&self) -> bool;
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct RemoteVm<C> {
    running: Running,
    marks: Marks,
    control: C,
    plugs_at_boot_bytes: u64,
    plugged_bytes: u64,
    /// The guest's memory block, once it was asked.
    block_bytes: Option<u64>,
}

/// How a change went.
struct Settled {
    /// The last block's mark.
    last: Option<Mark>,
    /// When the VMM said that it had plugged as much as wanted.
    done_ns: Option<u64>,
}

impl<C: Control> RemoteVm<C> {
    pub(super) fn new(
        running: Running,
        marks: Marks,
        control: C,
        plugs_at_boot_bytes: u64,
    ) -> Self {
        Self {
            running,
            marks,
            control,
            plugs_at_boot_bytes,
            plugged_bytes: 0,
            block_bytes: None,
        }
    }

    /// Waits until `target_bytes` are plugged and the guest has said so by
    /// marks with `code`.
    fn settle(&mut self, code: u8, target_bytes: u64, limit: Duration) -> Result<Settled> {
        let start = Instant::now();
        let moved = target_bytes.abs_diff(self.plugged_bytes);
        let wanted = blocks(moved, self.block_bytes);
        let mut last = None;
        let mut seen = 0_u64;
        loop {
            let left = || limit.saturating_sub(start.elapsed());
            let enough = wanted.is_some_and(|wanted| seen >= wanted);
            if !enough && let Some(mark) = self.marks.next(left().min(marks::QUIET))? {
                if mark.code == code {
                    last = Some(mark);
                    seen = seen.saturating_add(1);
                }
                continue;
            }
            self.plugged_bytes = self.control.plugged_bytes()?;
            let at_ns = monotonic_ns();
            let believed = enough || wanted.is_none() || !self.control.runs_ahead();
            let done = self.plugged_bytes == target_bytes && believed;
            if done || left().is_zero() {
                return Ok(Settled {
                    last,
                    done_ns: done.then_some(at_ns),
                });
            }
            if enough {
                // The guest is done, and its last request is on its way.
                thread::sleep(PERIOD.min(left()));
            }
        }
    }

    /// Asks the guest's shell for the size of its memory blocks.
    fn learn_block(&mut self) -> Result<()> {
        self.open_shell()?;
        let text = self.run("cat /sys/devices/system/memory/block_size_bytes")?;
        self.block_bytes = u64::from_str_radix(text.trim(), 16).ok();
        Ok(())
    }
}

/// How many blocks `bytes` are, if they are whole blocks of a known size.
fn blocks(bytes: u64, block_bytes: Option<u64>) -> Option<u64> {
    let block = block_bytes.filter(|block| *block > 0)?;
    bytes.is_multiple_of(block).then(|| bytes / block)
}

impl<C: Control> Vm for RemoteVm<C> {
    fn await_boot(&mut self, limit: Duration) -> Result<Booted> {
        let started_ns = self.running.process.started_ns;
        let since = |mark: Mark| span(mark.at_ns.saturating_sub(started_ns), mark.cpu_ns);
        // The prompt comes after the mark, and also from an init that makes none.
        self.running.console.await_prompt(limit)?;
        let init = self.marks.wait_for(marks::INIT, marks::QUIET)?.context(
            "the guest's init wrote no boot mark to its console: is it another agent than this \
             project's?",
        )?;
        let usable = if self.plugs_at_boot_bytes > 0 {
            let settled = self.settle(marks::BLOCK_ONLINE, self.plugs_at_boot_bytes, limit)?;
            settled.last.filter(|_| settled.done_ns.is_some())
        } else {
            Some(init)
        };
        Ok(Booted {
            phases: BootPhases {
                first_entry: None,
                init: Some(since(init)),
                usable: usable.map(since),
            },
            exits: None,
        })
    }

    fn await_driver(&mut self, limit: Duration) -> Result<()> {
        self.marks
            .wait_for(marks::DRIVER, limit)?
            .context("the guest's agent did not load the memory driver in time")?;
        self.learn_block()
    }

    fn change(&mut self, change: Change) -> Result<Changed> {
        let before = self.plugged_bytes;
        let (target_bytes, code) = if change.add {
            (before.checked_add(change.amount_bytes), marks::BLOCK_ONLINE)
        } else {
            (before.checked_sub(change.amount_bytes), marks::BLOCK_GONE)
        };
        let target_bytes = target_bytes.context("there is not that much memory to remove")?;
        self.marks.forget();
        let (asked_ns, asked_cpu) = (monotonic_ns(), cpu_ns(self.pid()));
        self.control.request(target_bytes)?;
        let settled = self.settle(code, target_bytes, change.timeout)?;
        let complete = settled.done_ns.is_some();
        let used = |now: Option<u64>| Some(now?.saturating_sub(asked_cpu?));
        let usable = settled.last.filter(|_| complete);
        Ok(Changed {
            phases: DlparPhases {
                device_done: settled
                    .done_ns
                    .map(|at| span(at.saturating_sub(asked_ns), None)),
                device_late: true,
                usable: usable
                    .map(|mark| span(mark.at_ns.saturating_sub(asked_ns), used(mark.cpu_ns))),
                ..DlparPhases::default()
            },
            done_bytes: self.plugged_bytes.abs_diff(before),
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
    use super::super::marks::MarkSender;
    use super::super::process::Process;
    use super::super::testing::{Server, ok};
    use super::*;
    use crate::bench::driver::api::Api;
    use std::process::Command;

    const BLOCK: u64 = 128 << 20;
    const LONG: Duration = Duration::from_secs(60);

    /// Asks a server what is plugged, in bytes.
    #[derive(Debug)]
    struct Plugged {
        api: Api,
        runs_ahead: bool,
    }

    impl Control for Plugged {
        fn request(&self, _: u64) -> Result<()> {
            Ok(())
        }
        fn plugged_bytes(&self) -> Result<u64> {
            self.api.get("/plugged")?.as_u64().context("no number")
        }
        fn runs_ahead(&self) -> bool {
            self.runs_ahead
        }
    }

    struct Trial {
        vm: RemoteVm<Plugged>,
        marks: MarkSender,
        server: Server,
        _place: tempfile::TempDir,
    }

    impl Trial {
        fn new(plugged: &[u64], runs_ahead: bool) -> Self {
            let replies: Vec<String> = plugged.iter().map(|n| ok(&n.to_string())).collect();
            let server = Server::start(&replies.iter().map(String::as_str).collect::<Vec<_>>());
            let place = tempfile::tempdir().unwrap();
            let running = Process::start(&mut Command::new("cat"), place.path()).unwrap();
            let (sender, marks) = marks::channel(std::process::id());
            let control = Plugged {
                api: server.api("it"),
                runs_ahead,
            };
            let mut vm = RemoteVm::new(running, marks, control, 0);
            vm.block_bytes = Some(BLOCK);
            Self {
                vm,
                marks: sender,
                server,
                _place: place,
            }
        }

        fn mark(&self, code: u8, count: usize) {
            assert!(self.marks.send(vec![code; count]));
        }
    }

    #[test]
    fn nobody_is_asked_before_all_blocks_have_come() {
        let mut trial = Trial::new(&[3 * BLOCK, 4 * BLOCK], false);
        trial.mark(marks::BLOCK_ONLINE, 3);
        trial.mark(marks::BLOCK_GONE, 1);
        trial.mark(marks::BLOCK_ONLINE, 1);
        let settled = trial.vm.settle(marks::BLOCK_ONLINE, 4 * BLOCK, LONG);
        let settled = settled.unwrap();
        // The first answer came before the device had done the last one.
        assert!(settled.done_ns.unwrap() >= settled.last.unwrap().at_ns);
        assert_eq!(trial.vm.plugged_bytes, 4 * BLOCK);
        assert_eq!(trial.server.requests().len(), 2);
    }

    #[test]
    fn blocks_whose_marks_are_missing_are_found_once_it_is_quiet() {
        let mut trial = Trial::new(&[BLOCK], false);
        trial.vm.plugged_bytes = 3 * BLOCK;
        trial.mark(marks::BLOCK_GONE, 1);
        let settled = trial.vm.settle(marks::BLOCK_GONE, BLOCK, LONG).unwrap();
        assert!(settled.done_ns.is_some() && settled.last.is_some());
    }

    #[test]
    fn a_vmm_that_runs_ahead_is_not_believed_against_the_guest() {
        let mut trial = Trial::new(&[2 * BLOCK], true);
        trial.mark(marks::BLOCK_ONLINE, 1);
        let limit = Duration::from_millis(1);
        let settled = trial.vm.settle(marks::BLOCK_ONLINE, 2 * BLOCK, limit);
        assert_eq!(settled.unwrap().done_ns, None);
    }

    #[test]
    fn whole_blocks_alone_are_counted() {
        assert_eq!(blocks(4 * BLOCK, Some(BLOCK)), Some(4));
        assert_eq!(blocks(BLOCK / 2, Some(BLOCK)), None);
        assert_eq!(blocks(BLOCK, None), None);
        assert_eq!(blocks(BLOCK, Some(0)), None);
    }
}
