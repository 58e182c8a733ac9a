//! Plans as tables for people.

use lmb_memory::Hotplug;

use super::choose::Predicted;
use super::vm::{VmPlan, VmRow};
use crate::report::environment::Environments;
use crate::report::figure::grouped;
use crate::report::group::Group;
use crate::report::model::predict::RULE;
use crate::report::model::rows::Fitted;
use crate::report::model::text::prediction_cell;
use crate::report::table::Table;
use crate::units::format_size;

const VIRTIO_MEM_COLUMNS: [&str; 14] = [
    ">LMB",
    ">LMBs",
    ">at boot",
    ">device blocks",
    ">guest block",
    ">blocks at boot",
    ">in window",
    ">KVM slots",
    ">of",
    ">memmap",
    ">of it for window",
    ">requests per TiB",
    ">for window",
    "driver mode",
];
const ACPI_COLUMNS: [&str; 12] = [
    ">LMB",
    ">LMBs",
    ">at boot",
    ">devices",
    ">guest block",
    ">blocks at boot",
    ">in window",
    ">KVM slots",
    ">of",
    ">memmap",
    ">of it for window",
    ">with memmap_on_memory",
];

/// The plan of one VM, a row for each LMB size.
#[must_use]
pub fn vm(plans: &[VmPlan], hotplug: Hotplug) -> Table {
    let columns: &[&str] = match hotplug {
        Hotplug::VirtioMem => &VIRTIO_MEM_COLUMNS,
        Hotplug::Acpi => &ACPI_COLUMNS,
    };
    let mut table = Table::new("By LMB size", columns);
    for plan in plans {
        match plan {
            VmPlan::Row(row) => table.rows.push(cells(row, hotplug)),
            VmPlan::Refused {
                lmb_size_bytes,
                refused,
            } => table.notes.push(format!(
                "{} is not possible: {refused}",
                format_size(*lmb_size_bytes)
            )),
        }
    }
    if table.rows.is_empty() {
        return table;
    }
    table.notes.push(format!(
        "LMBs: of boot memory and window. blocks: Linux's memory blocks. KVM slots: of boot memory \
         and the whole window, which come in slots of the size beside. {} memmap: guest memory \
         that describes memory, 64 bytes for each page of 4 KiB; the window's comes out of boot \
         memory{}.",
        match hotplug {
            Hotplug::VirtioMem => "requests: of virtio-mem, when undisturbed.",
            Hotplug::Acpi => {
                "devices: each LMB is an ACPI device, which the guest is asked to add or give back \
                 by itself."
            }
        },
        match hotplug {
            Hotplug::VirtioMem => "",
            Hotplug::Acpi => {
                ", unless the guest runs with memory_hotplug.memmap_on_memory=1: then LMBs of the \
                 size of a memory block hold their own, a 64th of each (larger ones as well from \
                 Linux 6.8 on)"
            }
        }
    ));
    notices(plans, &mut table);
    table
}

fn cells(row: &VmRow, hotplug: Hotplug) -> Vec<String> {
    let window = row.window_bytes > 0;
    let only = |text: String| if window { text } else { "-".to_owned() };
    let mut all = vec![
        format_size(row.lmb_size_bytes),
        grouped(row.boot_lmbs.saturating_add(row.device_blocks)),
        grouped(row.boot_lmbs),
        only(grouped(row.device_blocks)),
        format_size(row.guest_block_bytes),
        grouped(row.guest_blocks_at_boot),
        only(grouped(row.guest_blocks_in_window)),
        grouped(row.boot_slots.saturating_add(row.window_slots)),
        only(format_size(row.slot_size_bytes)),
        format_size(
            row.memmap_boot_bytes
                .saturating_add(row.memmap_window_bytes),
        ),
        only(format_size(row.memmap_window_bytes)),
    ];
    match hotplug {
        Hotplug::VirtioMem => all.extend([
            grouped(row.requests_per_tib),
            only(grouped(row.requests_for_window)),
            row.driver_mode.word().to_owned(),
        ]),
        Hotplug::Acpi => all.push(only(format_size(row.memmap_window_on_memory_bytes))),
    }
    all
}

