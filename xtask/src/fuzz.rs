//! The targets in fuzz/: `cargo xtask fuzz` for finding something new, and the
//! short run of each that is part of `cargo xtask test`, which starts from the
//! committed seeds and is the same each time.
//!
//! Targets are plain programs with libFuzzer in them, built here by a nightly
//! cargo with the flags that `cargo fuzz` would give. Where nightly, its
//! sanitizer or a C++ compiler is missing, nothing is run, and that is said.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use lmb_tools::packages::find_program;

use crate::cargo::{programs, root, succeeds};
use crate::tally::Tally;

const TOOLCHAIN: &str = "nightly";

/// Coverage that libFuzzer reads, and the address sanitizer. They take the place
/// of .cargo/config.toml's flags: the sanitizer needs a dynamic C library.
const RUSTFLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Zsanitizer=address",
    "--cfg fuzzing",
];

/// Longest time of a target's short run, seconds, and most executions.
const SHORT_SECONDS: u64 = 10;
const SHORT_RUNS: u64 = 20_000;

/// A target.
struct Target {
    name: &'static str,
    /// Longest input, bytes.
    max_bytes: u32,
    /// Largest single allocation, MiB: what the target's own parts are bounded by.
    largest_mib: u32,
}

const TARGETS: &[Target] = &[
    Target::new("wire", 1024, 8),
    Target::new("queue", 1024, 8),
    Target::new("acpi", 1024, 8),
    Target::new("config", 1024, 8),
    Target::new("geometry", 128, 8),
    Target::new("http", 8192, 8),
    // An xz payload names the size of its dictionary, up to 4 GiB, of which
    // only what is used is touched.
    Target::new("kernel", 16384, 4200),
];

impl Target {
    const fn new(name: &'static str, max_bytes: u32, largest_mib: u32) -> Self {
        Self {
            name,
            max_bytes,
            largest_mib,
        }
    }

    /// The target's directory of this kind.
    fn directory(&self, kind: &str) -> PathBuf {
        workspace().join(kind).join(self.name)
    }

    /// A run: `corpus` takes what is new, failures go to fuzz/artifacts.
    fn command(&self, program: &Path, corpus: &Path) -> Result<Command> {
        let artifacts = self.directory("artifacts");
        fs::create_dir_all(&artifacts).context("cannot make fuzz/artifacts")?;
        fs::create_dir_all(corpus).context("cannot make the corpus's directory")?;
        let mut command = Command::new(program);
        command
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .arg(format!("-max_len={}", self.max_bytes))
            .arg(format!("-malloc_limit_mb={}", self.largest_mib))
            .args(["-rss_limit_mb=1024", "-timeout=20"])
            .args(["-detect_leaks=0", "-print_final_stats=1"]);
        let words = workspace()
            .join("dictionaries")
            .join(format!("{}.dict", self.name));
        if words.exists() {
            command.arg(format!("-dict={}", words.display()));
        }
        command.arg(corpus);
        let seeds = self.directory("seeds");
        if seeds.exists() {
            command.arg(seeds);
        }
        Ok(command)
    }
}

/// Options of `cargo xtask fuzz`.
#[derive(Debug, Args)]
pub(crate) struct FuzzArgs {
    /// The target; all of them, one after the other, if none is named
    target: Option<String>,
    /// How long each target runs, seconds
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
}

/// Runs targets with their corpora, in fuzz/corpus: whether none failed.
///
/// # Errors
/// When something is missing or cannot be run.
pub(crate) fn run(args: &FuzzArgs) -> Result<bool> {
    if let Some(reason) = missing() {
        bail!("{reason}");
    }
    let named = |target: &&Target| {
        args.target
            .as_deref()
            .is_none_or(|name| name == target.name)
    };
    let targets: Vec<&Target> = TARGETS.iter().filter(named).collect();
    if targets.is_empty() {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        bail!("there is no such target; there are {}", names.join(", "));
    }
    let built = build(&targets)?;
    let mut ok = true;
    for (target, program) in targets.iter().zip(&built) {
        println!("== {} for {} s", target.name, args.seconds);
        let mut command = target.command(program, &target.directory("corpus"))?;
        command.arg(format!("-max_total_time={}", args.seconds));
        ok &= succeeds(&mut command)?;
    }
    Ok(ok)
}

/// The short run of each target whose name, as `fuzz::NAME`, contains `filter`.
///
/// # Errors
/// When a target cannot be run.
pub(crate) fn short(tally: &mut Tally, filter: Option<&str>) -> Result<()> {
    let chosen = |target: &&Target| filter.is_none_or(|text| test_name(target).contains(text));
    let targets: Vec<&Target> = TARGETS.iter().filter(chosen).collect();
    if targets.is_empty() {
        return Ok(());
    }
    println!("== fuzz targets");
    if let Some(reason) = missing() {
        for target in &targets {
            println!("test {} ... ignored, {reason}", test_name(target));
            tally.skipped += 1;
        }
        return Ok(());
    }
    let start = Instant::now();
    let built = match build(&targets) {
        Ok(built) => built,
        Err(error) => {
            eprintln!("{error:#}");
            tally.step("fuzz build", false);
            return Ok(());
        }
    };
    println!("built in {} s", start.elapsed().as_secs());
    for (target, program) in targets.iter().zip(&built) {
        let outcome = run_short(target, program)?;
        println!("test {} ... {}", test_name(target), outcome.text);
        tally.step(
            &format!("{}{}", test_name(target), outcome.detail),
            outcome.ok,
        );
    }
    Ok(())
}

