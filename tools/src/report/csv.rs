//! Figures for spreadsheets and scripts: a line for each row of the report and
//! moment, plain numbers, units in the columns' names.

use super::figure::Unit;
use super::group::{Group, Moment};
use super::stats::Summary;
use super::tables::step_name;

const HEAD: &str = "vmm,vmm_version,hotplug,kernel,kernel_entry,cmdline,cpus,memory_bytes,\
max_memory_bytes,plugged_at_boot_bytes,lmb_size_bytes,lmbs,guest_block_option_bytes,\
guest_block_bytes,guest_blocks,driver_mode,slot_size_bytes,hugepages,load,host,host_native,\
host_kernel,clock_unit,revisions,operation,amount_bytes,reached,of,left_bytes_max,requests,slots,\
moment,n,median_ns,min_ns,max_ns,spread,outliers,executed_ns,waited_ns,vmm_memory_bytes";

/// All groups; `clock_unit` says whether a `_ns` is a nanosecond or an
/// instruction.
#[must_use]
pub fn csv(groups: &[Group]) -> String {
    let mut text = format!("{HEAD}\n");
    for group in groups {
        for moment in group.times.keys() {
            text.push_str(&line(group, *moment));
            text.push('\n');
        }
        if group.times.is_empty() {
            text.push_str(&line(group, Moment::Complete));
            text.push('\n');
        }
    }
    text
}

fn line(group: &Group, moment: Moment) -> String {
    let config = &group.config;
    let median = |s: Option<&Summary>| s.map(|s| s.median.to_string()).unwrap_or_default();
    let optional = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
    let timing = group.times.get(&moment);
    let total = timing.map(|t| &t.total);
    let outcome = group.outcome.as_ref();
    let fields = [
        config.vmm.clone(),
        config.vmm_version.clone(),
        config.hotplug.clone(),
        config.kernel.clone(),
        config.kernel_entry.clone(),
        config.cmdline.clone(),
        config.cpus.to_string(),
        config.memory_bytes.to_string(),
        config.max_memory_bytes.to_string(),
        config.plugged_at_boot_bytes.to_string(),
        config.lmb_size_bytes.to_string(),
        group.lmbs().to_string(),
        config.guest_block_option_bytes.to_string(),
        group.guest_block_bytes().to_string(),
        optional(group.guest.memory_blocks),
        group.driver_mode(),
        config.slot_size_bytes.to_string(),
        config.hugepages.clone(),
        config.load.clone(),
        group.host.kind.clone(),
        group.host.native.to_string(),
        group.host.kernel.clone(),
        clock_unit(group.unit).to_owned(),
        group.revisions.join(" "),
        step_name(group.kind).to_owned(),
        group.bytes().to_string(),
        outcome.map(|o| o.complete.to_string()).unwrap_or_default(),
        outcome.map(|o| o.of.to_string()).unwrap_or_default(),
        outcome
            .map(|o| o.left_bytes_max.to_string())
            .unwrap_or_default(),
        median(outcome.and_then(|o| o.requests.as_ref())),
        median(outcome.and_then(|o| o.slots.as_ref())),
        moment.name().to_owned(),
        total.map_or(0, |s| s.n).to_string(),
        median(total),
        total.map(|s| s.min.to_string()).unwrap_or_default(),
        total.map(|s| s.max.to_string()).unwrap_or_default(),
        total.map(|s| s.spread.to_string()).unwrap_or_default(),
        total
            .map(|s| s.outliers.len().to_string())
            .unwrap_or_default(),
        median(timing.and_then(|t| t.executed.as_ref())),
        median(timing.and_then(|t| t.waited.as_ref())),
        median(group.vmm_memory_bytes.as_ref()),
    ];
    fields.map(|field| quoted(&field)).join(",")
}

/// What a `_ns` of the row is.
fn clock_unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Seconds => "ns",
        Unit::Instructions => "instructions",
        Unit::EmulatedSeconds => "emulated ns",
    }
}

/// A field as RFC 4180 has it. A leading character that spreadsheets take for a
/// formula gets a quote before it.
fn quoted(field: &str) -> String {
    let formula = field.starts_with(['=', '+', '@', '\t', '\r'])
        || (field.starts_with('-') && field.len() > 1 && field.parse::<f64>().is_err());
    let guard = if formula { "'" } else { "" };
    if formula || field.contains([',', '"', '\n', '\r']) {
        format!("\"{guard}{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sample::Step;
    use crate::report::group::group;
    use crate::report::testing::{Boot, Dlpar};
    use proptest::prelude::*;

    #[test]
    fn a_line_for_each_moment_with_every_column() {
        let mut samples = Boot::default().samples(2);
        samples.push(Dlpar::default().sample(Step::FirstAdd, 0));
        let text = csv(&group(&samples));
        let columns = HEAD.split(',').count();
        assert!(text.lines().all(|line| line.split(',').count() == columns));
        // Boot has six moments, an add five.
        assert_eq!(text.lines().count(), 1 + 6 + 5);
        assert!(text.contains(",instructions,"));
    }

    #[test]
    fn fields_are_quoted_as_needed() {
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("=HYPERLINK(1)"), "\"'=HYPERLINK(1)\"");
        assert_eq!(quoted("-12.5"), "-12.5");
        assert_eq!(quoted("-"), "-");
    }

    proptest! {
        #[test]
        fn no_field_makes_two(field in "[^\u{0}]*") {
            let quoted = quoted(&field);
            let inside = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            match inside {
                Some(inside) => prop_assert!(!inside.replace("\"\"", "").contains('"')),
                None => prop_assert!(!quoted.contains([',', '"', '\n'])),
            }
        }
    }
}
