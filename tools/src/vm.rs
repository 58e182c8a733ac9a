//! `lmb vm` and `lmb metrics`: the VM as a whole.

use anyhow::Context;
use clap::{Args, Subcommand};

use crate::client::Client;
use crate::exit::Exit;
use crate::mem::FormatArgs;
use crate::output;
use crate::runtime::SocketArgs;

/// `lmb vm …`.
#[derive(Clone, Debug, Subcommand)]
pub enum VmCommand {
    /// Show state, kernel and boot timeline
    #[command(after_long_help = "\
Examples:
  lmb vm show
  lmb vm show --json | jq .boot.init_ns")]
    Show(ShowArgs),

    /// End the VM, as pulling its plug does
    #[command(name = "power-off", alias = "poweroff")]
    PowerOff(SocketArgs),

    /// Reset the VM, as its reset button does
    ///
    /// The guest starts anew. The socket and the wanted memory size stay; hotplugged memory
    /// starts at nothing and is plugged again by the guest.
    Reset(SocketArgs),
}

/// Options of `lmb vm show`.
#[derive(Clone, Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// Runs `lmb vm …`: the text to print and the exit code.
///
/// # Errors
/// When the VM cannot be reached or refuses.
pub fn run(command: &VmCommand) -> anyhow::Result<(String, Exit)> {
    let text = match command {
        VmCommand::Show(args) => {
            let info = client(&args.socket)?.vm().context("cannot show the VM")?;
            args.format.render(&info, output::vm)?
        }
        VmCommand::PowerOff(socket) => {
            client(socket)?
                .power_off()
                .context("cannot power the VM off")?;
            String::new()
        }
        VmCommand::Reset(socket) => {
            client(socket)?.reset().context("cannot reset the VM")?;
            String::new()
        }
    };
    Ok((text, Exit::Done))
}

/// Runs `lmb metrics`.
///
/// # Errors
/// When the VM cannot be reached or refuses.
pub fn metrics(socket: &SocketArgs) -> anyhow::Result<(String, Exit)> {
    let text = client(socket)?
        .metrics()
        .context("cannot read the metrics")?;
    Ok((text, Exit::Done))
}

fn client(socket: &SocketArgs) -> anyhow::Result<Client> {
    Ok(Client::new(socket.resolve()?))
}
