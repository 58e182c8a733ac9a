//! Which plots a report has: boot, add and remove against LMB size and count,
//! phases stacked, executed and waited, models against their rows.

use super::svg::{Bar, Bars, Guide, Lines, NARROW, Series, Spot, WIDTH, XAxis};
use crate::bench::sample::Step;
use crate::report::environment::Environments;
use crate::report::figure::{Unit, change, grouped};
use crate::report::group::{Group, Kind, Moment};
use crate::report::model::predict::ROWS_MIN;
use crate::report::model::rows::Fitted;
use crate::report::stats::real;
use crate::report::tables::{block_option, step_name};
use crate::units::format_size;

/// Bars a plot holds at most; the tables have all rows.
const BARS_MAX: usize = 36;

/// Lines a plot holds at most.
const SERIES_MAX: usize = 8;

const UNITS: [Unit; 3] = [Unit::Instructions, Unit::Seconds, Unit::EmulatedSeconds];

/// Plots of boots.
#[must_use]
pub fn boot(groups: &[Group]) -> Vec<String> {
    let boots = |unit| chosen(groups, unit, |kind| matches!(kind, Kind::Boot));
    let mut all = Vec::new();
    for (n, unit) in UNITS.into_iter().enumerate() {
        let rows = boots(unit);
        all.extend(against(&rows, "Boot", &format!("boot{n}"), unit));
        let parts = [Moment::FirstEntry, Moment::KernelPart, Moment::MemoryPart];
        let names = ["VMM", "kernel to init", "init to all memory usable"];
        let title = "Parts of a boot";
        all.push(bars(
            &rows,
            title,
            &format!("bootparts{n}"),
            &names,
            |group| {
                parts
                    .map(|moment| group.median(moment).unwrap_or(0.0))
                    .to_vec()
            },
        ));
        all.push(waiting(
            &rows,
            "Boot: executed and waited",
            &format!("bootwait{n}"),
        ));
    }
    all.retain(|plot| !plot.is_empty());
    all
}

/// Plots of adds and removes. Lines are of both rounds, bars of the first.
#[must_use]
pub fn dlpar(groups: &[Group]) -> Vec<String> {
    let names = [
        "until the first request",
        "until the device is done",
        "until usable or gone",
    ];
    let mut all = Vec::new();
    for (n, unit) in UNITS.into_iter().enumerate() {
        for (id, what, title, steps) in [
            (
                "add",
                "Adding memory",
                "first add",
                [Step::FirstAdd, Step::SecondAdd],
            ),
            (
                "remove",
                "Removing memory",
                "first remove",
                [Step::FirstRemove, Step::SecondRemove],
            ),
        ] {
            let of = |steps: &[Step]| chosen(groups, unit, |kind| is_step(kind, steps));
            all.extend(against(&of(&steps), what, &format!("{id}{n}"), unit));
            let first = of(&steps[..1]);
            let parts = format!("Parts of the {title}");
            all.push(bars(
                &first,
                &parts,
                &format!("{id}parts{n}"),
                &names,
                dlpar_parts,
            ));
            let parts = format!("Executed and waited, {title}");
            all.push(waiting(&first, &parts, &format!("{id}wait{n}")));
        }
    }
    all.retain(|plot| !plot.is_empty());
    all
}

fn dlpar_parts(group: &Group) -> Vec<f64> {
    let request = group.median(Moment::FirstRequest).unwrap_or(0.0);
    let done = group.median(Moment::DeviceDone).unwrap_or(request);
    let complete = group.median(Moment::Complete).unwrap_or(done);
    vec![
        request,
        (done - request).max(0.0),
        (complete - done).max(0.0),
    ]
}

fn chosen(groups: &[Group], unit: Unit, wanted: impl Fn(&Kind) -> bool) -> Vec<&Group> {
    groups
        .iter()
        .filter(|group| group.unit == unit && wanted(&group.kind))
        .filter(|group| group.times.contains_key(&Moment::Complete))
        .collect::<Vec<_>>()
}

