//! From a client's request to the amount of hotplug memory wanted: pure, so
//! that every refusal is decided before anything changes.
//!
//! Sizes are of the whole VM. Boot memory is `boot_lmbs` whole LMBs and cannot
//! be removed; what is left of a wanted size is spread over the windows.

use lmb_memory::{Bytes, Change, LmbCount, LmbIndex, LmbRange};

use crate::protocol::{Hotplug, LmbSpan, LmbState, MemoryAction, MemoryRequest};

/// The longest deadline of an operation, milliseconds: a day.
pub const MAX_TIMEOUT_MS: u64 = 86_400_000;

/// Why an operation was not started. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// None or several of the ways to give an amount.
    #[error("give exactly one of size_bytes, lmbs and indices; this request gives {0}")]
    BadAmount(&'static str),
    /// An add or remove of nothing.
    #[error("an {0} of nothing changes nothing; give at least one LMB ({1})")]
    ZeroAmount(&'static str, Bytes),
    /// The deadline is out of range.
    #[error("timeout_ms is {0}; it must be from 1 to {MAX_TIMEOUT_MS} (a day)")]
    BadTimeout(u64),
    /// The size is not made of whole LMBs.
    #[error("{asked} is not a multiple of the LMB size {lmb}; the nearest legal {nearest}")]
    NotWholeLmbs {
        /// The size asked for.
        asked: Bytes,
        /// Size of an LMB.
        lmb: Bytes,
        /// "size is" or "sizes are", and which, for people.
        nearest: String,
    },
    /// Less than boot memory.
    #[error(
        "the VM would have {wanted}, but its boot memory is {boot} and cannot be removed; \
         the least it can have is {boot}"
    )]
    BelowBoot {
        /// What the VM would have.
        wanted: String,
        /// Boot memory.
        boot: Bytes,
    },
    /// More than boot memory and all windows.
    #[error(
        "the VM would have {wanted}, but the most it can have is {max}; \
         start it with a larger --max-memory to go beyond"
    )]
    AboveMax {
        /// What the VM would have.
        wanted: String,
        /// Boot memory and all windows.
        max: Bytes,
    },
    /// The VM has no window.
    #[error(
        "this VM has no memory to add or remove: it was started without a hotplug window; \
         start it with --max-memory larger than --memory"
    )]
    NoWindow,
    /// No guest driver would act on a new target.
    #[error(
        "the guest's virtio-mem driver is not active, so the guest would not act on a new size; \
         the target stays as it is. Wait until the guest has loaded the driver (virtio_mem) and try again"
    )]
    DriverNotActive,
    /// A window that would have to change takes no changes any more.
    #[error("{0}; reset or restart the VM to change its memory again")]
    WindowFailed(String),
    /// No guest has looked for ACPI events yet.
    #[error(
        "the guest's ACPI event device has not looked for events yet, so the guest would not act \
         on a request; the target stays as it is. Wait until the guest's kernel has started and \
         try again"
    )]
    GuestNotUp,
    /// LMBs are named where the guest chooses.
    #[error(
        "this VM changes its memory by virtio-mem, where the guest chooses the LMBs: give an \
         amount, or start the VM with --hotplug acpi to name LMBs"
    )]
    IndicesNeedAcpi,
    /// An option that does not fit.
    #[error("{0}")]
    BadOption(&'static str),
    /// A list of LMBs that is none.
    #[error("the list of LMBs {0}; name each LMB once, as first and count")]
    BadIndices(&'static str),
    /// LMBs that the VM does not have.
    #[error("there is no LMB {0:#x}: this VM has LMBs 0x0 to {1:#x}")]
    NoSuchLmb(u64, u64),
    /// A boot LMB.
    #[error(
        "LMB {0:#x} is boot memory, which is always there; LMBs that come and go begin at {1:#x}"
    )]
    BootLmb(u64, u64),
    /// An LMB that does not stand as the request needs it.
    #[error("LMB {0:#x} is {state}: `lmb mem show --lmbs` shows how each stands", state = words(*.1))]
    LmbState(u64, LmbState),
    /// The machine is being built anew after a reset.
    #[error("the VM is being reset; try again when the guest runs")]
    Resetting,
    /// The books refused a size that was checked before: a fault of the VMM.
    #[error("the size was refused by the books: {0}; this is a fault of the VMM, please report it")]
    Books(String),
}

