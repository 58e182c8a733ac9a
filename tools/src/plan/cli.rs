//! `lmb plan` on the command line.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use lmb_memory::{Bytes, GuestBlock, Hotplug, LmbSize};
use serde::Serialize;

use super::choose::{Choice, Evidence, Predicted, choose, predict};
use super::counts::{ARTICLE_LMB_SIZES, ARTICLE_PARTITIONS, Counts};
use super::rules::TIB_BYTES;
use super::text;
use super::vm::{VmPlan, VmRequest, plan};
use crate::report::cli::read_groups;
use crate::report::environment::Environments;
use crate::report::json::ModelJson;
use crate::report::model::rows::models;
use crate::report::tables;
use crate::units::{format_size, parse_size};

/// LMB sizes of a VM's plan, unless given.
const LMB_SIZES: [u64; 6] = [128 << 20, 256 << 20, 512 << 20, 1 << 30, 2 << 30, 4 << 30];

/// Examples for `--help`.
pub const HELP: &str = "\
Examples:
  lmb plan                                     the LMB article's table
  lmb plan --partition 500G,2T --lmb-size 256M,1G
  lmb plan --memory 64G --max-memory 1T        one VM by LMB size
  lmb plan --memory 64G --max-memory 1T --guest-block-size 2G
  lmb plan --memory 4G --max-memory 1T --hotplug acpi
  lmb plan --memory 8T --granularity 256M --from results.jsonl

With --from the report's cost models predict boot, add and remove. Their rule for refusing is
printed with them.";

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

    /// By what means memory is added and removed: virtio-mem or acpi
    #[arg(long, value_name = "virtio-mem|acpi", default_value = "virtio-mem", requires = "memory",
          value_parser = hotplug)]
    hotplug: Hotplug,

    /// Choose the LMB size with which memory changes in steps of this, and say why
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "memory")]
    granularity: Option<u64>,

    /// Results of `lmb bench` to predict boot, add and remove from
    #[arg(long, value_name = "FILE", requires = "memory")]
    from: Vec<PathBuf>,

    /// How much the predicted adds and removals change
    /// [default: the window, at most 1T; 1T without a window]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "from")]
    amount: Option<u64>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct VmJson<'a> {
    plans: &'a [VmPlan],
    predictions: &'a [Predicted],
    models: Vec<ModelJson<'a>>,
    choice: Option<&'a Choice>,
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
        hotplug: args.hotplug,
    };
    let plans: Vec<VmPlan> = or_default(&args.lmb_size, &LMB_SIZES)
        .iter()
        .map(|lmb| plan(&request, *lmb))
        .collect();
    check_any(&plans)?;
    let groups = match args.from.as_slice() {
        [] => Vec::new(),
        files => read_groups(files)?,
    };
    let models = models(&groups);
    let predictions = predict(&plans, &models, amount(args, memory_bytes));
    let environments = Environments::of(&groups);
    let evidence = Evidence {
        predictions: &predictions,
        models: &models,
        environments: &environments,
    };
    let choice = args
        .granularity
        .map(|granularity| choose(&plans, granularity, &evidence))
        .transpose()
        .map_err(anyhow::Error::msg)?;
    if args.json {
        return json(&VmJson {
            plans: &plans,
            predictions: &predictions,
            models: models.iter().map(ModelJson::of).collect(),
            choice: choice.as_ref(),
        });
    }
    let mut table = text::vm(&plans, args.hotplug);
    table.title = title(&request);
    let mut text = table.terminal();
    if !args.from.is_empty() {
        text.push('\n');
        text.push_str(&text::predictions(&predictions, &models, &environments).terminal());
    }
    if let Some(choice) = &choice {
        text.push_str(&format!(
            "\nLMB size: {}\n",
            format_size(choice.lmb_size_bytes)
        ));
        for sentence in &choice.why {
            text.push_str(&format!("  {sentence}\n"));
        }
    }
    Ok(text)
}

