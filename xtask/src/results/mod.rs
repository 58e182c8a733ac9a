//! `cargo xtask results`: measures what is missing in docs/results and draws
//! everything there again.
//!
//! Raw samples are saved as they come ([`sweeps`] says which); a sweep that was
//! broken off is continued. Then `lmb report` draws tables, figures, the page
//! and the plot from all of them, and [`index`] lists them. Reading text is
//! written by hand in files that this command does not touch.

mod index;
mod sweeps;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use lmb_tools::bench::revision;
use lmb_tools::bench::sample::Sample;
use lmb_tools::bench::store;

use self::sweeps::{MAIN, MODELS, SWEEPS, Sweep, TOPICS};
use crate::artifacts::Programs;
use crate::cargo::{root, succeeds};

/// Options of `cargo xtask results`.
#[derive(Debug, Args)]
#[command(after_help = "\
A run that was broken off goes on when the command is given again. What was measured \
at another revision is kept; --again measures it anew.")]
pub(crate) struct ResultsArgs {
    /// Only these sweeps
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,

    /// Say which sweeps there are, with their commands, and end
    #[arg(long)]
    list: bool,

    /// Measure again what was measured at another revision of the sources
    #[arg(long, conflicts_with = "draw")]
    again: bool,

    /// Measure nothing; draw tables, page and index from the samples there are
    #[arg(long)]
    draw: bool,

    /// Where results are kept
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    into: PathBuf,
}

/// Runs the command: whether every job of every sweep gave its samples.
///
/// # Errors
/// When a sweep is unknown, or nothing can be built or written.
pub(crate) fn run(args: &ResultsArgs) -> Result<bool> {
    let chosen = choose(&args.only)?;
    if args.list {
        list(&chosen);
        return Ok(true);
    }
    let programs = if args.draw {
        Programs::build_tool()?
    } else {
        Programs::build()?
    };
    let place = Place {
        lmb: programs.path("lmb")?,
        results: root().join(&args.into),
    };
    fs::create_dir_all(place.results.join(RAW))
        .with_context(|| format!("cannot make {}", place.results.display()))?;
    let complete = args.draw || measure(&place, &chosen, args.again)?;
    place.draw()?;
    println!("results are in {}", place.results.display());
    Ok(complete)
}

fn choose(only: &[String]) -> Result<Vec<Sweep>> {
    for name in only {
        ensure!(
            SWEEPS.iter().any(|sweep| sweep.name == name),
            "there is no sweep `{name}`; --list says which there are"
        );
    }
    let wanted = |sweep: &&Sweep| only.is_empty() || only.iter().any(|name| name == sweep.name);
    Ok(SWEEPS.iter().filter(wanted).copied().collect())
}

fn list(sweeps: &[Sweep]) {
    for sweep in sweeps {
        println!("{} (about {} min)", sweep.name, sweep.minutes);
        println!("    {}", sweep.purpose);
        println!("    {}", sweep.line());
    }
    let all: u32 = sweeps.iter().map(|sweep| sweep.minutes).sum();
    println!("in all about {all} min on two cores without native KVM");
}

/// Measures what is missing: whether all of it came.
fn measure(place: &Place, sweeps: &[Sweep], again: bool) -> Result<bool> {
    let here = revision();
    if here == "unknown" || here.ends_with("-dirty") {
        eprintln!(
            "xtask: samples will carry the revision {here}: commit the sources first if the \
             results are to be kept"
        );
    }
    let mut complete = true;
    let mut pace = Pace::new(sweeps);
    for (number, sweep) in sweeps.iter().enumerate() {
        let raw = place.raw(sweep);
        let state = state(&store::read(&raw)?, again.then_some(here.as_str()));
        eprintln!(
            "== {} ({} of {}): {}; {}",
            sweep.name,
            number.saturating_add(1),
            sweeps.len(),
            state.words(),
            pace.words(),
        );
        if state == State::Other {
            fs::remove_file(&raw).with_context(|| format!("cannot remove {}", raw.display()))?;
        }
        let start = Instant::now();
        let mut command = Command::new(&place.lmb);
        command
            .arg("bench")
            .args(sweep.arguments())
            .args(["--host", "virtual"])
            .arg("--out")
            .arg(&raw)
            .current_dir(root());
        if state == State::Begun {
            command.arg("--continue");
        }
        // Its tables are drawn at the end, from all sweeps.
        command.stdout(std::process::Stdio::null());
        if !succeeds(&mut command)? {
            eprintln!("xtask: the sweep {} is not complete", sweep.name);
            complete = false;
        }
        pace.ended(sweep, start.elapsed().as_secs());
    }
    Ok(complete)
}

/// What a file of raw samples is to this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is not there.
    None,
    /// It goes on with it, if anything is missing.
    Begun,
    /// It is of another revision, and measured again.
    Other,
}

impl State {
    const fn words(self) -> &'static str {
        match self {
            Self::None => "measured now",
            Self::Begun => "continued where anything is missing",
            Self::Other => "measured again",
        }
    }
}

