//! `lmb`: see `lmb --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    lmb_tools::cli::main()
}
