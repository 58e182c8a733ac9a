//! The VMMs that can be measured, and in what they differ.

/// A VMM that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum VmmChoice {
    /// This project's VMM
    LmbVmm,
    /// QEMU's machine type pc (i440FX), with KVM
    QemuPc,
    /// QEMU's machine type microvm, with KVM (boot only)
    QemuMicrovm,
    /// Firecracker (adding and removing memory: 1.14 or newer, untested)
    Firecracker,
    /// Cloud Hypervisor, with its one block size of 2M (untested)
    CloudHypervisor,
}

impl VmmChoice {
    /// Its name in samples.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LmbVmm => "lmb-vmm",
            Self::QemuPc => "qemu-pc",
            Self::QemuMicrovm => "qemu-microvm",
            Self::Firecracker => "firecracker",
            Self::CloudHypervisor => "cloud-hypervisor",
        }
    }

    /// Whether it is QEMU.
    #[must_use]
    pub const fn is_qemu(self) -> bool {
        matches!(self, Self::QemuPc | Self::QemuMicrovm)
    }

    /// Whether its guest's marks come over the console and its memory is
    /// changed over HTTP; it is given an unpacked kernel.
    #[must_use]
    pub const fn is_remote(self) -> bool {
        matches!(self, Self::Firecracker | Self::CloudHypervisor)
    }

    /// Whether its memory device is a PCI device.
    #[must_use]
    pub const fn has_pci(self) -> bool {
        matches!(self, Self::QemuPc | Self::CloudHypervisor)
    }

    /// What of its driver never ran with the real VMM, if anything.
    #[must_use]
    pub const fn untested(self) -> Option<&'static str> {
        match self {
            Self::LmbVmm | Self::QemuPc | Self::QemuMicrovm => None,
            Self::Firecracker => Some(
                "boots were tried with Firecracker 1.12; adding and removing memory is written \
                 from the description of the API and was never run",
            ),
            Self::CloudHypervisor => {
                Some("it is written from the description of its API and was never run")
            }
        }
    }
}

/// A VMM of the sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vmm {
    /// Which.
    pub choice: VmmChoice,
    /// Its version.
    pub version: String,
}
