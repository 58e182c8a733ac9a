//! The report as one page: plots and tables, light or dark as the reader's
//! system is, nothing loaded from anywhere.
//!
//! - [`svg`]: plots, written by hand, since colours must come from the page's
//!   style sheet (a plot with colours of its own is dark on dark in one of the
//!   two schemes) and since each plot and point carries words for those who do
//!   not see it.
//! - [`plots`]: which plots a report has.

pub mod plots;
pub mod svg;

use std::fmt::Write as _;

use super::environment::Environments;
use super::figure::{Unit, grouped};
use super::group::Group;
use super::model::rows::Fitted;
use super::read::Source;
use super::table::{Table, escape};
use super::{model, plural, tables};

const STYLE: &str = include_str!("style.css");

/// The page.
#[must_use]
pub fn page(sources: &[Source], groups: &[Group], models: &[Fitted]) -> String {
    let environments = Environments::of(groups);
    let mut text = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n");
    text.push_str("<meta charset=\"utf-8\">\n");
    text.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    text.push_str("<meta name=\"color-scheme\" content=\"light dark\">\n");
    text.push_str("<title>What the LMB size costs</title>\n");
    let _ = write!(text, "<style>\n{STYLE}</style>\n</head>\n<body>\n");
    text.push_str("<header>\n<h1>What the LMB size costs</h1>\n");
    let _ = writeln!(text, "<p>{}</p>", escape(&summary(sources, groups)));
    text.push_str(&warnings(sources, groups));
    text.push_str("</header>\n<main>\n");
    let one: Vec<Table> = tables::lmb_counts(groups).into_iter().collect();
    section(&mut text, "counts", "LMB counts", &[], &one);
    let boot = tables::boot(groups, &environments);
    section(&mut text, "boot", "Boot", &plots::boot(groups), &boot);
    let dlpar = tables::dlpar(groups, &environments);
    section(
        &mut text,
        "dlpar",
        "Adding and removing memory",
        &plots::dlpar(groups),
        &dlpar,
    );
    let costs = model::text::tables(models, &environments);
    section(&mut text, "model", "Cost model", &[], &costs);
    let plots = plots::models(models, &environments);
    section(&mut text, "residuals", "Cost model in plots", &plots, &[]);
    text.push_str("</main>\n</body>\n</html>\n");
    text
}

/// One picture of boot, add and remove against LMB size, in a file of its own.
#[must_use]
pub fn overview(groups: &[Group]) -> String {
    let instructions = groups.iter().any(|group| group.unit == Unit::Instructions);
    let note = if instructions {
        "instructions, counted in the virtual KVM host: they are work, not time of real hardware"
    } else {
        ""
    };
    let plots = plots::overview(groups);
    svg::picture("What the LMB size costs", note, &plots)
}

fn section(text: &mut String, id: &str, title: &str, plots: &[String], tables: &[Table]) {
    if plots.is_empty() && tables.is_empty() {
        return;
    }
    let _ = writeln!(text, "<section id=\"{id}\">\n<h2>{title}</h2>");
    if !plots.is_empty() {
        text.push_str("<div class=\"plots\">\n");
        for plot in plots {
            text.push_str(plot);
        }
        text.push_str("</div>\n");
    }
    for table in tables {
        text.push_str(&table.html());
    }
    text.push_str("</section>\n");
}

fn summary(sources: &[Source], groups: &[Group]) -> String {
    let samples: usize = sources.iter().map(|source| source.samples.len()).sum();
    let sweeps = super::group::distinct(groups.iter().flat_map(|g| &g.sweeps).map(String::as_str));
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    format!(
        "Drawn from {} raw {} in {}, {} of {}. Warm-ups are left out; figures are medians.",
        grouped(count(samples)),
        if samples == 1 { "sample" } else { "samples" },
        plural(count(sources.len()), "file"),
        plural(count(groups.len()), "row"),
        plural(count(sweeps.len()), "sweep"),
    )
}

