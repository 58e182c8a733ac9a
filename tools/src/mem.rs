//! `lmb mem`: show, set, add and remove memory of a running VM, cancel and
//! list its operations.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use clap::{ArgGroup, Args, Subcommand};
use lmb_vmm::protocol::{MemoryAction, MemoryRequest, Operation};
use serde::Serialize;

use crate::client::Client;
use crate::exit::{self, Exit};
use crate::output;
use crate::runtime::SocketArgs;
use crate::units::{format_size, parse_size, parse_timeout};
use crate::watch::Watch;

/// `lmb mem …`.
#[derive(Clone, Debug, Subcommand)]
pub enum MemCommand {
    /// Show boot memory, the hotplug windows and the last operation
    #[command(after_long_help = "\
Examples:
  lmb mem show
  lmb mem show --json | jq .total_bytes")]
    Show(ShowArgs),

    /// Make the VM's memory this size, boot memory included
    ///
    /// The size must be a multiple of the LMB size, at least the boot memory and at most what
    /// `lmb mem show` lists as the most. Setting the size that the VM already has succeeds at
    /// once.
    #[command(after_long_help = examples("\
Examples:
  lmb mem set 4G                total of 4 GiB
  lmb mem set -q 16             total of 16 LMBs
  lmb mem set 4G --timeout 5m   allow the guest five minutes"))]
    Set(ChangeArgs),

    /// Add memory to the VM
    ///
    /// Raises the wanted size by the amount, tells the guest, and waits until it has plugged it.
    #[command(after_long_help = examples("\
Examples:
  lmb mem add 1G                1 GiB more
  lmb mem add -q 4              four LMBs more, as `drmgr -c mem -a -q 4`
  lmb mem add 1G --wait-usable  also wait until the guest's agent sees it online
  id=$(lmb mem add 8G --no-wait); lmb mem operations $id"))]
    Add(ChangeArgs),

    /// Remove memory from the VM
    ///
    /// Lowers the wanted size by the amount, tells the guest, and waits until it has given it
    /// back. A guest gives back what it can empty: memory that holds its own tables or pinned
    /// pages stays, and the operation ends as incomplete at its deadline (exit code 3).
    #[command(after_long_help = examples("\
Examples:
  lmb mem remove 1G
  lmb mem remove -q 4           four LMBs less, as `drmgr -c mem -r -q 4`
  lmb mem remove 4G --timeout 10m"))]
    Remove(ChangeArgs),

    /// Cancel a running operation: the wanted size becomes what is plugged
    #[command(after_long_help = "\
Examples:
  lmb mem cancel 3")]
    Cancel(CancelArgs),

    /// List the operations the VM remembers, or show one with its phases
    #[command(after_long_help = "\
Examples:
  lmb mem operations
  lmb mem operations 3 --json")]
    Operations(OperationsArgs),
}

/// Options of `lmb mem show`.
#[derive(Clone, Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// Options of `lmb mem set|add|remove`.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("amount").args(["size", "quantity"]).required(true))]
pub struct ChangeArgs {
    /// Amount: 256M, 1G, 4GiB, 0x40000000 or bytes; a multiple of the LMB size
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,

    /// Amount as a number of LMBs, 1 or more
    #[arg(short, long, value_name = "LMBS", value_parser = clap::value_parser!(u64).range(1..))]
    quantity: Option<u64>,

    /// Deadline: 500ms, 60s, 2m, 1h or seconds; 1ms to 24h
    ///
    /// When it passes first the operation ends as incomplete. The wanted size stands, and the
    /// guest may go on.
    #[arg(short = 't', long, value_name = "TIME", default_value = "60s", value_parser = parse_timeout)]
    timeout: Duration,

    /// Do not wait: print the operation's id and end
    #[arg(long, conflicts_with = "wait_usable")]
    no_wait: bool,