/// Boot, add and remove against LMB size, each of the unit that is there first,
/// for a picture that stands alone.
#[must_use]
pub fn overview(groups: &[Group]) -> Vec<Lines> {
    let Some(unit) = UNITS
        .into_iter()
        .find(|unit| groups.iter().any(|group| group.unit == *unit))
    else {
        return Vec::new();
    };
    let plot = |what| {
        let rows = chosen(groups, unit, |kind| match what {
            "Boot" => matches!(kind, Kind::Boot),
            "Add" => is_step(kind, &[Step::FirstAdd, Step::SecondAdd]),
            _ => is_step(kind, &[Step::FirstRemove, Step::SecondRemove]),
        });
        let sizes: Vec<u64> = rows.iter().map(|group| group.bytes()).collect();
        let first = sizes.first()?;
        let title = if sizes.iter().all(|size| size == first) {
            format!("{what} {}", format_size(*first))
        } else {
            what.to_owned()
        };
        Some(Lines {
            width: NARROW,
            ..lines(&rows, &title, what, unit, By::Size)
        })
    };
    ["Boot", "Add", "Remove"]
        .into_iter()
        .filter_map(plot)
        .collect()
}

fn is_step(kind: &Kind, steps: &[Step]) -> bool {
    matches!(kind, Kind::Dlpar { step, .. } if steps.contains(step))
}

/// Against LMB size and against LMB count.
fn against(rows: &[&Group], what: &str, id: &str, unit: Unit) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let plot = |by: By| {
        let title = format!("{what} by LMB {}", by.name());
        lines(rows, &title, &format!("{id}{}", by.name()), unit, by).figure()
    };
    vec![plot(By::Size), plot(By::Count)]
}

/// What rows are drawn against.
#[derive(Clone, Copy)]
enum By {
    Size,
    Count,
}

impl By {
    const fn name(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Count => "count",
        }
    }

    fn value(self, group: &Group) -> u64 {
        match self {
            Self::Size => group.config.lmb_size_bytes,
            Self::Count => group.lmbs(),
        }
    }

    fn show(self, value: u64) -> String {
        match self {
            Self::Size => format_size(value),
            Self::Count => grouped(value),
        }
    }
}

/// Rows against LMB size or count.
fn lines(rows: &[&Group], title: &str, id: &str, unit: Unit, by: By) -> Lines {
    let series = series(rows, by);
    let drawn: usize = series.iter().map(|line| line.spots.len()).sum();
    let more = match rows.len().saturating_sub(drawn) {
        0 => String::new(),
        n => format!(" ({n} more rows in the table)"),
    };
    Lines {
        title: format!("{title}{more}"),
        id: id.to_owned(),
        width: WIDTH,
        x_name: format!("LMB {}", by.name()),
        y_name: unit.axis().to_owned(),
        x_axis: XAxis::Doublings(x_ticks(&series, rows, by)),
        joined: true,
        guide: Guide::None,
        series,
    }
}

/// A tick for each value that is drawn.
fn x_ticks(lines: &[Series], rows: &[&Group], by: By) -> Vec<(f64, String)> {
    let drawn = |value: u64| {
        let mut spots = lines.iter().flat_map(|line| &line.spots);
        spots.any(|spot| spot.x == real(value))
    };
    let mut values: Vec<u64> = rows.iter().map(|group| by.value(group)).collect();
    values.sort_unstable();
    values.dedup();
    values.retain(|value| *value > 0 && drawn(*value));
    values.into_iter().map(|v| (real(v), by.show(v))).collect()
}

/// Rows that differ in LMB size alone are a line.
fn series(rows: &[&Group], by: By) -> Vec<Series> {
    let mut parts: Vec<(Vec<String>, Vec<&Group>)> = Vec::new();
    for group in rows {
        let key = traits(group);
        match parts.iter_mut().find(|(known, _)| *known == key) {
            Some((_, part)) => part.push(group),
            None => parts.push((key, vec![group])),
        }
    }
    let drawn = |(key, mut part): (Vec<String>, Vec<&Group>)| {
        part.sort_by_key(|group| by.value(group));
        let spots = part.iter().map(|group| spot(group, by.value(group)));
        let spots: Vec<Spot> = spots.flatten().collect();
        (!spots.is_empty()).then_some((key, spots))
    };
    let mut all: Vec<(Vec<String>, Vec<Spot>)> = parts.into_iter().filter_map(drawn).collect();
    // Lines first: a single row next to lines is a figure of another sweep.
    let lines = all.iter().any(|(_, spots)| spots.len() > 1);
    all.retain(|(_, spots)| !lines || spots.len() > 1);
    all.truncate(SERIES_MAX);
    // Named by what tells those apart that are drawn.
    let keys: Vec<Vec<String>> = all.iter().map(|(key, _)| key.clone()).collect();
    let named = short_names(&keys).into_iter().zip(all);
    named
        .map(|(name, (_, spots))| Series { name, spots })
        .collect()
}

