//! `lmb report` on the command line: files in, one form out.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use super::environment::Environments;
use super::group::{Group, group};
use super::read::{Source, read};
use super::table::Table;
use super::{csv, tables};

/// Examples for `--help`.
pub const HELP: &str = "\
Examples:
  lmb report results.jsonl
  lmb report a.jsonl b.jsonl --format markdown --out results.md";

/// Options of `lmb report`.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Results files of `lmb bench`: JSON lines
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Form of the report
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    /// File to write; standard output unless given
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
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
}

/// Does `lmb report`; what it returns goes to standard output.
///
/// # Errors
/// A file that cannot be read or written, or that holds no samples.
pub fn run(args: &ReportArgs) -> anyhow::Result<String> {
    let sources = read_all(&args.files)?;
    let groups = group(sources.iter().flat_map(|source| &source.samples));
    let text = draw(&groups, args.format);
    match &args.out {
        None => Ok(text),
        Some(out) => {
            std::fs::write(out, text).with_context(|| format!("cannot write {}", out.display()))?;
            Ok(String::new())
        }
    }
}

fn draw(groups: &[Group], format: Format) -> String {
    let environments = Environments::of(groups);
    let tables = || tables::all(groups, &environments);
    let joined = |form: fn(&Table) -> String| {
        let all: Vec<String> = tables().iter().map(form).collect();
        all.join("\n")
    };
    match format {
        Format::Table => joined(Table::terminal),
        Format::Markdown => joined(Table::markdown),
        Format::Csv => csv::csv(groups),
    }
}

/// Reads files and says on standard error what was passed over.
pub(crate) fn read_all(files: &[PathBuf]) -> anyhow::Result<Vec<Source>> {
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
