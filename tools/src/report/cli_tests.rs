//! Files in, forms and exit codes out.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::bench::sample::Sample;
use crate::report::testing::{Boot, Costs};
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ReportArgs,
}

fn save(dir: &Path, name: &str, samples: &[Sample]) -> String {
    let lines: Vec<String> = samples
        .iter()
        .map(|sample| serde_json::to_string(sample).unwrap() + "\n")
        .collect();
    let path = dir.join(name);
    std::fs::write(&path, lines.concat()).unwrap();
    path.display().to_string()
}

fn report(words: &[&str]) -> anyhow::Result<ExitCode> {
    let line = Line::try_parse_from([&["report"], words].concat()).unwrap();
    run(&line.args)
}

fn is(code: ExitCode, expected: u8) -> bool {
    format!("{code:?}") == format!("{:?}", ExitCode::from(expected))
}

#[test]
fn every_form_is_written_to_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = save(dir.path(), "r.jsonl", &Boot::default().samples(3));
    let out = dir.path().join("out").display().to_string();
    for (format, start) in [
        ("table", "LMBs needed"),
        ("markdown", "## LMBs needed"),
        ("csv", "vmm,vmm_version"),
        ("json", "{"),
        ("html", "<!DOCTYPE html>"),
    ] {
        let code = report(&[&file, "--format", format, "--out", &out]).unwrap();
        assert!(is(code, 0), "{format}");
        let text = std::fs::read_to_string(&out).unwrap();
        assert!(text.starts_with(start), "{format}: {text}");
    }
}

#[test]
fn a_slower_row_has_an_exit_code_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out").display().to_string();
    let base = save(dir.path(), "base", &Boot::default().samples(3));
    let costs = Costs {
        constant: 1_230_000_000,
        ..Costs::BOOT
    };
    let new = save(
        dir.path(),
        "new",
        &Boot {
            costs,
            ..Boot::default()
        }
        .samples(3),
    );
    let compared = |limit| {
        report(&[
            "--compare",
            &base,
            &new,
            "--fail-above",
            limit,
            "--out",
            &out,
        ])
    };
    assert!(is(compared("1%").unwrap(), EXIT_SLOWER));
    assert!(is(compared("5%").unwrap(), 0));
    assert!(is(
        report(&["--compare", &new, &base, "--out", &out]).unwrap(),
        0
    ));
    let text = std::fs::read_to_string(&out).unwrap();
    assert!(text.contains("faster"), "{text}");
}

#[test]
fn nothing_to_compare_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out").display().to_string();
    let base = save(dir.path(), "base", &Boot::default().samples(3));
    let edit = |config: &mut crate::bench::sample::Config| config.cpus = 8;
    let new = save(
        dir.path(),
        "new",
        &Boot {
            edit,
            ..Boot::default()
        }
        .samples(3),
    );
    let error = report(&["--compare", &base, &new, "--out", &out]).unwrap_err();
    assert!(
        error.to_string().contains("nothing was compared"),
        "{error}"
    );
    let text = std::fs::read_to_string(&out).unwrap();
    assert!(text.contains("only in the new"), "{text}");
}

#[test]
fn an_empty_file_says_where_results_come_from() {
    let dir = tempfile::tempdir().unwrap();
    let file = save(dir.path(), "r.jsonl", &[]);
    let error = report(&[&file]).unwrap_err().to_string();
    assert!(
        error.contains("no samples") && error.contains("lmb bench"),
        "{error}"
    );
    let mut warm_up = Boot::default().samples(1);
    warm_up[0].warm_up = true;
    let file = save(dir.path(), "w.jsonl", &warm_up);
    let error = report(&[&file]).unwrap_err().to_string();
    assert!(error.contains("all samples are warm-ups"), "{error}");
    let missing = report(&["/no/such/file"]).unwrap_err().to_string();
    assert!(missing.contains("/no/such/file"), "{missing}");
}

#[test]
fn shares_people_write() {
    for (text, expected) in [("1%", 0.01), ("0.5 %", 0.005), ("0.01", 0.01), ("0%", 0.0)] {
        assert_eq!(share(text), Ok(expected), "{text}");
    }
    for text in ["", "%", "x%", "-1%", "nan", "inf", "2000%"] {
        assert!(share(text).is_err(), "{text}");
    }
    assert!(Line::try_parse_from(["report", "x", "--fail-above", "1%"]).is_err());
    assert!(Line::try_parse_from(["report"]).is_err());
}
