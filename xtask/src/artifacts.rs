//! The programs that guests and their tests are made of. Those that a user
//! gets are built for release: under an emulator an unoptimised VMM would
//! unpack a kernel for minutes. The tests' own program only drives them, and
//! is built as the unit tests are, so that little is built twice.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::cargo;

/// Programs, by where they were built.
#[derive(Debug)]
pub(crate) struct Programs {
    built: Vec<(String, PathBuf)>,
}

impl Programs {
    /// Builds lmb-vmm, lmb, the guest agent and the demo's driver.
    pub(crate) fn build() -> Result<Self> {
        let mut arguments = vec!["build", "--release"];
        for package in ["lmb-vmm", "lmb-tools", "lmb-tests"] {
            arguments.extend(["--package", package]);
        }
        arguments.push("--bins");
        Ok(Self {
            built: cargo::build(&arguments)?,
        })
    }

    /// Builds lmb alone and without optimising, to draw reports with.
    pub(crate) fn build_tool() -> Result<Self> {
        Ok(Self {
            built: cargo::build(&["build", "--package", "lmb-tools", "--bin", "lmb"])?,
        })
    }

    /// Builds the tests with guests as well.
    pub(crate) fn build_with_tests() -> Result<Self> {
        let mut programs = Self::build()?;
        programs.built.extend(cargo::build(&[
            "test",
            "--no-run",
            "--package",
            "lmb-tests",
            "--test",
            "guest",
        ])?);
        Ok(programs)
    }

    /// Where a program is.
    pub(crate) fn path(&self, name: &str) -> Result<PathBuf> {
        self.built
            .iter()
            .find(|(built, _)| built == name)
            .map(|(_, path)| path.clone())
            .with_context(|| format!("cargo built no program {name}"))
    }
}