/// Predictions of saved results, a row for each LMB size.
#[must_use]
pub fn predictions(all: &[Predicted], models: &[Fitted], environments: &Environments) -> Table {
    let mut table = Table::new("Predicted from results", &[">LMB"]);
    let mut used: Vec<usize> = all.iter().map(|p| p.model).collect();
    used.sort_unstable();
    used.dedup();
    for index in &used {
        if let Some(fitted) = models.get(*index) {
            table.column(&format!(
                ">{}",
                column_name(all, *index, fitted, environments)
            ));
        }
    }
    let mut sizes: Vec<u64> = all.iter().map(|p| p.lmb_size_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut refusals: Vec<String> = Vec::new();
    for size in sizes {
        let mut row = vec![format_size(size)];
        for index in &used {
            let found = all
                .iter()
                .find(|p| p.lmb_size_bytes == size && p.model == *index);
            row.push(match (found, models.get(*index)) {
                (Some(found), Some(fitted)) => {
                    if let Err(refusal) = &found.prediction {
                        let sentence = format!("{}: refused: {refusal}.", fitted.subject.name());
                        if !refusals.contains(&sentence) {
                            refusals.push(sentence);
                        }
                    }
                    prediction_cell(fitted, &found.prediction)
                }
                _ => "-".to_owned(),
            });
        }
        table.rows.push(row);
    }
    table
        .notes
        .push("~ extrapolated: outside of what was measured. ± standard error.".to_owned());
    table.notes.push(RULE.to_owned());
    table.notes.extend(refusals);
    let groups: Vec<&Group> = used
        .iter()
        .filter_map(|index| models.get(*index))
        .flat_map(|fitted| &fitted.groups)
        .collect();
    environments.beside(&mut table, &groups);
    table
}

fn column_name(
    all: &[Predicted],
    index: usize,
    fitted: &Fitted,
    environments: &Environments,
) -> String {
    let bytes = all.iter().find(|p| p.model == index).map_or(0, |p| p.bytes);
    let letter = fitted.groups.first().map(|g| environments.letter(g));
    let part = if fitted.executed { ", executed" } else { "" };
    format!(
        "{} {} ({}{part})",
        fitted.subject.name(),
        format_size(bytes),
        letter.unwrap_or_default()
    )
}

/// Notices, each once, with the LMB sizes it is about.
fn notices(plans: &[VmPlan], table: &mut Table) {
    let mut all: Vec<(&str, Vec<String>)> = Vec::new();
    for row in plans.iter().filter_map(VmPlan::row) {
        let size = format_size(row.lmb_size_bytes);
        for notice in &row.notices {
            match all.iter_mut().find(|(known, _)| known == notice) {
                Some((_, sizes)) => sizes.push(size.clone()),
                None => all.push((notice, vec![size.clone()])),
            }
        }
    }
    let rows = table.rows.len();
    for (notice, sizes) in all {
        let whose = if sizes.len() == rows {
            "notice".to_owned()
        } else {
            format!("notice for {}", sizes.join(", "))
        };
        table.notes.push(format!("{whose}: {notice}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::vm::{VmRequest, plan};
    use lmb_memory::GuestBlock;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn refused_sizes_and_shared_notices_are_told_once() {
        let request = VmRequest {
            memory_bytes: GIB,
            max_memory_bytes: Some(65 * GIB),
            guest_block: GuestBlock::Follow,
            slot_size_bytes: None,
            hotplug: lmb_memory::Hotplug::VirtioMem,
        };
        let plans: Vec<VmPlan> = [3 * MIB, 256 * MIB, GIB]
            .map(|lmb| plan(&request, lmb))
            .into();
        let table = vm(&plans, Hotplug::VirtioMem);
        assert_eq!(table.rows.len(), 2);
        assert!(
            table
                .rows
                .iter()
                .all(|row| row.len() == table.columns.len())
        );
        let notes = table.notes.join("\n");
        assert!(notes.contains("3 MiB is not possible"), "{notes}");
        assert_eq!(
            notes
                .matches("notice: the whole window takes 1 GiB")
                .count(),
            1,
            "{notes}"
        );
    }

    #[test]
    fn without_a_window_its_columns_are_empty() {
        let request = VmRequest {
            memory_bytes: 64 * GIB,
            max_memory_bytes: None,
            guest_block: GuestBlock::Follow,
            slot_size_bytes: None,
            hotplug: lmb_memory::Hotplug::VirtioMem,
        };
        let table = vm(&[plan(&request, 256 * MIB)], Hotplug::VirtioMem);
        assert_eq!(table.rows[0][3], "-");
        assert_eq!(table.rows[0][11], "4,096");
    }
}