fn spot(group: &Group, x: u64) -> Option<Spot> {
    let total = &group.times.get(&Moment::Complete)?.total;
    Some(Spot {
        x: real(x),
        y: group.unit.scale(total.median),
        range: Some((group.unit.scale(total.min), group.unit.scale(total.max))),
        words: format!(
            "LMB {}, {} LMBs: {}",
            format_size(group.config.lmb_size_bytes),
            grouped(group.lmbs()),
            group.unit.show(total.median)
        ),
    })
}

/// Traits that need not be said where another one tells: versions, RAM where
/// it is all of the memory, and the like.
const MINOR: [usize; 8] = [2, 4, 6, 10, 12, 13, 14, 15];

/// Place of the command line in [`traits`].
const CMDLINE: usize = 13;

/// What parts lines: everything a row depends on but the LMB size.
fn traits(group: &Group) -> Vec<String> {
    let config = &group.config;
    let ram = format!("{} RAM", format_size(config.memory_bytes));
    // A boot's memory is its RAM and what it plugs.
    let (memory, ram) = match (group.kind, config.plugged_at_boot_bytes) {
        (Kind::Boot, 0) => (ram, String::new()),
        (Kind::Boot, bytes) => (
            format!("{ram} + {} plugged", format_size(bytes)),
            String::new(),
        ),
        (Kind::Dlpar { .. }, _) => (format_size(group.bytes()), ram),
    };
    let slot = match config.slot_size_bytes {
        0 => "default slot".to_owned(),
        bytes => format!("slot {}", format_size(bytes)),
    };
    vec![
        step_name(group.kind).to_owned(),
        config.vmm.clone(),
        config.vmm_version.clone(),
        config.kernel.clone(),
        format!("{} entry", config.kernel_entry),
        memory,
        ram,
        crate::report::plural(u64::from(config.cpus), "vCPU"),
        format!("block {}", block_option(group)),
        slot,
        format!("host pages {}", config.hugepages),
        format!("load {}", config.load),
        config.hotplug.clone(),
        config.cmdline.clone(),
        group.host.kind.clone(),
        format!("host Linux {}", group.host.kernel),
        crate::report::plural(group.empty_lmbs(), "empty LMB"),
    ]
}

/// Names by the traits that differ, without minor ones that follow from others
/// before them; of a single one by operation, VMM and kernel.
fn short_names(keys: &[Vec<String>]) -> Vec<String> {
    let Some(first) = keys.first() else {
        return Vec::new();
    };
    let mut telling: Vec<usize> = Vec::new();
    for index in 0..first.len() {
        let differs = keys.iter().any(|key| key.get(index) != first.get(index));
        let follows = |from: &usize| {
            keys.iter().all(|a| {
                let same = |b: &&Vec<String>| a.get(*from) == b.get(*from);
                keys.iter()
                    .filter(same)
                    .all(|b| a.get(index) == b.get(index))
            })
        };
        let known = MINOR.contains(&index) && telling.iter().any(follows);
        if differs && !known {
            telling.push(index);
        }
    }
    if telling.is_empty() {
        telling = vec![0, 1, 3];
    }
    let name = |key: &Vec<String>| {
        let part = |index: &usize| {
            let part = key.get(*index)?;
            match *index {
                CMDLINE => own_words(part, keys.iter().filter_map(|key| key.get(CMDLINE))),
                _ => Some(part.clone()).filter(|part| !part.is_empty()),
            }
        };
        let parts: Vec<String> = telling.iter().filter_map(part).collect();
        if parts.is_empty() {
            "plain command line".to_owned()
        } else {
            parts.join(", ")
        }
    };
    keys.iter().map(name).collect()
}

/// Those words of a command line that not all of them have, which is what
/// tells it from the others.
fn own_words<'a>(text: &str, all: impl Iterator<Item = &'a String> + Clone) -> Option<String> {
    let own: Vec<&str> = text
        .split_whitespace()
        .filter(|word| {
            !all.clone()
                .all(|text| text.split_whitespace().any(|w| w == *word))
        })
        .collect();
    (!own.is_empty()).then(|| own.join(" "))
}

