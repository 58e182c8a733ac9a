//! What a test's VM is made of, as lmb-vmm's command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::place::Kernel;
use crate::vm::GuestVm;

/// The command line of a stock guest.
pub(crate) const STOCK: &str = "console=ttyS0 quiet memhp_default_state=online_movable";

/// How the kernel is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The bzImage unpacked on the host, by its ELF entry.
    Elf,
    /// The bzImage's own 64-bit entry.
    Bzimage,
}

/// A VM to be started. The default is a stock guest: kernel 6.1, 256 MiB in
/// LMBs of 256 MiB, no hotplug window.
#[derive(Clone, Debug)]
pub struct GuestSpec {
    kernel: Kernel,
    image: Option<PathBuf>,
    command_line: String,
    flags: Vec<OsString>,
}

impl GuestSpec {
    /// A stock guest with this kernel.
    #[must_use]
    pub fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            image: None,
            command_line: STOCK.to_owned(),
            flags: Vec::new(),
        }
        .memory("256M")
    }

    /// The memory at boot.
    #[must_use]
    pub fn memory(self, size: &str) -> Self {
        self.flag("memory", size)
    }

    /// The most memory, boot memory included.
    #[must_use]
    pub fn max_memory(self, size: &str) -> Self {
        self.flag("max-memory", size)
    }

    /// The LMB's size.
    #[must_use]
    pub fn lmb_size(self, size: &str) -> Self {
        self.flag("lmb-size", size)
    }

    /// By what means memory comes and goes: `virtio-mem` or `acpi`.
    #[must_use]
    pub fn hotplug(self, kind: &str) -> Self {
        self.flag("hotplug", kind)
    }

    /// The kernel's entry.
    #[must_use]
    pub fn entry(self, entry: Entry) -> Self {
        let name = match entry {
            Entry::Elf => "elf",
            Entry::Bzimage => "bzimage",
        };
        self.flag("kernel-entry", name)
    }

    /// Another kernel image in place of the kernel's bzImage.
    #[must_use]
    pub fn image(mut self, image: &Path) -> Self {
        self.image = Some(image.to_owned());
        self
    }

    /// Words appended to the kernel's command line.
    #[must_use]
    pub fn append(mut self, words: &str) -> Self {
        self.command_line.push(' ');
        self.command_line.push_str(words);
        self
    }

    /// Another kernel command line altogether.
    #[must_use]
    pub fn command_line(mut self, line: &str) -> Self {
        line.clone_into(&mut self.command_line);
        self
    }

    /// Any other option of lmb-vmm; the last of equal name counts.
    #[must_use]
    pub fn flag(mut self, name: &str, value: &str) -> Self {
        let prefix = format!("--{name}=");
        self.flags
            .retain(|flag| !flag.to_string_lossy().starts_with(&prefix));
        self.flags.push(format!("{prefix}{value}").into());
        self
    }

    /// lmb-vmm's arguments with its socket at `socket`.
    ///
    /// # Errors
    /// When the kernel is not to be found.
    pub fn arguments(&self, socket: &Path) -> Result<Vec<OsString>> {
        let image = match &self.image {
            Some(image) => image.clone(),
            None => self.kernel.image()?,
        };
        let mut arguments = vec![
            "--kernel".into(),
            image.into(),
            "--initrd".into(),
            self.kernel.initrd()?.into(),
            "--cmdline".into(),
            (&self.command_line).into(),
            "--api-socket".into(),
            socket.into(),
        ];
        arguments.extend(self.flags.iter().cloned());
        Ok(arguments)
    }

    /// Starts the VM and waits for the guest's shell.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn boot(&self) -> Result<GuestVm> {
        let mut vm = self.start()?;
        vm.await_shell()?;
        Ok(vm)
    }

    /// Boots, and waits until the guest's memory driver is active.
    ///
    /// # Errors
    /// When it does not come that far.
    pub fn boot_with_driver(&self) -> Result<GuestVm> {
        let vm = self.boot()?;
        vm.await_driver()?;
        Ok(vm)
    }

    /// Starts the VM without waiting for the guest.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(&self) -> Result<GuestVm> {
        GuestVm::start(self)
    }
}