fn test_name(target: &Target) -> String {
    format!("fuzz::{}", target.name)
}

/// How a short run went.
struct Outcome {
    ok: bool,
    text: String,
    /// Where the input is that failed.
    detail: String,
}

fn run_short(target: &Target, program: &Path) -> Result<Outcome> {
    let corpus = tempfile::tempdir().context("cannot make a directory")?;
    let output = target
        .command(program, corpus.path())?
        .arg(format!("-max_total_time={SHORT_SECONDS}"))
        .arg(format!("-runs={SHORT_RUNS}"))
        // The same run each time: what is new is for `cargo xtask fuzz`.
        .arg("-seed=1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let log = String::from_utf8_lossy(&output.stderr);
    let executions = after(&log, "stat::number_of_executed_units:");
    if output.status.success()
        && let Some(executions) = executions
    {
        return Ok(Outcome {
            ok: true,
            text: format!("ok, {executions} executions"),
            detail: String::new(),
        });
    }
    let lines: Vec<&str> = log.lines().collect();
    let tail = lines.get(lines.len().saturating_sub(60)..);
    eprintln!("{}", tail.unwrap_or_default().join("\n"));
    let input = after(&log, "Test unit written to ").map(|path| format!(", by {path}"));
    Ok(Outcome {
        ok: false,
        text: "FAILED".to_owned(),
        detail: input.unwrap_or_default(),
    })
}

/// The word after `mark` in the last line that has it.
fn after<'a>(log: &'a str, mark: &str) -> Option<&'a str> {
    let (_, rest) = log.rsplit_once(mark)?;
    rest.split_whitespace().next()
}

/// Where the targets are.
fn workspace() -> PathBuf {
    root().join("fuzz")
}

/// Builds targets: their programs, in the same order.
fn build(targets: &[&Target]) -> Result<Vec<PathBuf>> {
    let target_dir = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => PathBuf::from(directory).join("fuzz"),
        None => workspace().join("target"),
    };
    let mut command = nightly(&["cargo", "build", "--release", "--locked"]);
    command
        .arg("--target-dir")
        .arg(target_dir)
        .env("RUSTFLAGS", RUSTFLAGS.join(" "))
        .current_dir(workspace());
    for target in targets {
        command.args(["--bin", target.name]);
    }
    let built = programs(&mut command)?;
    let path = |target: &&Target| {
        let found = built.iter().find(|(name, _)| name == target.name);
        found
            .map(|(_, path)| path.clone())
            .with_context(|| format!("cargo built no target {}", target.name))
    };
    targets.iter().map(path).collect()
}

/// A command of the nightly toolchain, in the place of the one this runs under.
fn nightly(arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", TOOLCHAIN]).args(arguments);
    for name in [
        "CARGO",
        "RUSTC",
        "RUSTUP_TOOLCHAIN",
        "CARGO_ENCODED_RUSTFLAGS",
    ] {
        command.env_remove(name);
    }
    command
}

/// Why targets cannot be built here, if so.
fn missing() -> Option<String> {
    let output = nightly(&["rustc", "--print", "target-libdir"])
        .stderr(Stdio::null())
        .output();
    let libraries = match output {
        Ok(output) if output.status.success() => {
            PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
        }
        _ => {
            return Some(format!(
                "no {TOOLCHAIN} toolchain (rustup install {TOOLCHAIN})"
            ));
        }
    };
    let sanitizer = fs::read_dir(libraries).is_ok_and(|entries| {
        let mut names = entries.flatten().map(|entry| entry.file_name());
        names.any(|name| name.to_string_lossy().ends_with("_rt.asan.a"))
    });
    if !sanitizer {
        return Some(format!(
            "the {TOOLCHAIN} toolchain has no address sanitizer"
        ));
    }
    if find_program("c++").is_none() {
        return Some("no C++ compiler for libFuzzer".to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_fuzzer_prints_is_read() {
        let log = "INFO: x\n\
            artifact_prefix='/a/'; Test unit written to /a/crash-12ab\n\
            Base64: AA==\n\
            stat::number_of_executed_units: 4711\nstat::peak_rss_mb: 5\n";
        assert_eq!(after(log, "stat::number_of_executed_units:"), Some("4711"));
        assert_eq!(after(log, "Test unit written to "), Some("/a/crash-12ab"));
        assert_eq!(after(log, "stat::nothing:"), None);
    }

    #[test]
    fn every_target_has_a_program_and_seeds() {
        let manifest = fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
        let names: Vec<&str> = manifest
            .split("[[bin]]")
            .skip(1)
            .filter_map(|bin| bin.split('"').nth(1))
            .collect();
        let targets: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        assert_eq!(names, targets);
        for target in TARGETS {
            let seeds = fs::read_dir(target.directory("seeds")).unwrap();
            assert!(seeds.count() > 0, "{} has no seeds", target.name);
        }
    }
}
