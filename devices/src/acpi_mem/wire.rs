//! What the registers' values mean.

use std::fmt;

use super::{EJECT, NEXT, OST};

/// Bytes of a register.
const REGISTER_BYTES: usize = 4;
/// Bits of an LMB number.
const LMB_MASK: u32 = 0xffff;

/// What an LMB's device is told (ACPI 6.5, 5.6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// Look at \_STA: the LMB is there.
    DeviceCheck,
    /// Give the LMB back.
    EjectRequest,
}

impl Notice {
    /// Its value for Notify.
    #[must_use]
    pub fn value(self) -> u8 {
        match self {
            Self::DeviceCheck => 1,
            Self::EjectRequest => 3,
        }
    }

    /// What NEXT reads as for this notice of LMB `lmb`.
    pub(super) fn encode(self, lmb: u32) -> u32 {
        (u32::from(self.value()) << 16) | (lmb & LMB_MASK)
    }
}

/// What the guest reports on: the low byte of \_OST's source event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OstSource {
    /// A device check.
    DeviceCheck,
    /// An eject request, or an eject that the guest began itself (0x103).
    EjectRequest,
    /// Anything else.
    Other(u8),
}

impl OstSource {
    /// The source with this low byte.
    #[must_use]
    pub fn from_raw(raw: u8) -> Self {
        match raw {
            1 => Self::DeviceCheck,
            3 => Self::EjectRequest,
            other => Self::Other(other),
        }
    }

    /// Its low byte.
    #[must_use]
    pub fn raw(self) -> u8 {
        match self {
            Self::DeviceCheck => 1,
            Self::EjectRequest => 3,
            Self::Other(raw) => raw,
        }
    }
}

/// How it went: the low byte of \_OST's status, which means different things
/// for different sources (ACPI 6.5, tables 6.69 to 6.73). `Display` gives the
/// specification's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OstStatus {
    source: OstSource,
    raw: u8,
}

impl OstStatus {
    /// The status `raw` reported on `source`.
    #[must_use]
    pub fn new(source: OstSource, raw: u8) -> Self {
        Self { source, raw }
    }

    /// What it reports on.
    #[must_use]
    pub fn source(self) -> OstSource {
        self.source
    }

    /// The byte that the guest gave.
    #[must_use]
    pub fn raw(self) -> u8 {
        self.raw
    }

    /// Whether the request was carried out.
    #[must_use]
    pub fn is_success(self) -> bool {
        self.raw == 0
    }

    /// Whether the guest still works on it and will report again.
    #[must_use]
    pub fn in_progress(self) -> bool {
        match self.source {
            OstSource::EjectRequest => self.raw == 0x84,
            OstSource::DeviceCheck => self.raw == 0x80,
            OstSource::Other(_) => false,
        }
    }

    fn words(self) -> Option<&'static str> {
        Some(match (self.source, self.raw) {
            (_, 0) => "success",
            (_, 1) => "non-specific failure",
            (_, 2) => "unrecognized notify code",
            (OstSource::EjectRequest, 0x80) => "ejection not supported",
            (OstSource::EjectRequest, 0x81) => "device in use by application",
            (OstSource::EjectRequest, 0x82) => "device busy",
            (OstSource::EjectRequest, 0x83) => {
                "ejection dependency busy or not supported for ejection"
            }
            (OstSource::EjectRequest, 0x84) => "ejection in progress",
            (OstSource::DeviceCheck, 0x80) => "insertion in progress",
            (OstSource::DeviceCheck, 0x81) => "driver load failure",
            (OstSource::DeviceCheck, 0x82) => "insertion not supported",
            (OstSource::DeviceCheck, 0x90..=0x9f) => "insertion failed for want of resources",
            _ => return None,
        })
    }
}

impl fmt::Display for OstStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some(words) => f.write_str(words),
            None => write!(f, "status {:#04x}", self.raw),
        }
    }
}

/// A write to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write {
    Eject { lmb: u32 },
    Ost { lmb: u32, status: OstStatus },
}

impl Write {
    /// The write of `data` at `offset`, if there is such a register.
    pub(super) fn decode(offset: u64, data: &[u8]) -> Option<Self> {
        let value = u32::from_le_bytes(data.try_into().ok()?);
        if offset == u64::from(EJECT) {
            return Some(Self::Eject { lmb: value });
        }
        let [_, _, source, status] = value.to_le_bytes();
        (offset == u64::from(OST)).then(|| Self::Ost {
            lmb: value & LMB_MASK,
            status: OstStatus::new(OstSource::from_raw(source), status),
        })
    }
}

/// Whether a read of `bytes` at `offset` is one of NEXT.
pub(super) fn reads_next(offset: u64, bytes: usize) -> bool {
    offset == u64::from(NEXT) && bytes == REGISTER_BYTES
}
