//! How an operation begins: from a client's request to what each window is
//! to do. Everything that can be refused is refused before anything changes.

use lmb_memory::{Bytes, Change, LmbCount};

use super::Coordinator;
use super::operation::{OpeningSizes, OperationId, verb};
use super::target::{self, RequestError, spread};
use super::window::{Observer, Window, Wish};
use crate::protocol::{Hotplug, MemoryAction, MemoryRequest, OperationState};

impl Coordinator {
    /// Requests memory from the start, so that the guest plugs it while it
    /// boots; for a VM whose vCPUs have not run yet. `total` includes boot
    /// memory. It is no operation: the boot's stamps tell when it was done.
    ///
    /// # Errors
    ///
    /// [`RequestError`] as for an operation that sets this size.
    pub fn request_at_start(&mut self, total: Bytes) -> Result<(), RequestError> {
        let request = MemoryRequest {
            size_bytes: Some(total.get()),
            ..MemoryRequest::new(MemoryAction::Set)
        };
        let wishes = self.wishes(&request)?;
        self.announce(&wishes)
    }

    /// What a request wants of each window; nothing changes.
    fn wishes(&self, request: &MemoryRequest) -> Result<Vec<Wish>, RequestError> {
        let sizes = self.sizes();
        sizes.check_options(request, self.fixed.hotplug)?;
        if request.indices.is_some() {
            return self.listed_wishes(request);
        }
        let wanted_lmbs = sizes.wanted_lmbs(request)?;
        let limits: Vec<(u64, u64)> = self.windows.iter().map(|w| window_limits(&**w)).collect();
        let shares = spread(&limits, wanted_lmbs);
        Ok(shares
            .into_iter()
            .map(|lmbs| Wish {
                lmbs: LmbCount::new(lmbs),
                listed: None,
                all_or_nothing: request.all_or_nothing,
            })
            .collect())
    }

    /// The same for a request that names its LMBs.
    fn listed_wishes(&self, request: &MemoryRequest) -> Result<Vec<Wish>, RequestError> {
        let listed = target::listed(request, &self.sizes())?;
        let mut wishes = Vec::new();
        for window in &self.windows {
            let (first_lmb, ledger) = (window.first_lmb(), window.ledger());
            let runs = listed.within(first_lmb, ledger.total_lmbs().get());
            window
                .check_listed(listed.change, &runs)
                .map_err(|(lmb, state)| {
                    RequestError::LmbState(first_lmb.saturating_add(lmb), state)
                })?;
            let count = runs.iter().map(|run| run.count().get()).sum();
            let requested = ledger.requested_lmbs().get();
            let lmbs = match listed.change {
                Change::Plug => requested.saturating_add(count),
                Change::Unplug => requested.saturating_sub(count),
            };
            wishes.push(Wish {
                lmbs: LmbCount::new(lmbs),
                listed: (!runs.is_empty()).then_some((listed.change, runs)),
                all_or_nothing: request.all_or_nothing,
            });
        }
        Ok(wishes)
    }

    /// Starts an operation; one that runs ends as superseded. `accepted_ns` is
    /// when the request was read whole.
    ///
    /// # Errors
    ///
    /// [`RequestError`]; nothing has changed then, and an operation that runs
    /// goes on.
    pub fn start_operation(
        &mut self,
        request: &MemoryRequest,
        accepted_ns: u64,
    ) -> Result<OperationId, RequestError> {
        let wishes = self.wishes(request)?;
        self.check_drivers(&wishes)?;
        let wanted_bytes = total_lmbs(&wishes).saturating_mul(self.fixed.lmb_bytes);
        let sizes = OpeningSizes {
            from_bytes: self.total_bytes(),
            target_bytes: self.fixed.boot_bytes.saturating_add(wanted_bytes),
            usable_bytes: wanted_bytes,
            lmb_bytes: self.fixed.lmb_bytes,
        };
        let superseded = format!(
            "a later operation ({} to {}) replaced the target",
            verb(request.action),
            Bytes::new(sizes.target_bytes)
        );
        self.end_operation(OperationState::Superseded, Some(superseded));
        let id = self
            .log
            .open(request, self.opening_stamp(accepted_ns), sizes);
        self.announce(&wishes)?;
        self.complete(false);
        Ok(id)
    }

    /// Whether each window that has something to do can do it, and has a driver
    /// to do it.
    fn check_drivers(&self, wishes: &[Wish]) -> Result<(), RequestError> {
        for (window, wish) in self.windows.iter().zip(wishes) {
            if !has_work(&**window, wish) {
                continue;
            }
            if !window.attached() {
                return Err(RequestError::Resetting);
            }
            if let Some(failure) = window.failure() {
                return Err(RequestError::WindowFailed(failure));
            }
            if !window.driver_active() {
                return Err(match self.fixed.hotplug {
                    Hotplug::VirtioMem => RequestError::DriverNotActive,
                    Hotplug::Acpi => RequestError::GuestNotUp,
                });
            }
        }
        Ok(())
    }

    /// Sets what the operation just opened wants and tells the guest.
    fn announce(&mut self, wishes: &[Wish]) -> Result<(), RequestError> {
        self.tell_agent(total_lmbs(wishes));
        let mut observer = Observer {
            log: &mut self.log,
            clock: &*self.clock,
        };
        let mut failure = None;
        for (window, wish) in self.windows.iter_mut().zip(wishes) {
            if has_work(&**window, wish)
                && let Err(error) = window.request(wish, &mut observer)
            {
                failure = Some(error.to_string());
                break;
            }
        }
        match failure {
            None => Ok(()),
            Some(error) => {
                self.end_operation(OperationState::Aborted, Some(error.clone()));
                Err(RequestError::Books(error))
            }
        }
    }
}

/// Total and requested LMBs of a window.
fn window_limits(window: &dyn Window) -> (u64, u64) {
    let ledger = window.ledger();
    (ledger.total_lmbs().get(), ledger.requested_lmbs().get())
}

/// LMBs that are to be requested of all windows together.
fn total_lmbs(wishes: &[Wish]) -> u64 {
    wishes
        .iter()
        .fold(0, |sum, wish| sum.saturating_add(wish.lmbs.get()))
}

/// Whether a wish gives a window's guest work or, as much, takes work from it.
fn has_work(window: &dyn Window, wish: &Wish) -> bool {
    !window.settled() || wish.listed.is_some() || window.ledger().requested_lmbs() != wish.lmbs
}
