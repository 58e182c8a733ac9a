//! The index of docs/results, and what stands above each topic's tables.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use lmb_tools::bench::sample::Sample;
use lmb_tools::bench::store;

use super::sweeps::{MAIN, MODELS, Sweep, TOPICS, Topic};
use super::{Place, RAW};

const GENERATED: &str = "<!-- Written by `cargo xtask results`; changes here are lost. -->";

/// Texts that are written by hand, listed where they are there.
const TEXTS: [(&str, &str); 2] = [
    (
        "reading.md",
        "what the figures mean, and the article's rows reproduced or answered",
    ),
    (
        "limits.md",
        "what limits adds and removals most, in the VMM and in the guest",
    ),
];

/// Puts a topic's sweeps above its tables.
pub(super) fn put_head(page: &Path, topic: Topic, sweeps: &[Sweep]) -> Result<()> {
    let tables =
        fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
    let mut text = format!("{GENERATED}\n\n# {}\n\n", topic.title);
    for sweep in sweeps {
        let _ = writeln!(
            text,
            "- **{}**: {}. `{}`",
            sweep.name,
            sweep.purpose,
            sweep.line()
        );
    }
    if topic.name == MODELS {
        let _ = writeln!(
            text,
            "\nThe models take the rows of {} as well.",
            MAIN.join(", ")
        );
    }
    let _ = write!(text, "\n{tables}");
    fs::write(page, text).with_context(|| format!("cannot write {}", page.display()))
}

/// Writes README.md.
pub(super) fn write(place: &Place, sweeps: &[Sweep]) -> Result<()> {
    let mut text = format!("{GENERATED}\n\n# Results\n\n");
    text.push_str(
        "What the LMB size costs, measured. Figures are instructions of the virtual KVM host's \
         clock, which repeat closely on any machine, and no times of real hardware.\n\n",
    );
    for (name, what) in TEXTS {
        if place.results.join(name).is_file() {
            let _ = writeln!(text, "- [{name}]({name}): {what}");
        }
    }
    text.push_str(
        "- [report.html](report.html): all tables and plots on one page, to be opened in a \
         browser\n\
         - [figures.csv](figures.csv): all figures, a line for each row and moment\n\n\
         `cargo xtask results` measures what is missing and draws all of this again; `--again` \
         measures what was measured at another revision anew. `lmb report raw/*.jsonl` draws \
         tables from the raw samples.\n",
    );
    for topic in TOPICS {
        let of_topic: Vec<&Sweep> = sweeps.iter().filter(|s| s.topic == topic.name).collect();
        if of_topic.is_empty() {
            continue;
        }
        let _ = write!(
            text,
            "\n## {}\n\nTables: [{name}.md]({name}.md)\n\n\
             | sweep | what it shows | samples | revision | kernels |\n|---|---|---|---|---|\n",
            topic.title,
            name = topic.name
        );
        for sweep in of_topic {
            let samples = store::read(&place.raw(sweep))?;
            text.push_str(&row(sweep, &samples));
        }
    }
    let path = place.results.join("README.md");
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn row(sweep: &Sweep, samples: &[Sample]) -> String {
    let distinct = |value: fn(&Sample) -> &str| {
        let all: BTreeSet<&str> = samples.iter().map(value).collect();
        all.into_iter().collect::<Vec<_>>().join(", ")
    };
    format!(
        "| [{name}]({RAW}/{name}.jsonl) | {} | {} | {} | {} |\n",
        sweep.purpose,
        samples.len(),
        distinct(|sample| &sample.revision),
        distinct(|sample| &sample.config.kernel),
        name = sweep.name,
    )
}