/// A bar for each row.
fn bars(
    rows: &[&Group],
    title: &str,
    id: &str,
    names: &[&str],
    parts: impl Fn(&Group) -> Vec<f64>,
) -> String {
    let mut shown = rows.to_vec();
    shown.sort_by_cached_key(|group| group.order());
    let left_out = shown.len().saturating_sub(BARS_MAX);
    shown.truncate(BARS_MAX);
    let Some(first) = shown.first() else {
        return String::new();
    };
    let unit = first.unit;
    let keys: Vec<Vec<String>> = shown.iter().map(|group| traits(group)).collect();
    let differ = keys.iter().any(|key| Some(key) != keys.first());
    let short = short_names(&keys);
    let bar = |(group, name): (&&Group, String)| {
        let values = parts(group);
        let mut words: Vec<String> = names
            .iter()
            .zip(&values)
            .map(|(name, ns)| format!("{name} {}", unit.show(*ns)))
            .collect();
        let whole = unit.show(values.iter().sum());
        words.push(format!("in all {whole}"));
        let size = format!("LMB {}", format_size(group.config.lmb_size_bytes));
        Bar {
            name: if differ {
                format!("{name}, {size}")
            } else {
                size
            },
            parts: values.iter().map(|ns| unit.scale(*ns)).collect(),
            words,
            whole,
        }
    };
    let bars = shown.iter().zip(short).map(bar).collect();
    let more = match left_out {
        0 => String::new(),
        n => format!(" (first {BARS_MAX} rows; {n} more in the table)"),
    };
    Bars {
        title: format!("{title}, by LMB size{more}"),
        id: id.to_owned(),
        x_name: unit.axis().to_owned(),
        parts: names.iter().map(|name| (*name).to_owned()).collect(),
        bars,
    }
    .figure()
}

/// Executed and waited, where rows tell and anything was waited.
fn waiting(rows: &[&Group], title: &str, id: &str) -> String {
    let split = |group: &Group| {
        let timing = group.times.get(&Moment::Complete)?;
        Some(vec![
            timing.executed.as_ref()?.median,
            timing.waited.as_ref()?.median,
        ])
    };
    let telling: Vec<&Group> = rows
        .iter()
        .copied()
        .filter(|group| split(group).is_some())
        .collect();
    let waits = |group: &&&Group| split(group).is_some_and(|s| s[1] > s[0] / 1000.0);
    if !telling.iter().any(|group| waits(&group)) {
        return String::new();
    }
    bars(&telling, title, id, &["executed", "waited"], |group| {
        split(group).unwrap_or_default()
    })
}

/// Each model against its rows: measured by fitted, and the residuals.
#[must_use]
pub fn models(models: &[Fitted], environments: &Environments) -> Vec<String> {
    let mut all = Vec::new();
    for (n, fitted) in models.iter().enumerate() {
        // Rows that are all alike make a dot and no plot.
        let alike = fitted.model.from == fitted.model.to;
        if fitted.model.residuals.len() < ROWS_MIN || alike {
            continue;
        }
        let letter = fitted.groups.first().map(|g| environments.letter(g));
        let mode = fitted.mode().map_or("", |mode| mode.word());
        let load = fitted.groups.first().map_or("", |g| g.config.load.as_str());
        let name: Vec<&str> = [fitted.subject.name(), mode]
            .into_iter()
            .filter(|part| !part.is_empty())
            .chain((load != "none").then_some(load))
            .collect();
        let name = format!("{} (conf. {})", name.join(", "), letter.unwrap_or_default());
        let part = if fitted.executed { ", executed" } else { "" };
        let plot = |what: &str, y_name: String, guide, spots| {
            Lines {
                title: format!("{name}: {what}"),
                id: format!("model{n}{}", what.split(' ').next().unwrap_or_default()),
                width: WIDTH,
                x_name: format!("model, {}{part}", fitted.unit.axis()),
                y_name,
                x_axis: XAxis::Even,
                joined: false,
                guide,
                series: vec![Series {
                    name: String::new(),
                    spots,
                }],
            }
            .figure()
        };
        let y_name = format!("measured, {}{part}", fitted.unit.axis());
        all.push(plot(
            "measured against the model",
            y_name,
            Guide::Diagonal,
            measured(fitted),
        ));
        let y_name = "residual, percent".to_owned();
        all.push(plot("residuals", y_name, Guide::Zero, residuals(fitted)));
    }
    all.retain(|plot| !plot.is_empty());
    all
}

fn measured(fitted: &Fitted) -> Vec<Spot> {
    spots(fitted, |point_ns, _| fitted.unit.scale(point_ns))
}

fn residuals(fitted: &Fitted) -> Vec<Spot> {
    spots(fitted, |_, relative| relative * 100.0)
}

