//! The command line's definition, and what it makes besides commands.
#![allow(clippy::unwrap_used)]

use super::*;
use clap::error::ErrorKind as Usage;

fn refused(line: &str) -> Usage {
    let words = line.split_whitespace();
    Cli::try_parse_from(words).unwrap_err().kind()
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn an_amount_is_a_size_or_a_count() {
    for action in ["set", "add", "remove"] {
        for amount in ["1G", "-q 4", "--quantity=4", "0x40000000 --timeout 5m"] {
            let line = format!("lmb mem {action} {amount}");
            assert!(
                Cli::try_parse_from(line.split_whitespace()).is_ok(),
                "{line}"
            );
        }
        let line = format!("lmb mem {action}");
        assert_eq!(refused(&line), Usage::MissingRequiredArgument);
        assert_eq!(refused(&format!("{line} 1G -q 4")), Usage::ArgumentConflict);
        assert_eq!(refused(&format!("{line} -q 0")), Usage::ValueValidation);
        assert_eq!(refused(&format!("{line} lots")), Usage::ValueValidation);
        assert_eq!(
            refused(&format!("{line} 1G -t 25h")),
            Usage::ValueValidation
        );
        assert_eq!(
            refused(&format!("{line} 1G --no-wait --wait-usable")),
            Usage::ArgumentConflict
        );
    }
}

#[test]
fn lmbs_are_named_for_adding_and_removing_alone() {
    for action in ["add", "remove"] {
        for named in [
            "--lmb 0x12",
            "--lmb 0x12..0x1f",
            "--lmb 1,0x2..5 --lmb=7 --timeout 5m",
        ] {
            let line = format!("lmb mem {action} {named}");
            assert!(
                Cli::try_parse_from(line.split_whitespace()).is_ok(),
                "{line}"
            );
        }
        let line = format!("lmb mem {action} --lmb");
        assert_eq!(refused(&format!("{line} 1 1G")), Usage::ArgumentConflict);
        assert_eq!(refused(&format!("{line} 1 -q 1")), Usage::ArgumentConflict);
        for wrong in ["0x", "1,", "1,,2", "2..1", "+1", "012", "1..", "1-2"] {
            assert_eq!(
                refused(&format!("{line} {wrong}")),
                Usage::ValueValidation,
                "{wrong}"
            );
        }
    }
    assert_eq!(refused("lmb mem set --lmb 1"), Usage::UnknownArgument);
    for line in [
        "lmb mem remove 1G --all-or-nothing",
        "lmb mem remove -q 2 --all-or-nothing",
        "lmb mem remove --lmb 3 --all-or-nothing",
    ] {
        assert!(
            Cli::try_parse_from(line.split_whitespace()).is_ok(),
            "{line}"
        );
    }
    for action in ["set", "add"] {
        let line = format!("lmb mem {action} 1G --all-or-nothing");
        assert_eq!(refused(&line), Usage::UnknownArgument);
    }
    assert_eq!(
        refused("lmb mem show --each"),
        Usage::MissingRequiredArgument
    );
}

#[test]
fn a_vm_is_named_in_one_way() {
    assert_eq!(
        refused("lmb mem show --socket /x --name y"),
        Usage::ArgumentConflict
    );
    assert_eq!(refused("lmb run --name a/b"), Usage::ValueValidation);
}

#[test]
fn every_command_teaches() {
    fn check(command: &clap::Command, path: &str) {
        assert!(command.get_about().is_some(), "{path} has no description");
        for argument in command.get_arguments() {
            assert!(
                argument.get_help().is_some() || argument.get_id() == "help",
                "{path} does not explain {}",
                argument.get_id()
            );
        }
        for child in command.get_subcommands().filter(|c| c.get_name() != "help") {
            check(child, &format!("{path} {}", child.get_name()));
        }
    }
    let mut command = Cli::command();
    command.build();
    check(&command, "lmb");
}

#[test]
fn help_names_every_exit_code_where_it_matters() {
    let mut command = Cli::command();
    command.build();
    let mem = command.find_subcommand_mut("mem").unwrap();
    for name in ["set", "add", "remove"] {
        let help = mem
            .find_subcommand_mut(name)
            .unwrap()
            .render_long_help()
            .to_string();
        for code in 0..=5 {
            assert!(help.contains(&format!("\n  {code}  ")), "{name}: {code}");
        }
        assert!(help.contains("Examples:"), "{name}");
    }
}

#[test]
fn completions_and_manual_pages_come_from_the_definition() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let text = completions(shell).unwrap();
        assert!(text.contains("wait-usable"), "{shell}");
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("man1");
    man(&out).unwrap();
    let page = std::fs::read_to_string(out.join("lmb-mem-add.1")).unwrap();
    assert!(page.contains("Examples") && page.contains(".TH"), "{page}");
    assert!(out.join("lmb.1").exists());
}