impl RequestError {
    /// The stable word of the error, for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::BadAmount(_) => "bad_amount",
            Self::ZeroAmount(..) => "zero_amount",
            Self::BadTimeout(_) => "bad_timeout",
            Self::NotWholeLmbs { .. } => "bad_size",
            Self::BelowBoot { .. } => "below_boot",
            Self::AboveMax { .. } => "above_max",
            Self::NoWindow => "no_window",
            Self::DriverNotActive | Self::GuestNotUp => "driver_not_active",
            Self::IndicesNeedAcpi => "indices_need_acpi",
            Self::BadOption(_) => "bad_option",
            Self::BadIndices(_) => "bad_indices",
            Self::NoSuchLmb(..) => "no_such_lmb",
            Self::BootLmb(..) => "boot_lmb",
            Self::LmbState(..) => "lmb_state",
            Self::WindowFailed(_) => "window_failed",
            Self::Resetting => "resetting",
            Self::Books(_) => "internal",
        }
    }
}

fn words(state: LmbState) -> &'static str {
    match state {
        LmbState::Boot => "boot memory",
        LmbState::Unplugged => "not there",
        LmbState::Adding => "just being added",
        LmbState::Plugged => "there already",
        LmbState::Removing => "just being removed",
        LmbState::Leaving => "given back by the guest and not taken by the host yet",
    }
}

/// The LMBs that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) change: Change,
    /// By index in the VM: ascending, sharing none, none empty.
    spans: Vec<LmbSpan>,
}

impl Listed {
    /// Those of a window, as runs of the window.
    pub(super) fn within(&self, first_lmb: u64, lmbs: u64) -> Vec<LmbRange> {
        let end = first_lmb.saturating_add(lmbs);
        self.spans
            .iter()
            .filter_map(|span| {
                let start = span.first.max(first_lmb);
                let count = span
                    .first
                    .saturating_add(span.count)
                    .min(end)
                    .checked_sub(start)?;
                let first = LmbIndex::new(start.checked_sub(first_lmb)?);
                LmbRange::new(first, LmbCount::new(count)).ok()
            })
            .collect()
    }
}

/// The LMBs that a request with indices names, checked against the VM's.
pub(super) fn listed(request: &MemoryRequest, sizes: &Sizes) -> Result<Listed, RequestError> {
    let change = match request.action {
        MemoryAction::Add => Change::Plug,
        MemoryAction::Remove => Change::Unplug,
        MemoryAction::Set => {
            return Err(RequestError::BadOption(
                "a set is of a size; indices go with add and remove",
            ));
        }
    };
    if request.size_bytes.is_some() || request.lmbs.is_some() {
        return Err(RequestError::BadAmount("more than one"));
    }
    let mut spans = request.indices.clone().unwrap_or_default();
    spans.sort_unstable();
    if spans.is_empty() || spans.iter().any(|span| span.count == 0) {
        return Err(RequestError::BadIndices("names none"));
    }
    if sizes.window_lmbs == 0 {
        return Err(RequestError::NoWindow);
    }
    let end = sizes.boot_lmbs.saturating_add(sizes.window_lmbs);
    let mut next = 0;
    for span in &spans {
        let last = span.first.saturating_add(span.count - 1);
        if span.first < sizes.boot_lmbs {
            return Err(RequestError::BootLmb(span.first, sizes.boot_lmbs));
        }
        if last >= end {
            return Err(RequestError::NoSuchLmb(
                last.min(span.first.max(end)),
                end - 1,
            ));
        }
        if span.first < next {
            return Err(RequestError::BadIndices("names an LMB twice"));
        }
        next = last.saturating_add(1);
    }
    Ok(Listed { change, spans })
}

/// The sizes a request is judged by, in LMBs unless named otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Size of an LMB, bytes; a power of two.
    pub(super) lmb_bytes: u64,
    /// Boot memory.
    pub(super) boot_lmbs: u64,
    /// All windows together; 0 if there is none.
    pub(super) window_lmbs: u64,
    /// Requested of all windows together.
    pub(super) requested_lmbs: u64,
}

impl Sizes {
    fn bytes(&self, lmbs: u64) -> Bytes {
        Bytes::new(lmbs.saturating_mul(self.lmb_bytes))
    }

