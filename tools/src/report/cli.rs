//! `lmb report` on the command line: files in, one form out.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::compare::compare;
use super::environment::Environments;
use super::group::{Group, group};
use super::json::ReportJson;
use super::model::rows::{Fitted, models};
use super::read::{Source, read};
use super::table::Table;
use super::{csv, html, model, tables};

/// Exit code of a comparison in which something got slower or fails more often.
pub const EXIT_SLOWER: u8 = 6;

/// Examples and exit codes for `--help`.
pub const HELP: &str = "\
Examples:
  lmb report results.jsonl
  lmb report a.jsonl b.jsonl --format html --out results.html
  lmb report --compare base.jsonl new.jsonl --fail-above 1%

Exit codes:
  0  done; with --compare: no row got slower
  1  error: the message says what was wrong; with --compare also: no row matched
  2  the command line was wrong
  6  with --compare: a row got slower, or reaches its target less often";

/// Options of `lmb report`.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Results files of `lmb bench`: JSON lines; with --compare the new ones
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Form of the report
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    /// File to write; standard output unless given
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Compare the files with this one, row by row
    #[arg(long, value_name = "BASE")]
    compare: Option<PathBuf>,

    /// How much a median may grow before its row is slower: 1% or 0.01
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = share,
          requires = "compare")]
    fail_above: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables for a terminal
    #[default]
    Table,
    /// Tables as Markdown
    Markdown,
    /// A line for each figure
    Csv,
    /// Everything, for programs
    Json,
    /// A page with plots and tables, in one file
    Html,
    /// One picture of boot, add and remove against LMB size
    Svg,
}

/// Does `lmb report`.
///
/// # Errors
/// A file that cannot be read or written, that holds no samples, or nothing
/// that could be compared.
pub fn run(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let sources = read_all(&args.files)?;
    let groups = rows(&sources)?;
    match &args.compare {
        Some(base) => run_compare(args, base, &groups),
        None => {
            put(args, &draw(&sources, &groups, args.format)?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn run_compare(args: &ReportArgs, base: &Path, new: &[Group]) -> anyhow::Result<ExitCode> {
    let base_groups = read_groups(&[base.to_owned()])?;
    let comparison = compare(&base_groups, new, args.fail_above);
    let text = match args.format {
        Format::Table => comparison.table().terminal(),
        Format::Markdown => comparison.table().markdown(),
        Format::Json => pretty(&comparison)?,
        Format::Csv | Format::Html | Format::Svg => {
            bail!("--compare prints a table, markdown or json; give --format one of them")
        }
    };
    put(args, &text)?;
    if comparison.nothing_compared() {
        bail!(
            "no row of {} matches one of the new results: nothing was compared",
            base.display()
        );
    }
    for verdict in comparison.verdicts() {
        eprintln!("lmb: {verdict}");
    }
    Ok(if comparison.slower() {
        ExitCode::from(EXIT_SLOWER)
    } else {
        ExitCode::SUCCESS
    })
}

fn draw(sources: &[Source], groups: &[Group], format: Format) -> anyhow::Result<String> {
    let models = models(groups);
    let joined = |form: fn(&Table) -> String| {
        let all: Vec<String> = all_tables(groups, &models).iter().map(form).collect();
        all.join("\n")
    };
    Ok(match format {
        Format::Table => joined(Table::terminal),
        Format::Markdown => joined(Table::markdown),
        Format::Csv => csv::csv(groups),
        Format::Json => pretty(&ReportJson::of(sources, groups, &models))?,
        Format::Html => html::page(sources, groups, &models),
        Format::Svg => html::overview(groups),
    })
}

fn all_tables(groups: &[Group], models: &[Fitted]) -> Vec<Table> {
    let environments = Environments::of(groups);
    let mut all = tables::all(groups, &environments);
    all.extend(model::text::tables(models, &environments));
    all
}

fn pretty(value: &impl Serialize) -> anyhow::Result<String> {
    let mut text = serde_json::to_string_pretty(value).context("cannot write JSON")?;
    text.push('\n');
    Ok(text)
}

fn put(args: &ReportArgs, text: &str) -> anyhow::Result<()> {
    match &args.out {
        None => crate::cli::print(text),
        Some(out) => {
            std::fs::write(out, text).with_context(|| format!("cannot write {}", out.display()))
        }
    }
}

/// Reads files and groups their samples; what was passed over is said on
/// standard error.
///
/// # Errors
/// A file that cannot be read, or no samples.
pub(crate) fn read_groups(files: &[PathBuf]) -> anyhow::Result<Vec<Group>> {
    rows(&read_all(files)?)
}

fn rows(sources: &[Source]) -> anyhow::Result<Vec<Group>> {
    let groups = group(sources.iter().flat_map(|source| &source.samples));
    if groups.is_empty() {
        bail!("all samples are warm-ups; let the sweep go on until it has measured something");
    }
    Ok(groups)
}

fn read_all(files: &[PathBuf]) -> anyhow::Result<Vec<Source>> {
    let sources: Vec<Source> = files
        .iter()
        .map(|path| read_one(path))
        .collect::<anyhow::Result<_>>()?;
    for source in &sources {
        for sentence in source.passed_over.sentences(&source.name) {
            eprintln!("lmb: {sentence}");
        }
    }
    if sources.iter().all(|source| source.samples.is_empty()) {
        let names: Vec<&str> = sources.iter().map(|s| s.name.as_str()).collect();
        bail!(
            "no samples in {}; results files are written by `lmb bench`",
            names.join(", ")
        );
    }
    Ok(sources)
}

fn read_one(path: &Path) -> anyhow::Result<Source> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
    read(&name, BufReader::new(file)).with_context(|| format!("cannot read {name}"))
}

/// `1%` or `0.01`.
fn share(text: &str) -> Result<f64, String> {
    let bad = || format!("`{text}` is no share; write it like 1%, 0.5% or 0.01");
    let (number, factor) = match text.strip_suffix('%') {
        Some(percent) => (percent.trim_end(), 100.0),
        None => (text, 1.0),
    };
    let value: f64 = number.parse().map_err(|_| bad())?;
    let share = value / factor;
    if (0.0..=10.0).contains(&share) {
        Ok(share)
    } else {
        Err(format!("`{text}` is out of range; a share is 0% to 1000%"))
    }
}

#[cfg(test)]
#[path = "cli_tests.rs"]
mod tests;