fn spots(fitted: &Fitted, y: impl Fn(f64, f64) -> f64) -> Vec<Spot> {
    let rows = fitted.model.residuals.iter();
    rows.filter_map(|residual| {
        let point = fitted.points.get(residual.row)?;
        let group = fitted.groups.get(residual.row)?;
        Some(Spot {
            x: fitted.unit.scale(fitted.fitted_ns(residual)),
            y: y(point.ns, residual.relative),
            range: None,
            words: format!(
                "LMB {}, guest block {}, {}: measured {}, model {}, {}",
                format_size(group.config.lmb_size_bytes),
                format_size(group.guest_block_bytes()),
                format_size(group.bytes()),
                fitted.unit.show(point.ns),
                fitted.unit.show(fitted.fitted_ns(residual)),
                change(residual.relative)
            ),
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sample::Config;
    use crate::report::group::group;
    use crate::report::testing::{Boot, Dlpar, GIB, MIB, native_host};

    #[test]
    fn a_line_for_each_kernel_named_by_it_alone() {
        let mut samples = Vec::new();
        for lmb in [128 * MIB, GIB] {
            samples.extend(
                Boot {
                    lmb,
                    ..Boot::default()
                }
                .samples(2),
            );
            let edit = |config: &mut Config| config.kernel = "6.12".to_owned();
            samples.extend(
                Boot {
                    lmb,
                    edit,
                    ..Boot::default()
                }
                .samples(2),
            );
        }
        let groups = group(&samples);
        let rows: Vec<&Group> = groups.iter().collect();
        let series = series(&rows, By::Count);
        let names: Vec<&str> = series.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["6.1.0-18-cloud-amd64", "6.12"]);
        let xs: Vec<f64> = series[0].spots.iter().map(|spot| spot.x).collect();
        assert_eq!(xs, [64.0, 512.0]);
    }

    #[test]
    fn what_follows_from_another_trait_is_not_said() {
        let key = |parts: [&str; 4]| parts.map(str::to_owned).to_vec();
        let keys = [
            key(["boot", "lmb-vmm", "0.1.0", "6.1"]),
            key(["boot", "lmb-vmm", "0.1.0", "6.12"]),
            key(["boot", "qemu", "7.2", "6.1"]),
        ];
        // The version follows from the VMM; a load would be said all the same.
        assert!(MINOR.contains(&2) && !MINOR.contains(&11));
        assert_eq!(
            traits(&group(&Boot::default().samples(1))[0])[11],
            "load none"
        );
        assert_eq!(
            short_names(&keys),
            ["lmb-vmm, 6.1", "lmb-vmm, 6.12", "qemu, 6.1"]
        );
        assert_eq!(short_names(&keys[..1]), ["boot, lmb-vmm, 6.1"]);
    }

    #[test]
    fn of_a_command_line_only_its_own_words_are_said() {
        let samples: Vec<_> = [
            |_: &mut Config| (),
            |c: &mut Config| c.cmdline += " quick x=1",
        ]
        .into_iter()
        .flat_map(|edit| {
            let boot = Boot {
                edit,
                ..Boot::default()
            };
            boot.samples(1)
        })
        .collect();
        let groups = group(&samples);
        let keys: Vec<Vec<String>> = groups.iter().map(traits).collect();
        assert_eq!(keys[0][CMDLINE], groups[0].config.cmdline);
        assert_eq!(short_names(&keys), ["plain command line", "quick x=1"]);
    }

    #[test]
    fn units_never_share_an_axis() {
        let mut samples = Boot::default().samples(2);
        samples.extend(
            Boot {
                host: native_host(),
                ..Boot::default()
            }
            .samples(2),
        );
        let plots = boot(&group(&samples));
        assert!(
            plots
                .iter()
                .any(|plot| plot.contains("million instructions"))
        );
        assert!(plots.iter().any(|plot| plot.contains(">seconds<")));
        assert!(
            plots
                .iter()
                .all(|plot| !(plot.contains(">seconds<") && plot.contains("instr")))
        );
    }

    #[test]
    fn parts_of_an_add_make_the_whole() {
        let groups = group(&Dlpar::default().samples(3));
        for group in &groups {
            let whole: f64 = dlpar_parts(group).iter().sum();
            assert!((whole - group.median(Moment::Complete).unwrap()).abs() < 1.0);
        }
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        assert!(boot(&[]).is_empty() && dlpar(&[]).is_empty());
    }
}