    /// An amount for people, also one that is past 64 bits of bytes.
    fn describe(&self, lmbs: u128) -> String {
        let fits = u64::try_from(lmbs)
            .ok()
            .and_then(|lmbs| lmbs.checked_mul(self.lmb_bytes));
        match fits {
            Some(bytes) => Bytes::new(bytes).to_string(),
            None => format!("{lmbs} LMBs of {}", Bytes::new(self.lmb_bytes)),
        }
    }

    /// Whether deadline and options of a request fit each other and the VM.
    pub(super) fn check_options(
        &self,
        request: &MemoryRequest,
        hotplug: Hotplug,
    ) -> Result<(), RequestError> {
        if !(1..=MAX_TIMEOUT_MS).contains(&request.timeout_ms) {
            return Err(RequestError::BadTimeout(request.timeout_ms));
        }
        if request.indices.is_some() && hotplug == Hotplug::VirtioMem {
            return Err(RequestError::IndicesNeedAcpi);
        }
        if request.all_or_nothing && hotplug == Hotplug::VirtioMem {
            return Err(RequestError::BadOption(
                "all_or_nothing needs --hotplug acpi: a virtio-mem guest chooses what it removes",
            ));
        }
        if request.all_or_nothing && request.action != MemoryAction::Remove {
            return Err(RequestError::BadOption(
                "all_or_nothing is for removals; an add keeps what the guest could add",
            ));
        }
        Ok(())
    }

    /// LMBs wanted of all windows together once `request` is fulfilled.
    pub(super) fn wanted_lmbs(&self, request: &MemoryRequest) -> Result<u64, RequestError> {
        let amount = self.amount_lmbs(request)?;
        let boot = u128::from(self.boot_lmbs);
        let target = boot.saturating_add(u128::from(self.requested_lmbs));
        let wanted = match request.action {
            MemoryAction::Set => u128::from(amount),
            MemoryAction::Add => target.saturating_add(u128::from(amount)),
            MemoryAction::Remove => {
                let Some(wanted) = target.checked_sub(u128::from(amount)) else {
                    return Err(self.below_boot(format!(
                        "less than nothing ({} less than its target {})",
                        self.describe(u128::from(amount)),
                        self.describe(target)
                    )));
                };
                wanted
            }
        };
        self.hotplug_lmbs(wanted)
    }

    /// The part of a wanted total that the windows must give.
    fn hotplug_lmbs(&self, wanted: u128) -> Result<u64, RequestError> {
        let Some(hotplug) = wanted.checked_sub(u128::from(self.boot_lmbs)) else {
            return Err(self.below_boot(self.describe(wanted)));
        };
        match u64::try_from(hotplug) {
            Ok(lmbs) if lmbs <= self.window_lmbs => Ok(lmbs),
            _ if self.window_lmbs == 0 => Err(RequestError::NoWindow),
            _ => Err(RequestError::AboveMax {
                wanted: self.describe(wanted),
                max: self.bytes(self.boot_lmbs.saturating_add(self.window_lmbs)),
            }),
        }
    }

    fn below_boot(&self, wanted: String) -> RequestError {
        RequestError::BelowBoot {
            wanted,
            boot: self.bytes(self.boot_lmbs),
        }
    }

    /// The amount named by the request, whole LMBs.
    fn amount_lmbs(&self, request: &MemoryRequest) -> Result<u64, RequestError> {
        let lmbs = match (request.size_bytes, request.lmbs) {
            (None, None) => return Err(RequestError::BadAmount("neither")),
            (Some(_), Some(_)) => return Err(RequestError::BadAmount("both")),
            (None, Some(lmbs)) => lmbs,
            (Some(bytes), None) => self.whole_lmbs(request.action, bytes)?,
        };
        let lmb = Bytes::new(self.lmb_bytes);
        match (request.action, lmbs) {
            (MemoryAction::Add, 0) => Err(RequestError::ZeroAmount("add", lmb)),
            (MemoryAction::Remove, 0) => Err(RequestError::ZeroAmount("remove", lmb)),
            _ => Ok(lmbs),
        }
    }

