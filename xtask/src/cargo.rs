//! Running cargo on this workspace.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The workspace's directory.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// A cargo command in the workspace.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    // What `cargo run` set for xtask is none of the other packages' business.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs a command with its output shown: whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> Result<bool> {
    let name = command.get_program().to_owned();
    let status = command
        .status()
        .with_context(|| format!("cannot run {}", name.display()))?;
    Ok(status.success())
}

/// Runs a command; each line it writes, to either output, goes to `line` and
/// is shown. Whether it succeeded.
pub(crate) fn watched(command: &mut Command, line: impl FnMut(&str) + Send) -> Result<bool> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run cargo")?;
    let line = Mutex::new(line);
    let forward = |pipe: Option<Box<dyn Read + Send>>| {
        let Some(pipe) = pipe else { return };
        for text in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            let text = String::from_utf8_lossy(&text).into_owned();
            // Shown under the lock, so that lines stay whole.
            if let Ok(mut line) = line.lock() {
                println!("{text}");
                line(&text);
            }
        }
    };
    let stdout = child.stdout.take().map(|p| Box::new(p) as Box<_>);
    let stderr = child.stderr.take().map(|p| Box::new(p) as Box<_>);
    thread::scope(|scope| {
        scope.spawn(|| forward(stdout));
        scope.spawn(|| forward(stderr));
    });
    Ok(child.wait().context("cannot wait for cargo")?.success())
}

/// Builds, and returns the programs that cargo names, by target name.
pub(crate) fn build(arguments: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    programs(&mut cargo(arguments))
}

/// Runs a cargo command that builds, and returns the programs that it names, by
/// target name.
pub(crate) fn programs(command: &mut Command) -> Result<Vec<(String, PathBuf)>> {
    let output = command
        .args(["--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        let arguments: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
        bail!("cargo {} failed", arguments.join(" "));
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| {
            let message: Value = serde_json::from_str(line).ok()?;
            let executable = message["executable"].as_str()?;
            let name = message["target"]["name"].as_str()?;
            Some((name.to_owned(), PathBuf::from(executable)))
        })
        .collect())
}