fn check_any(plans: &[VmPlan]) -> anyhow::Result<()> {
    let reasons: Vec<&str> = plans
        .iter()
        .filter_map(|plan| match plan {
            VmPlan::Row(_) => None,
            VmPlan::Refused { refused, .. } => Some(refused.as_str()),
        })
        .collect();
    if reasons.len() == plans.len() {
        bail!("none of the LMB sizes is possible: {}", reasons.join("; "));
    }
    Ok(())
}

/// The amount that is added and removed.
fn amount(args: &PlanArgs, memory_bytes: u64) -> u64 {
    let window = args
        .max_memory
        .and_then(|max| max.checked_sub(memory_bytes))
        .filter(|window| *window > 0);
    args.amount
        .unwrap_or_else(|| window.map_or(TIB_BYTES, |window| window.min(TIB_BYTES)))
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
    let window = match request.max_memory_bytes {
        Some(max) => format!(" of at most {}", format_size(max)),
        None => String::new(),
    };
    format!(
        "A VM of {}{window} by LMB size, hotplug by {}, guest block {}",
        format_size(request.memory_bytes),
        request.hotplug,
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

fn hotplug(text: &str) -> Result<Hotplug, String> {
    text.parse::<Hotplug>().map_err(|e| e.to_string())
}

fn guest_block(text: &str) -> Result<GuestBlock, String> {
    text.parse::<GuestBlock>().map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: PlanArgs,
    }

    fn planned(line: &str) -> anyhow::Result<String> {
        let words = std::iter::once("plan").chain(line.split_whitespace());
        run(&Line::try_parse_from(words).unwrap().args)
    }

    fn refused(line: &str) -> bool {
        let words = std::iter::once("plan").chain(line.split_whitespace());
        Line::try_parse_from(words).is_err()
    }

    #[test]
    fn without_a_word_it_prints_the_articles_table() {
        let text = planned("").unwrap();
        assert!(
            text.contains("64 TB   524,288  262,144   65,536   32,768   16,384"),
            "{text}"
        );
    }

    #[test]
    fn a_vm_with_a_granularity_gets_a_size_and_a_reason() {
        let text = planned("--memory 8T --granularity 256M").unwrap();
        assert!(
            text.contains("LMB size: 256 MiB\n  256 MiB is the largest"),
            "{text}"
        );
        let json = planned("--memory 8T --granularity 256M --json").unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["choice"]["lmb_size_bytes"], 256 << 20);
        assert_eq!(value["plans"][0]["driver_mode"], "big-block");
    }

    #[test]
    fn when_no_size_is_possible_the_reasons_are_the_error() {
        let error = planned("--memory 1G --max-memory 65G --lmb-size 4G").unwrap_err();
        assert!(error.to_string().contains("64 GiB or 68 GiB"), "{error}");
    }

    #[test]
    fn acpi_counts_devices_and_leaves_out_what_it_cannot() {
        let line = "--memory 4G --max-memory 1028G --hotplug acpi --lmb-size 64M,128M,256M,4G";
        let text = planned(line).unwrap();
        for part in [
            "hotplug by acpi",
            " devices ",
            "64 MiB is not possible",
            "128 MiB is not possible",
            "memmap_on_memory",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        assert!(!text.contains("driver mode"), "{text}");
        let json = planned(&format!("{line} --json")).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["plans"][2]["driver_mode"], "acpi");
        assert_eq!(value["plans"][2]["memmap_window_on_memory_bytes"], 0);
    }

    #[test]
    fn options_of_a_vm_need_a_vm() {
        for line in [
            "--granularity 1G",
            "--max-memory 1T",
            "--from x",
            "--slot-size 1G",
            "--memory 1G --amount 1G",
            "--memory 1G --partition 1T",
            "--lmb-size 3M",
            "--memory 1G --guest-block-size x",
            "--memory 1G --hotplug dimm",
            "--hotplug acpi",
        ] {
            assert!(refused(line), "{line}");
        }
        assert!(!refused(
            "--memory 1G --guest-block-size 2G --lmb-size 256M,1G"
        ));
    }
}
