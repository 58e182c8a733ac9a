//! `lmb mem`: show, set, add and remove memory of a running VM, cancel and
//! list its operations.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use clap::{ArgGroup, Args, Subcommand};
use lmb_vmm::protocol::{LmbSpan, MemoryAction, MemoryRequest, Operation};
use serde::Serialize;

use crate::client::Client;
use crate::exit::{self, Exit};
use crate::lmbs::{format_span, parse_span};
use crate::output::{self, lmbs as lmb_table};
use crate::runtime::SocketArgs;
use crate::units::{format_size, parse_size, parse_timeout};
use crate::watch::Watch;

/// `lmb mem …`.
#[derive(Clone, Debug, Subcommand)]
pub enum MemCommand {
    /// Show boot memory, the hotplug windows and the last operation, or each LMB
    #[command(after_long_help = "\
Examples:
  lmb mem show
  lmb mem show --lmbs           LMBs with state, node and addresses, in runs of equal ones
  lmb mem show --lmbs --each    one a row
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
    Set(SetArgs),

    /// Add memory to the VM
    ///
    /// Raises the wanted size by the amount, tells the guest, and waits until it has plugged it.
    #[command(after_long_help = examples("\
Examples:
  lmb mem add 1G                1 GiB more
  lmb mem add -q 4              four LMBs more, as `drmgr -c mem -a -q 4`
  lmb mem add --lmb 0x12..0x1f  these LMBs, the last one included (--hotplug acpi)
  lmb mem add 1G --wait-usable  also wait until the guest's agent sees it online
  id=$(lmb mem add 8G --no-wait); lmb mem operations $id"))]
    Add(AddArgs),

    /// Remove memory from the VM
    ///
    /// Lowers the wanted size by the amount, tells the guest, and waits until it has given it
    /// back. A guest gives back what it can empty: memory that holds its own tables or pinned
    /// pages stays, and the operation ends as incomplete (exit code 3). Where each LMB is an ACPI
    /// device (--hotplug acpi), LMBs can be named, each one's fate is listed, and what was removed
    /// stays removed unless --all-or-nothing says otherwise.
    #[command(after_long_help = examples("\
Examples:
  lmb mem remove 1G
  lmb mem remove -q 4           four LMBs less, as `drmgr -c mem -r -q 4`
  lmb mem remove --lmb 0x12,0x20..0x2f --all-or-nothing
  lmb mem remove 4G --timeout 10m"))]
    Remove(RemoveArgs),

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
    /// List the LMBs instead, in runs of equal ones
    #[arg(long)]
    lmbs: bool,

    /// One LMB a row
    #[arg(long, requires = "lmbs")]
    each: bool,

    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// Options of `lmb mem set`.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("amount").args(["size", "quantity"]).required(true))]
pub struct SetArgs {
    #[command(flatten)]
    change: ChangeArgs,
}

/// Options of `lmb mem add`.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("amount").args(["size", "quantity", "lmb"]).required(true))]
pub struct AddArgs {
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    named: NamedArgs,
}

/// Options of `lmb mem remove`.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("amount").args(["size", "quantity", "lmb"]).required(true))]
pub struct RemoveArgs {
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    named: NamedArgs,

    /// If not all can be removed, add those again that were (--hotplug acpi)
    #[arg(long)]
    all_or_nothing: bool,
}

/// LMBs by their index.
#[derive(Clone, Debug, Default, Args)]
pub struct NamedArgs {
    /// These LMBs: 0x12 or 18, or 0x12..0x1f with the end included; a list, or given again
    ///
    /// Indices as `lmb mem show --lmbs` lists them. Needs a VM whose LMBs are ACPI devices (lmb
    /// run --hotplug acpi).
    #[arg(long, value_name = "INDEX|FIRST..LAST,...", value_delimiter = ',',
          value_parser = parse_span)]
    lmb: Vec<LmbSpan>,
}

/// Options of `lmb mem set|add|remove`.
#[derive(Clone, Debug, Args)]
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

/// What is asked of a VM, apart from how it is waited for.
struct Change<'a> {
    action: MemoryAction,
    args: &'a ChangeArgs,
    indices: &'a [LmbSpan],
    all_or_nothing: bool,
}

impl Change<'_> {
    fn request(&self) -> MemoryRequest {
        MemoryRequest {
            indices: (!self.indices.is_empty()).then(|| self.indices.to_vec()),
            all_or_nothing: self.all_or_nothing,
            ..self.args.request(self.action)
        }
    }

    fn amount(&self) -> String {
        if self.indices.is_empty() {
            return self.args.amount();
        }
        let spans: Vec<String> = self
            .indices
            .iter()
            .map(|span| format_span(span.first, span.count))
            .collect();
        format!("LMB {}", spans.join(", "))
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
        MemCommand::Show(args) => Ok((show(args)?, Exit::Done)),
        MemCommand::Set(args) => change(&Change {
            action: MemoryAction::Set,
            args: &args.change,
            indices: &[],
            all_or_nothing: false,
        }),
        MemCommand::Add(args) => change(&Change {
            action: MemoryAction::Add,
            args: &args.change,
            indices: &args.named.lmb,
            all_or_nothing: false,
        }),
        MemCommand::Remove(args) => change(&Change {
            action: MemoryAction::Remove,
            args: &args.change,
            indices: &args.named.lmb,
            all_or_nothing: args.all_or_nothing,
        }),
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

fn show(args: &ShowArgs) -> anyhow::Result<String> {
    let client = client(&args.socket)?;
    if !args.lmbs {
        let info = client.memory().context("cannot show the memory")?;
        return args.format.render(&info, output::memory);
    }
    let mut list = client.lmbs().context("cannot list the LMBs")?;
    if args.each {
        list = lmb_table::each(&list);
    }
    args.format.render(&list, lmb_table::list)
}

fn change(change: &Change<'_>) -> anyhow::Result<(String, Exit)> {
    let args = change.args;
    let client = client(&args.socket)?;
    let operation = {
        let _watch = (!args.no_wait).then(|| Watch::start(&client));
        client.start_operation(&change.request())
    }
    .with_context(|| cannot(change.action, &change.amount(), client.socket()))?;
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