    /// Also wait, within the deadline, until the guest reports the memory usable (or gone)
    ///
    /// Only with a guest whose agent reports it, as the one in `lmb guest`'s initramfs does.
    #[arg(long)]
    wait_usable: bool,

    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// Options of `lmb mem cancel`.
#[derive(Clone, Debug, Args)]
pub struct CancelArgs {
    /// The operation's id, as `--no-wait` or `lmb mem operations` prints it
    #[arg(value_name = "ID")]
    id: u64,
    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// Options of `lmb mem operations`.
#[derive(Clone, Debug, Args)]
pub struct OperationsArgs {
    /// Show this one with its phases
    #[arg(value_name = "ID")]
    id: Option<u64>,
    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// How a reply is printed.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct FormatArgs {
    /// Print the VM's reply as JSON (field names carry their units)
    #[arg(long)]
    pub json: bool,
}

impl FormatArgs {
    /// The reply as JSON, or as `text` makes it.
    ///
    /// # Errors
    /// When the reply cannot be written as JSON.
    pub fn render<T: Serialize>(
        self,
        reply: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<String> {
        if !self.json {
            return Ok(text(reply));
        }
        let mut json = serde_json::to_string_pretty(reply).context("cannot write the reply")?;
        json.push('\n');
        Ok(json)
    }
}

impl ChangeArgs {
    fn request(&self, action: MemoryAction) -> MemoryRequest {
        MemoryRequest {
            action,
            size_bytes: self.size,
            lmbs: self.quantity,
            // Bounded to a day by the parser.
            timeout_ms: u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX),
            wait: !self.no_wait,
            wait_usable: self.wait_usable,
            ..MemoryRequest::new(action)
        }
    }

    fn amount(&self) -> String {
        match (self.size, self.quantity) {
            (Some(bytes), _) => format_size(bytes),
            (None, Some(1)) => "1 LMB".to_owned(),
            (None, count) => format!("{} LMBs", count.unwrap_or_default()),
        }
    }
}

/// Runs `lmb mem …`: the text to print and the exit code.
///
/// # Errors
/// When the VM cannot be reached or refuses; see [`Exit::of_error`].
pub fn run(command: &MemCommand) -> anyhow::Result<(String, Exit)> {
    match command {
        MemCommand::Show(args) => {
            let info = client(&args.socket)?
                .memory()
                .context("cannot show the memory")?;
            Ok((args.format.render(&info, output::memory)?, Exit::Done))
        }
        MemCommand::Set(args) => change(args, MemoryAction::Set),
        MemCommand::Add(args) => change(args, MemoryAction::Add),
        MemCommand::Remove(args) => change(args, MemoryAction::Remove),
        MemCommand::Cancel(args) => {
            let ended = client(&args.socket)?
                .cancel(args.id)
                .with_context(|| format!("cannot cancel operation {}", args.id))?;
            let line = |op: &Operation| format!("{}\n", output::operation_line(op));
            Ok((args.format.render(&ended, line)?, Exit::Done))
        }
        MemCommand::Operations(args) => operations(args),
    }
}

fn client(socket: &SocketArgs) -> anyhow::Result<Client> {
    Ok(Client::new(socket.resolve()?))
}

fn change(args: &ChangeArgs, action: MemoryAction) -> anyhow::Result<(String, Exit)> {
    let client = client(&args.socket)?;
    let operation = {
        let _watch = (!args.no_wait).then(|| Watch::start(&client));
        client.start_operation(&args.request(action))
    }
    .with_context(|| cannot(action, &args.amount(), client.socket()))?;
    let text = args.format.render(&operation, |op| {
        if args.no_wait {
            format!("{}\n", op.id)
        } else {
            output::operation(op)
        }
    })?;
    Ok((text, Exit::of_operation(&operation)))
}

fn operations(args: &OperationsArgs) -> anyhow::Result<(String, Exit)> {
    let client = client(&args.socket)?;
    let text = if let Some(id) = args.id {
        let one = client
            .operation(id)
            .with_context(|| format!("cannot show operation {id}"))?;
        args.format.render(&one, output::operation)?
    } else {
        let all = client.operations().context("cannot list the operations")?;
        args.format.render(&all, |all| output::operations(all))?
    };
    Ok((text, Exit::Done))
}

fn cannot(action: MemoryAction, amount: &str, socket: &Path) -> String {
    let vm = socket.display();
    match action {
        MemoryAction::Set => format!("cannot set the memory of the VM at {vm} to {amount}"),
        MemoryAction::Add => format!("cannot add {amount} to the VM at {vm}"),
        MemoryAction::Remove => format!("cannot remove {amount} from the VM at {vm}"),
    }
}

fn examples(text: &str) -> String {
    format!("{text}\n\n{}", exit::HELP)
}