    fn whole_lmbs(&self, action: MemoryAction, bytes: u64) -> Result<u64, RequestError> {
        let below = bytes / self.lmb_bytes;
        if bytes.is_multiple_of(self.lmb_bytes) {
            return Ok(below);
        }
        // Legal totals lie between boot memory and the maximum; legal amounts
        // start at one LMB.
        let (least, most) = match action {
            MemoryAction::Set => (
                self.boot_lmbs,
                self.boot_lmbs.saturating_add(self.window_lmbs),
            ),
            MemoryAction::Add | MemoryAction::Remove => (1, self.window_lmbs.max(1)),
        };
        let low = below.clamp(least, most);
        let high = below.saturating_add(1).clamp(least, most);
        let nearest = if low == high {
            format!("size is {}", self.bytes(low))
        } else {
            format!("sizes are {} and {}", self.bytes(low), self.bytes(high))
        };
        Err(RequestError::NotWholeLmbs {
            asked: Bytes::new(bytes),
            lmb: Bytes::new(self.lmb_bytes),
            nearest,
        })
    }
}

/// Spreads `wanted` LMBs over windows of the given `(total, requested)` LMBs:
/// what is requested of a window changes as little as can be. Growth goes to
/// the first windows with room, shrinking takes from the last ones. Returns
/// what is to be requested of each; the sum is `wanted` as far as the windows
/// reach.
pub(super) fn spread(windows: &[(u64, u64)], wanted: u64) -> Vec<u64> {
    let mut shares: Vec<u64> = windows
        .iter()
        .map(|&(total, requested)| requested.min(total))
        .collect();
    let now = shares
        .iter()
        .fold(0_u64, |sum, &share| sum.saturating_add(share));
    let mut missing = wanted.saturating_sub(now);
    for (share, &(total, _)) in shares.iter_mut().zip(windows) {
        let more = missing.min(total.saturating_sub(*share));
        *share = share.saturating_add(more);
        missing = missing.saturating_sub(more);
    }
    let mut excess = now.saturating_sub(wanted);
    for share in shares.iter_mut().rev() {
        let less = excess.min(*share);
        *share = share.saturating_sub(less);
        excess = excess.saturating_sub(less);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn sizes() -> Sizes {
        Sizes {
            lmb_bytes: 256 * MIB,
            boot_lmbs: 4,
            window_lmbs: 8,
            requested_lmbs: 2,
        }
    }

    fn request(action: MemoryAction, size_bytes: Option<u64>, lmbs: Option<u64>) -> MemoryRequest {
        MemoryRequest {
            action,
            size_bytes,
            lmbs,
            timeout_ms: 1_000,
            wait: false,
            wait_usable: false,
            ..MemoryRequest::new(action)
        }
    }

    fn refused(
        action: MemoryAction,
        size_bytes: Option<u64>,
        lmbs: Option<u64>,
    ) -> (String, String) {
        let error = sizes()
            .wanted_lmbs(&request(action, size_bytes, lmbs))
            .unwrap_err();
        (error.code().to_owned(), error.to_string())
    }

    #[test]
    fn totals_and_differences_in_bytes_and_lmbs() {
        use MemoryAction::{Add, Remove, Set};
        let cases = [
            (Set, Some(1024 * MIB), None, 0),
            (Set, None, Some(12), 8),
            (Add, Some(256 * MIB), None, 3),
            (Add, None, Some(6), 8),
            (Remove, Some(512 * MIB), None, 0),
            (Remove, None, Some(1), 1),
        ];
        for (action, bytes, lmbs, wanted) in cases {
            let request = request(action, bytes, lmbs);
            assert_eq!(sizes().wanted_lmbs(&request), Ok(wanted), "{request:?}");
        }
    }

    #[test]
    fn sizes_out_of_range_are_refused_with_both_sizes() {
        use MemoryAction::{Add, Remove, Set};
        let (code, text) = refused(Set, Some(768 * MIB), None);
        assert_eq!(code, "below_boot");
        assert!(text.contains("768 MiB") && text.contains("1 GiB"), "{text}");
        let (code, text) = refused(Remove, None, Some(3));
        assert_eq!(code, "below_boot");
        assert!(text.contains("768 MiB") && text.contains("1 GiB"), "{text}");
        let (code, text) = refused(Remove, None, Some(7));
        assert_eq!(code, "below_boot");
        assert!(text.contains("less than nothing"), "{text}");
        let (code, text) = refused(Set, Some(3328 * MIB), None);
        assert_eq!(code, "above_max");
        assert!(
            text.contains("3328 MiB") && text.contains("3 GiB"),
            "{text}"
        );
        for lmbs in [7, u64::MAX] {
            assert_eq!(refused(Add, None, Some(lmbs)).0, "above_max");
        }
        assert_eq!(refused(Set, None, Some(u64::MAX)).0, "above_max");
    }

    #[test]
    fn sizes_that_are_not_whole_lmbs_name_the_nearest_legal_ones() {
        use MemoryAction::{Add, Set};
        let (code, text) = refused(Set, Some(1300 * MIB), None);
        assert_eq!(code, "bad_size");
        assert!(text.ends_with("sizes are 1280 MiB and 1536 MiB"), "{text}");
        let (_, text) = refused(Set, Some(MIB), None);
        assert!(text.ends_with("legal size is 1 GiB"), "{text}");
        let (_, text) = refused(Add, Some(1), None);
        assert!(text.ends_with("legal size is 256 MiB"), "{text}");
        let (_, text) = refused(Set, Some(u64::MAX), None);
        assert!(text.ends_with("legal size is 3 GiB"), "{text}");
    }

    #[test]
    fn unclear_amounts_and_deadlines_are_refused() {
        use MemoryAction::{Add, Remove, Set};
        assert_eq!(refused(Add, None, None).0, "bad_amount");
        assert_eq!(refused(Set, Some(0), Some(0)).0, "bad_amount");
        assert_eq!(refused(Add, Some(0), None).0, "zero_amount");
        assert_eq!(refused(Remove, None, Some(0)).0, "zero_amount");
        assert_eq!(refused(Set, Some(0), None).0, "below_boot");
        for timeout_ms in [0, MAX_TIMEOUT_MS + 1] {
            let mut request = request(Add, None, Some(1));
            request.timeout_ms = timeout_ms;
            let error = sizes().check_options(&request, Hotplug::VirtioMem);
            assert_eq!(error, Err(RequestError::BadTimeout(timeout_ms)));
        }
    }

    #[test]
    fn a_vm_without_a_window_can_only_be_set_to_what_it_has() {
        let sizes = Sizes {
            window_lmbs: 0,
            requested_lmbs: 0,
            ..sizes()
        };
        let wanted = |action, lmbs| sizes.wanted_lmbs(&request(action, None, Some(lmbs)));
        assert_eq!(wanted(MemoryAction::Set, 4), Ok(0));
        assert_eq!(wanted(MemoryAction::Set, 5), Err(RequestError::NoWindow));
        assert_eq!(wanted(MemoryAction::Add, 1), Err(RequestError::NoWindow));
        assert!(RequestError::NoWindow.to_string().contains("--max-memory"));
    }

    proptest! {
        #[test]
        fn any_request_is_refused_or_gives_what_it_says(
            set in 0_u8..3, bytes in proptest::option::of(any::<u64>()),
            lmbs in proptest::option::of(any::<u64>()), timeout_ms in any::<u64>(),
            requested_lmbs in 0_u64..=8,
        ) {
            let action = [MemoryAction::Set, MemoryAction::Add, MemoryAction::Remove][usize::from(set)];
            let sizes = Sizes { requested_lmbs, ..sizes() };
            let mut request = request(action, bytes, lmbs);
            request.timeout_ms = timeout_ms;
            if let Ok(wanted) = sizes.wanted_lmbs(&request) {
                prop_assert!(wanted <= 8);
                let amount = bytes.map_or_else(|| lmbs.unwrap(), |bytes| bytes / (256 * MIB));
                let expected = match action {
                    MemoryAction::Set => amount - 4,
                    MemoryAction::Add => requested_lmbs + amount,
                    MemoryAction::Remove => requested_lmbs - amount,
                };
                prop_assert_eq!(wanted, expected);
            }
        }

        #[test]
        fn shares_sum_up_and_no_window_moves_against_the_change(
            windows in proptest::collection::vec((0_u64..20, 0_u64..20), 0..5), wanted in 0_u64..120,
        ) {
            let windows: Vec<(u64, u64)> = windows.iter().map(|&(t, r)| (t, r.min(t))).collect();
            let total: u64 = windows.iter().map(|window| window.0).sum();
            let now: u64 = windows.iter().map(|window| window.1).sum();
            let shares = spread(&windows, wanted);
            prop_assert_eq!(shares.iter().sum::<u64>(), wanted.min(total));
            for (&share, &(total, requested)) in shares.iter().zip(&windows) {
                prop_assert!(share <= total);
                let with_the_change = if wanted >= now { share >= requested } else { share <= requested };
                prop_assert!(with_the_change);
            }
        }
    }
}
