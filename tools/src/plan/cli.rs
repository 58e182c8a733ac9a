//! `lmb plan` on the command line.

use anyhow::Context;
use clap::Args;
use lmb_memory::{Bytes, GuestBlock, LmbSize};
use serde::Serialize;

use super::counts::{ARTICLE_LMB_SIZES, ARTICLE_PARTITIONS, Counts};
use super::text;
use super::vm::{VmPlan, VmRequest, plan};
use crate::report::tables;
use crate::units::parse_size;

/// LMB sizes of a VM's plan, unless given.
const LMB_SIZES: [u64; 6] = [128 << 20, 256 << 20, 512 << 20, 1 << 30, 2 << 30, 4 << 30];

/// Examples for `--help`.
pub const HELP: &str = "\
Examples:
  lmb plan                                     the LMB article's table
  lmb plan --partition 500G,2T --lmb-size 256M,1G
  lmb plan --memory 64G --max-memory 1T        one VM by LMB size
  lmb plan --memory 64G --max-memory 1T --guest-block-size 2G";

/// Options of `lmb plan`.
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// Partition sizes for a table of LMB counts [default: 100G,1T,32T,64T]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_size,
          conflicts_with = "memory")]
    partition: Vec<u64>,

    /// Plan a VM with this boot memory
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,

    /// All memory the VM can have, boot memory included; no hotplug window unless given
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "memory")]
    max_memory: Option<u64>,

    /// LMB sizes, powers of two from 2 MiB to 4 GiB
    /// [default: 128M to 4G; without --memory 128M,256M,1G,2G,4G]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = lmb_size)]
    lmb_size: Vec<u64>,

    /// The guest's memory block: `follow` (the LMB) or a size from 128M to 2G
    #[arg(long, value_name = "follow|SIZE", default_value = "follow", requires = "memory",
          value_parser = guest_block)]
    guest_block_size: GuestBlock,

    /// KVM slot size [default: as lmb-vmm chooses]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "memory")]
    slot_size: Option<u64>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct VmJson<'a> {
    plans: &'a [VmPlan],
}

/// Does `lmb plan`; what it returns goes to standard output.
///
/// # Errors
/// A results file that cannot be read, or no LMB size that is possible.
pub fn run(args: &PlanArgs) -> anyhow::Result<String> {
    let Some(memory_bytes) = args.memory else {
        return table_of_counts(args);
    };
    let request = VmRequest {
        memory_bytes,
        max_memory_bytes: args.max_memory,
        guest_block: args.guest_block_size,
        slot_size_bytes: args.slot_size,
    };
    let plans: Vec<VmPlan> = or_default(&args.lmb_size, &LMB_SIZES)
        .iter()
        .map(|lmb| plan(&request, *lmb))
        .collect();
    if args.json {
        return json(&VmJson { plans: &plans });
    }
    let mut table = text::vm(&plans);
    table.title = title(&request);
    Ok(table.terminal())
}

fn table_of_counts(args: &PlanArgs) -> anyhow::Result<String> {
    let counts = Counts::new(
        or_default(&args.partition, &ARTICLE_PARTITIONS),
        or_default(&args.lmb_size, &ARTICLE_LMB_SIZES),
    );
    if args.json {
        return json(&counts);
    }
    Ok(tables::counts(&counts, "LMBs needed, by partition and LMB size").terminal())
}

fn title(request: &VmRequest) -> String {
    use crate::units::format_size;
    let window = match request.max_memory_bytes {
        Some(max) => format!(" of at most {}", format_size(max)),
        None => String::new(),
    };
    format!(
        "A VM of {}{window} by LMB size, guest block {}",
        format_size(request.memory_bytes),
        match request.guest_block {
            GuestBlock::Follow => "following the LMB".to_owned(),
            GuestBlock::Fixed(size) => format!("fixed at {size}"),
        }
    )
}

fn json(value: &impl Serialize) -> anyhow::Result<String> {
    let mut text = serde_json::to_string_pretty(value).context("cannot write JSON")?;
    text.push('\n');
    Ok(text)
}

fn or_default<'a>(given: &'a [u64], default: &'a [u64]) -> &'a [u64] {
    if given.is_empty() { default } else { given }
}

fn lmb_size(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|e| e.to_string())?;
    LmbSize::new(Bytes::new(bytes))
        .map(|_| bytes)
        .map_err(|e| e.to_string())
}

fn guest_block(text: &str) -> Result<GuestBlock, String> {
    text.parse::<GuestBlock>().map_err(|e| e.to_string())
}