/// Judges a file's samples; `again` names the revision that counts.
fn state(samples: &[Sample], again: Option<&str>) -> State {
    match (samples.last(), again) {
        (None, _) => State::None,
        (Some(last), Some(here)) if last.revision != here => State::Other,
        (Some(_), _) => State::Begun,
    }
}

/// How long the rest will take, by what the first sweeps took.
struct Pace {
    left_minutes: u64,
    done_minutes: u64,
    took_s: u64,
}

impl Pace {
    fn new(sweeps: &[Sweep]) -> Self {
        Self {
            left_minutes: sweeps.iter().map(|sweep| u64::from(sweep.minutes)).sum(),
            done_minutes: 0,
            took_s: 0,
        }
    }

    /// A sweep that had little left to do says nothing about the others.
    fn ended(&mut self, sweep: &Sweep, took_s: u64) {
        let minutes = u64::from(sweep.minutes);
        self.left_minutes = self.left_minutes.saturating_sub(minutes);
        if took_s >= minutes.saturating_mul(20) {
            self.done_minutes = self.done_minutes.saturating_add(minutes);
            self.took_s = self.took_s.saturating_add(took_s);
        }
    }

    fn words(&self) -> String {
        let left = match self.done_minutes.saturating_mul(60) {
            0 => self.left_minutes,
            done_s => self.left_minutes.saturating_mul(self.took_s) / done_s,
        };
        format!("at most {left} min left in all")
    }
}

/// Directory of raw samples.
const RAW: &str = "raw";

/// The tool and where results lie.
struct Place {
    lmb: PathBuf,
    results: PathBuf,
}

impl Place {
    fn raw(&self, sweep: &Sweep) -> PathBuf {
        self.results.join(RAW).join(format!("{}.jsonl", sweep.name))
    }

    /// The sweeps of a topic, or all, that have samples.
    fn measured(&self, topic: Option<&str>) -> Vec<Sweep> {
        SWEEPS
            .iter()
            .filter(|sweep| topic.is_none_or(|topic| sweep.topic == topic))
            .filter(|sweep| fs::metadata(self.raw(sweep)).is_ok_and(|file| file.len() > 0))
            .copied()
            .collect()
    }

    /// Those of the picture.
    fn main(&self) -> Vec<Sweep> {
        let mut all = self.measured(None);
        all.retain(|sweep| MAIN.contains(&sweep.name));
        all
    }

    /// Draws everything from the samples there are.
    fn draw(&self) -> Result<()> {
        for topic in TOPICS {
            let sweeps = self.measured(Some(topic.name));
            if !sweeps.is_empty() {
                let page = self.results.join(format!("{}.md", topic.name));
                let mut drawn = sweeps.clone();
                if topic.name == MODELS {
                    drawn.extend(self.main());
                }
                self.report(&drawn, &["--format", "markdown"], &page)?;
                index::put_head(&page, topic, &sweeps)?;
            }
        }
        let all = self.measured(None);
        if all.is_empty() {
            bail!("there are no samples in {}", self.results.display());
        }
        let to = |name: &str| self.results.join(name);
        self.report(&all, &["--format", "html"], &to("report.html"))?;
        self.report(&all, &["--format", "csv"], &to("figures.csv"))?;
        let main = self.main();
        if !main.is_empty() {
            self.report(&main, &["--format", "svg"], &to("overview.svg"))?;
        }
        index::write(self, &all)
    }

    fn report(&self, sweeps: &[Sweep], form: &[&str], out: &Path) -> Result<()> {
        let mut command = Command::new(&self.lmb);
        command.arg("report").args(form).arg("--out").arg(out);
        // Names relative to the results, as they stand in the report.
        command.current_dir(&self.results);
        for sweep in sweeps {
            command.arg(format!("{RAW}/{}.jsonl", sweep.name));
        }
        ensure!(succeeds(&mut command)?, "lmb report failed");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_sweeps_are_refused_and_known_ones_kept_in_order() {
        assert!(choose(&["boots".to_owned()]).is_err());
        let names = ["loads".to_owned(), "boot".to_owned()];
        let chosen: Vec<&str> = choose(&names).unwrap().iter().map(|s| s.name).collect();
        assert_eq!(chosen, ["boot", "loads"]);
        assert_eq!(choose(&[]).unwrap().len(), SWEEPS.len());
    }

    #[test]
    fn the_rest_is_judged_by_what_was_measured_and_not_by_what_was_there() {
        let sweeps = &SWEEPS[..3];
        let mut pace = Pace::new(sweeps);
        let all: u32 = sweeps.iter().map(|sweep| sweep.minutes).sum();
        assert_eq!(pace.words(), format!("at most {all} min left in all"));
        let rest = u64::from(sweeps[1].minutes + sweeps[2].minutes);
        pace.ended(&sweeps[0], 2);
        assert_eq!(pace.words(), format!("at most {rest} min left in all"));
        let mut slow = Pace::new(sweeps);
        slow.ended(&sweeps[0], u64::from(sweeps[0].minutes) * 120);
        assert_eq!(
            slow.words(),
            format!("at most {} min left in all", 2 * rest)
        );
    }
}
