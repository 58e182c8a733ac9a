//! The results file: one sample a line, appended and forced to the disk as it
//! comes, so that an interrupted sweep keeps what it has.
//!
//! The samples of one job are one write; a line cut short by a crash is taken
//! away when the file is opened again.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::sample::{Config, Guest, SCHEMA, Sample};
use super::work::{Job, Kind};

/// What is wrong with a results file.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be read or written.
    #[error("cannot {what} the results file {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A line that is no sample.
    #[error(
        "line {line} of {path} is no sample ({reason}); give another --out, or take the line out"
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Why.
        reason: String,
    },
    /// Nothing to go on with.
    #[error("{0} has no samples to continue; run the sweep without --continue")]
    Nothing(PathBuf),
    /// Samples that a new sweep would be mixed with.
    #[error(
        "{0} has samples already: --continue goes on with its sweep, --append puts a new one \
         behind them"
    )]
    Occupied(PathBuf),
}

/// The part of a sweep that a file has already.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// The sweep's id.
    pub sweep: Option<String>,
    jobs: HashSet<(Config, Kind, u32, bool)>,
    /// What guests of a configuration said, as far as they were asked.
    pub facts: Vec<(Config, Guest)>,
}

impl Done {
    /// Whether this job's samples are there.
    #[must_use]
    pub fn has(&self, job: &Job) -> bool {
        let key = (job.config.clone(), job.kind(), job.round, job.warm_up);
        self.jobs.contains(&key)
    }

    /// The last sweep in `samples`.
    #[must_use]
    pub fn of_last_sweep(samples: &[Sample]) -> Self {
        let Some(last) = samples.last() else {
            return Self::default();
        };
        let mut done = Self {
            sweep: Some(last.sweep.clone()),
            ..Self::default()
        };
        let mut known = HashSet::new();
        for sample in samples.iter().filter(|sample| sample.sweep == last.sweep) {
            done.jobs.insert((
                sample.config.clone(),
                Kind::of(sample),
                sample.round,
                sample.warm_up,
            ));
            if sample.guest.block_size_bytes.is_some() && known.insert(sample.config.clone()) {
                done.facts
                    .push((sample.config.clone(), sample.guest.clone()));
            }
        }
        done
    }
}

/// Reads the samples of a file; none where there is no file. Lines of another
/// schema are passed over, a last line without its end too.
///
/// # Errors
/// [`StoreError`].
pub fn read(path: &Path) -> Result<Vec<Sample>, StoreError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed("read", path, source)),
    };
    let mut samples = Vec::new();
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let Some(line) = line.strip_suffix('\n') else {
            break;
        };
        if line.trim().is_empty() {
            continue;
        }
        let bad = |reason: String| StoreError::Line {
            path: path.to_owned(),
            line: number.saturating_add(1),
            reason,
        };
        let value: serde_json::Value =
            serde_json::from_str(line).map_err(|error| bad(error.to_string()))?;
        if value.get("schema").and_then(serde_json::Value::as_u64) == Some(u64::from(SCHEMA)) {
            samples.push(serde_json::from_value(value).map_err(|error| bad(error.to_string()))?);
        }
    }
    Ok(samples)
}

/// A results file open for adding.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    file: File,
}

impl Store {
    /// Opens `path` for adding, and makes it if it is not there. A last line
    /// that was cut short is taken away.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        if let Some(directory) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            fs::create_dir_all(directory).map_err(|e| failed("make a directory for", path, e))?;
        }
        let whole = match fs::read(path) {
            Ok(bytes) => Some(whole_lines(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(failed("read", path, source)),
        };
        let file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|source| failed("open", path, source))?;
        if let Some(length) = whole {
            file.set_len(length)
                .map_err(|source| failed("mend", path, source))?;
        }
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Adds a job's samples and waits until the disk has them.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn add(&mut self, samples: &[Sample]) -> Result<(), StoreError> {
        let mut text = Vec::new();
        let mut put = || -> io::Result<()> {
            for sample in samples {
                serde_json::to_writer(&mut text, sample)?;
                text.push(b'\n');
            }
            self.file.write_all(&text)?;
            self.file.sync_data()
        };
        put().map_err(|source| failed("write", &self.path, source))
    }
}

/// Length of `bytes` up to the end of its last whole line.
fn whole_lines(bytes: &[u8]) -> u64 {
    let end = bytes.iter().rposition(|byte| *byte == b'\n');
    let length = end.map_or(0, |at| at.saturating_add(1));
    u64::try_from(length).unwrap_or(u64::MAX)
}

fn failed(what: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
