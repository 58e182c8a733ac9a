//! The files of a VM, opened once: no boot after the first opens anything, so
//! that the sandbox can leave no way to do so.

use std::fs::File;
use std::io;

use crate::boot::image::KernelFile;
use crate::boot::load::InitrdFile;
use crate::config::VmConfig;
use crate::console::open_output;
use crate::machine::BuildError;

/// Kernel, initrd and serial output, open for the life of the process.
#[derive(Debug)]
pub struct VmFiles {
    /// The kernel.
    pub kernel: KernelFile,
    /// The initial RAM disk.
    pub initrd: Option<InitrdFile>,
    output: Option<File>,
}

impl VmFiles {
    /// Opens what `config` names.
    ///
    /// # Errors
    /// The first file that cannot be opened.
    pub fn open(config: &VmConfig) -> Result<Self, BuildError> {
        Ok(Self {
            kernel: KernelFile::open(config.kernel()?)?,
            initrd: config.initrd.as_deref().map(InitrdFile::open).transpose()?,
            output: open_output(&config.serial).map_err(|source| BuildError::Host {
                what: "open the serial port's output",
                source,
            })?,
        })
    }

    /// A descriptor of one boot's own for the serial port's output.
    ///
    /// # Errors
    /// When there is no further descriptor.
    pub fn output(&self) -> io::Result<Option<File>> {
        self.output.as_ref().map(File::try_clone).transpose()
    }
}
