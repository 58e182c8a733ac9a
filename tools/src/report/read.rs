//! Reading results files: one JSON sample a line.
//!
//! A sweep that was interrupted leaves a last line cut short; it is passed over
//! and told. Samples of another schema are passed over, counted and told.
//! Other lines that are no sample are counted too, with the number of the first
//! and what was wrong with it, so that nothing is left out silently.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::{Deserialize, Serialize};

use crate::bench::sample::{SCHEMA, Sample};

/// One file's samples and what was passed over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    /// Its name.
    pub name: String,
    /// Its samples, in the order of the file.
    pub samples: Vec<Sample>,
    /// Lines that are no sample of this schema.
    pub passed_over: PassedOver,
}

/// Lines that were left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PassedOver {
    /// The last line was cut short.
    pub truncated: bool,
    /// Samples of other schemas, by their number.
    pub other_schemas: BTreeMap<u64, u64>,
    /// Lines that are no sample at all.
    pub unreadable: u64,
    /// Number of the first of them, from 1, and why.
    pub first_unreadable: Option<(u64, String)>,
}

#[derive(Deserialize)]
struct SchemaOnly {
    schema: u64,
}

/// Reads samples.
///
/// # Errors
/// Those of `reader`. What its lines hold is never an error.
pub fn read(name: &str, mut reader: impl BufRead) -> std::io::Result<Source> {
    let mut source = Source {
        name: name.to_owned(),
        ..Source::default()
    };
    let mut line = Vec::new();
    let mut number = 0u64;
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            return Ok(source);
        }
        number = number.saturating_add(1);
        let whole = line.last() == Some(&b'\n');
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match parse(&line) {
            Ok(Line::Sample(sample)) => source.samples.push(*sample),
            Ok(Line::OtherSchema(schema)) => {
                let count = source.passed_over.other_schemas.entry(schema).or_default();
                *count = count.saturating_add(1);
            }
            Err(_) if !whole => source.passed_over.truncated = true,
            Err(error) => source.passed_over.unreadable(number, &error),
        }
    }
}

enum Line {
    Sample(Box<Sample>),
    OtherSchema(u64),
}

fn parse(line: &[u8]) -> serde_json::Result<Line> {
    let schema = serde_json::from_slice::<SchemaOnly>(line)?.schema;
    if schema == u64::from(SCHEMA) {
        serde_json::from_slice(line).map(Line::Sample)
    } else {
        Ok(Line::OtherSchema(schema))
    }
}

impl PassedOver {
    fn unreadable(&mut self, number: u64, error: &serde_json::Error) {
        self.unreadable = self.unreadable.saturating_add(1);
        if self.first_unreadable.is_none() {
            self.first_unreadable = Some((number, error.to_string()));
        }
    }

    /// A sentence for each kind of line that was left out.
    #[must_use]
    pub fn sentences(&self, name: &str) -> Vec<String> {
        let mut all = Vec::new();
        if self.truncated {
            all.push(format!(
                "{name}: the last line is cut short and is passed over (the sweep was interrupted)"
            ));
        }
        for (schema, count) in &self.other_schemas {
            all.push(format!(
                "{name}: {count} of schema {schema} passed over; this lmb reads schema {SCHEMA}"
            ));
        }
        if let Some((line, why)) = &self.first_unreadable {
            all.push(format!(
                "{name}: {} that are no samples passed over; the first is line {line}: {why}",
                crate::report::plural(self.unreadable, "line")
            ));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing;
    use proptest::prelude::*;

    fn line() -> String {
        serde_json::to_string(&testing::Boot::default().sample(0)).unwrap()
    }

    #[test]
    fn a_last_line_cut_short_is_told() {
        let text = format!("{}\n\n{}\n{}", line(), line(), &line()[..100]);
        let source = read("r.jsonl", text.as_bytes()).unwrap();
        assert_eq!(source.samples.len(), 2);
        assert_eq!(
            source.passed_over.sentences("r.jsonl"),
            ["r.jsonl: the last line is cut short and is passed over (the sweep was interrupted)"]
        );
    }

    #[test]
    fn a_whole_last_line_needs_no_newline() {
        let source = read("r", line().as_bytes()).unwrap();
        assert_eq!(source.samples.len(), 1);
        assert_eq!(source.passed_over, PassedOver::default());
    }

    #[test]
    fn other_schemas_are_counted_by_number() {
        let text = "{\"schema\":2,\"new\":1}\n{\"schema\":9}\n{\"schema\":2}\n";
        let source = read("r", text.as_bytes()).unwrap();
        assert!(source.samples.is_empty());
        assert_eq!(
            source.passed_over.sentences("r"),
            [
                "r: 2 of schema 2 passed over; this lmb reads schema 1",
                "r: 1 of schema 9 passed over; this lmb reads schema 1"
            ]
        );
    }

    #[test]
    fn a_broken_line_in_the_middle_is_told_with_its_number() {
        let text = format!("{}\n{{\"schema\":1}}\nnonsense\n{}\n", line(), line());
        let source = read("r", text.as_bytes()).unwrap();
        assert_eq!(source.samples.len(), 2);
        assert_eq!(source.passed_over.unreadable, 2);
        let told = source.passed_over.sentences("r");
        assert!(
            told[0].starts_with(
                "r: 2 lines that are no samples passed over; the first is line 2: missing field"
            ),
            "{told:?}"
        );
    }

    proptest! {
        #[test]
        fn any_cut_of_a_file_keeps_every_whole_line(cut in 0usize..6000) {
            let text = format!("{0}\n{0}\n{0}\n", line());
            let cut = cut.min(text.len());
            let source = read("r", &text.as_bytes()[..cut]).unwrap();
            let whole = text[..cut].matches('\n').count();
            // The last byte of a sample's line may be all but its newline.
            let extra = usize::from(cut > 0 && (cut + 1).is_multiple_of(line().len() + 1));
            prop_assert_eq!(source.samples.len(), whole + extra);
            prop_assert_eq!(source.passed_over.unreadable, 0);
        }

        #[test]
        fn no_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(read("r", bytes.as_slice()).is_ok());
        }
    }
}
