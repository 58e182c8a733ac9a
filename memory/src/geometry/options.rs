//! The options that are no sizes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::GeometryError;
use crate::units::{Bytes, UnitError};

/// The memory block Linux uses in the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GuestBlock {
    /// As large as the LMB, within what Linux can: clamp(LMB, 128 MiB, 2 GiB).
    #[default]
    Follow,
    /// This size: a power of two from 128 MiB to 2 GiB.
    Fixed(Bytes),
}

impl GuestBlock {
    /// The smallest memory block of Linux on x86.
    pub const MIN: Bytes = Bytes::new(128 << 20);
    /// The largest memory block of Linux on x86.
    pub const MAX: Bytes = Bytes::new(2 << 30);
}

impl fmt::Display for GuestBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Follow => f.write_str("follow"),
            Self::Fixed(size) => size.fmt(f),
        }
    }
}

impl FromStr for GuestBlock {
    type Err = UnitError;

    /// `follow` or a size; whether the size is legal is [`Layout::compute`]'s
    /// to say.
    ///
    /// [`Layout::compute`]: super::Layout::compute
    fn from_str(text: &str) -> Result<Self, UnitError> {
        match text {
            "follow" => Ok(Self::Follow),
            size => size.parse().map(Self::Fixed),
        }
    }
}

impl Serialize for GuestBlock {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Follow => serializer.serialize_str("follow"),
            Self::Fixed(size) => size.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for GuestBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = GuestBlock;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"follow\", a number of bytes or a size such as \"256M\"")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<GuestBlock, E> {
                Ok(GuestBlock::Fixed(Bytes::new(bytes)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<GuestBlock, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// How the guest takes the memory of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hotplug {
    /// One virtio-mem device, from which the guest's driver takes what it is
    /// asked to (`virtio-mem`).
    #[default]
    VirtioMem,
    /// A memory device of ACPI for each LMB (`acpi`).
    Acpi,
}

impl Hotplug {
    /// Every value.
    pub const ALL: [Self; 2] = [Self::VirtioMem, Self::Acpi];

    /// Its name as an option.
    pub const fn name(self) -> &'static str {
        match self {
            Self::VirtioMem => "virtio-mem",
            Self::Acpi => "acpi",
        }
    }
}

impl fmt::Display for Hotplug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Hotplug {
    type Err = GeometryError;

    fn from_str(text: &str) -> Result<Self, GeometryError> {
        Self::ALL
            .into_iter()
            .find(|hotplug| hotplug.name() == text)
            .ok_or_else(|| GeometryError::Hotplug {
                text: text.to_owned(),
            })
    }
}

/// Pages of the host that back guest memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PageSize {
    /// 4 KiB pages, transparent huge pages off (`off`).
    #[default]
    #[serde(rename = "off")]
    Small,
    /// Transparent huge pages (`thp`).
    #[serde(rename = "thp")]
    Thp,
    /// 2 MiB pages from the host's pool (`2M`).
    #[serde(rename = "2M")]
    Huge2M,
    /// 1 GiB pages from the host's pool (`1G`).
    #[serde(rename = "1G")]
    Huge1G,
}

impl PageSize {
    /// Every value, in the order of their sizes.
    pub const ALL: [Self; 4] = [Self::Small, Self::Thp, Self::Huge2M, Self::Huge1G];

    /// Size of a page that memory comes in at least: 4 KiB for `off` and
    /// `thp`.
    pub const fn bytes(self) -> Bytes {
        match self {
            Self::Small | Self::Thp => Bytes::new(4 << 10),
            Self::Huge2M => Bytes::new(2 << 20),
            Self::Huge1G => Bytes::GIB,
        }
    }

    /// Whether pages come from the host's pool of huge pages (hugetlb).
    pub const fn is_pool(self) -> bool {
        matches!(self, Self::Huge2M | Self::Huge1G)
    }

    /// Its name as an option.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "off",
            Self::Thp => "thp",
            Self::Huge2M => "2M",
            Self::Huge1G => "1G",
        }
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PageSize {
    type Err = GeometryError;

    fn from_str(text: &str) -> Result<Self, GeometryError> {
        Self::ALL
            .into_iter()
            .find(|page| page.name() == text)
            .ok_or_else(|| GeometryError::PageSize {
                text: text.to_owned(),
            })
    }
}