/// What a reader must know before the first figure.
fn warnings(sources: &[Source], groups: &[Group]) -> String {
    let mut all: Vec<String> = Vec::new();
    if groups.iter().any(|group| group.unit == Unit::Instructions) {
        all.push(
            "Figures marked \"instr\" were taken in the virtual KVM host by its instruction clock. \
             They count work, repeat closely, and are not times of real hardware."
                .to_owned(),
        );
    }
    if groups
        .iter()
        .any(|group| group.unit == Unit::EmulatedSeconds)
    {
        all.push(
            "Figures marked \"emulated\" were taken in the virtual KVM host by its wall clock. They \
             depend on how busy the machine was and say nothing about real hardware."
                .to_owned(),
        );
    }
    all.extend(
        sources
            .iter()
            .flat_map(|s| s.passed_over.sentences(&s.name)),
    );
    let lines: String = all
        .iter()
        .map(|line| format!("<p class=\"warning\" role=\"note\">{}</p>\n", escape(line)))
        .collect();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::group::group;
    use crate::report::model::rows::models;
    use crate::report::testing::{Boot, GIB, MIB, design};

    fn drawn(edit: fn(&mut crate::bench::sample::Config)) -> String {
        let mut samples = design();
        for lmb in [128 * MIB, 256 * MIB, 512 * MIB, GIB, 2 * GIB, 4 * GIB] {
            for plugged in [0, 8 * GIB] {
                samples.extend(
                    Boot {
                        lmb,
                        plugged,
                        edit,
                        ..Boot::default()
                    }
                    .samples(3),
                );
            }
        }
        let source = Source {
            name: "r.jsonl".to_owned(),
            samples,
            ..Source::default()
        };
        let groups = group(&source.samples);
        page(&[source], &groups, &models(&groups))
    }

    /// Where `LMB_TEST_PAGE` names a file the page is written there, to be
    /// looked at in a browser.
    #[test]
    fn the_page_holds_everything_and_loads_nothing() {
        let page = drawn(|_| ());
        if let Some(path) = std::env::var_os("LMB_TEST_PAGE") {
            std::fs::write(path, &page).unwrap();
        }
        for outside in [
            "http:", "https:", "src=", "@import", "url(", "<script", "<link",
        ] {
            assert!(!page.contains(outside), "{outside}");
        }
        for needed in [
            "prefers-color-scheme: dark",
            "EXTRAPOLATED",
            "M instr",
            "id=\"model\"",
        ] {
            assert!(page.contains(needed), "{needed}");
        }
        let plots = page.matches("<svg class=\"plot\" role=\"img\"").count();
        assert!(plots >= 8, "{plots}");
        assert_eq!(page.matches("<desc").count(), plots);
    }

    #[test]
    fn the_picture_stands_alone() {
        let groups = group(&design());
        let picture = overview(&groups);
        assert!(picture.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
        assert_eq!(picture.matches("class=\"title\"").count(), 2, "no boots");
        assert!(picture.contains("prefers-color-scheme: dark"));
        assert!(picture.contains("not time of real hardware"));
        assert!(!picture.contains("NaN") && !picture.contains("<ul"));
        for tag in ["svg", "g", "text", "title", "desc"] {
            let open = picture.matches(&format!("<{tag}>")).count()
                + picture.matches(&format!("<{tag} ")).count();
            assert_eq!(open, picture.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    #[test]
    fn tags_are_closed_and_ids_are_used_once() {
        let page = drawn(|_| ());
        for tag in [
            "svg", "g", "table", "tr", "td", "th", "section", "figure", "div", "ul", "li", "text",
            "title",
        ] {
            let open = page.matches(&format!("<{tag}>")).count()
                + page.matches(&format!("<{tag} ")).count();
            assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        let mut ids: Vec<&str> = page
            .split(" id=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all);
        assert!(
            !page.contains("NaN") && !page.contains("inf"),
            "a plot has a coordinate that is none"
        );
    }

    #[test]
    fn text_of_guests_cannot_become_markup() {
        let page = drawn(|config| {
            config.cmdline = "\"><script>alert(1)</script>".to_owned();
            config.kernel = "</svg><b>6.1".to_owned();
        });
        assert!(!page.contains("<script") && !page.contains("<b>"));
        assert!(page.contains("&lt;script&gt;"));
    }
}
