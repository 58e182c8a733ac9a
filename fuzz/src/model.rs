//! The ledger as naively as it can be put: a flag for each LMB.

use lmb_devices::{MemRequest, MemResponse, RangeState};

use crate::host::Fault;

/// A window's book.
#[derive(Clone, Debug)]
pub struct Book {
    /// First address.
    pub addr: u64,
    /// Size of an LMB.
    pub lmb_bytes: u64,
    /// Which LMBs are plugged.
    pub plugged: Vec<bool>,
    /// How many should be.
    pub requested: u64,
    /// The window takes no change any more.
    pub failed: bool,
}

impl Book {
    /// LMBs plugged.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.plugged.iter().filter(|plugged| **plugged).count() as u64
    }

    /// The flags of a range of blocks, unless it is no range of the window.
    fn range(&mut self, addr: u64, nb_blocks: u16) -> Option<&mut [bool]> {
        let offset = addr.checked_sub(self.addr)?;
        if offset % self.lmb_bytes != 0 || nb_blocks == 0 {
            return None;
        }
        let first = usize::try_from(offset / self.lmb_bytes).ok()?;
        self.plugged
            .get_mut(first..first.checked_add(usize::from(nb_blocks))?)
    }

    /// The answer that is due to a request while no other is under way, and
    /// what becomes of the book. `fault` is what the next effect meets.
    pub fn answer(&mut self, request: MemRequest, fault: &mut Option<Fault>) -> MemResponse {
        let (count, requested) = (self.count(), self.requested);
        let failed = self.failed;
        let (flags, plug) = match request {
            MemRequest::State { addr, nb_blocks } => {
                return match self.range(addr, nb_blocks) {
                    None => MemResponse::Error,
                    Some(flags) if flags.iter().all(|plugged| *plugged) => {
                        MemResponse::AckState(RangeState::Plugged)
                    }
                    Some(flags) if flags.iter().any(|plugged| *plugged) => {
                        MemResponse::AckState(RangeState::Mixed)
                    }
                    Some(_) => MemResponse::AckState(RangeState::Unplugged),
                };
            }
            MemRequest::Plug { addr, nb_blocks } => {
                let Some(flags) = self.range(addr, nb_blocks) else {
                    return MemResponse::Error;
                };
                if count + u64::from(nb_blocks) > requested {
                    return MemResponse::Nack;
                }
                if flags.iter().any(|plugged| *plugged) {
                    return MemResponse::Error;
                }
                (flags, true)
            }
            MemRequest::Unplug { addr, nb_blocks } => {
                let Some(flags) = self.range(addr, nb_blocks) else {
                    return MemResponse::Error;
                };
                if !flags.iter().all(|plugged| *plugged) {
                    return MemResponse::Error;
                }
                (flags, false)
            }
            MemRequest::UnplugAll if count == 0 => return MemResponse::Ack,
            MemRequest::UnplugAll => (&mut self.plugged[..], false),
        };
        // From here on an effect is due.
        if failed {
            return MemResponse::Busy;
        }
        match fault.take() {
            None => {
                flags.fill(plug);
                MemResponse::Ack
            }
            Some(fault) => {
                self.failed = fault == Fault::Inconsistent;
                MemResponse::Busy
            }
        }
    }
}
