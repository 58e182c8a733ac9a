//! A table for people, drawn for a terminal, as Markdown or as HTML.
//!
//! Cells are text that is ready to read; text of guests and files is made
//! [`printable`] when it is drawn and escaped as the form needs.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, presets};

use crate::output::printable;

/// A table with what must be read beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Heading.
    pub title: String,
    /// Names of the columns, and whether their cells are figures.
    pub columns: Vec<Column>,
    /// As many cells in each row as there are columns.
    pub rows: Vec<Vec<String>>,
    /// Lines below it.
    pub notes: Vec<String>,
}

/// A column's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name, with its unit if all cells share one.
    pub name: String,
    /// Figures stand at the right.
    pub figures: bool,
}

impl Table {
    /// An empty table. Names that start with `>` head columns of figures.
    #[must_use]
    pub fn new(title: &str, columns: &[&str]) -> Self {
        let mut table = Self {
            title: title.to_owned(),
            ..Self::default()
        };
        for name in columns {
            table.column(name);
        }
        table
    }

    /// One more column; a leading `>` makes it one of figures.
    pub fn column(&mut self, name: &str) {
        let (name, figures) = match name.strip_prefix('>') {
            Some(name) => (name, true),
            None => (name, false),
        };
        self.columns.push(Column {
            name: name.to_owned(),
            figures,
        });
    }

    /// Takes out columns that say the same in every row, and says it once in a
    /// note. Those in `keep` stay; so does everything in a table of one row.
    pub fn fold(&mut self, keep: &[&str]) {
        let Some((first, rest)) = self.rows.split_first().filter(|(_, rest)| !rest.is_empty())
        else {
            return;
        };
        let same: Vec<bool> = (0..self.columns.len())
            .map(|index| {
                let name = self.columns.get(index).map_or("", |c| c.name.as_str());
                !keep.contains(&name) && rest.iter().all(|row| row.get(index) == first.get(index))
            })
            .collect();
        let folded: Vec<String> = self
            .columns
            .iter()
            .zip(first)
            .zip(&same)
            .filter(|((_, cell), same)| **same && *cell != "-")
            .map(|((column, cell), _)| format!("{} {cell}", column.name))
            .collect();
        let kept = |index: usize| !same.get(index).copied().unwrap_or(false);
        let mut index = 0..;
        self.columns.retain(|_| index.next().is_some_and(kept));
        for row in &mut self.rows {
            let mut index = 0..;
            row.retain(|_| index.next().is_some_and(kept));
        }
        if !folded.is_empty() {
            let note = format!("In every row: {}.", folded.join(", "));
            self.notes.insert(0, note);
        }
    }

    /// Moves a unit that all figures of a column share into its head, where
    /// it labels them as well and takes less room.
    pub fn hoist_units(&mut self) {
        const UNITS: [&str; 5] = [" M instr", " emulated s", " emulated ms", " s", " ms"];
        for (index, column) in self.columns.iter_mut().enumerate() {
            let cells = || self.rows.iter().filter_map(|row| row.get(index));
            let figures = || cells().filter(|cell| *cell != "-");
            let shared = UNITS.into_iter().find(|unit| {
                figures().next().is_some() && figures().all(|cell| cell.ends_with(unit))
            });
            let Some(unit) = shared.filter(|_| column.figures) else {
                continue;
            };
            column.name = format!("{} [{}]", column.name, unit.trim_start());
            for cell in self.rows.iter_mut().filter_map(|row| row.get_mut(index)) {
                if let Some(figure) = cell.strip_suffix(unit) {
                    *cell = figure.to_owned();
                }
            }
        }
    }

    /// For a terminal.
    #[must_use]
    pub fn terminal(&self) -> String {
        let mut text = format!("{}\n\n", printable(&self.title));
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::NOTHING);
        let heads = self.columns.iter().map(|column| printable(&column.name));
        table.set_header(heads.map(|name| name.replace(" [", "\n[")));
        for (index, column) in self.columns.iter().enumerate() {
            if let Some(drawn) = table.column_mut(index).filter(|_| column.figures) {
                drawn.set_cell_alignment(CellAlignment::Right);
            }
        }
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| printable(cell)));
        }
        for line in table.lines() {
            text.push_str(line.strip_prefix(' ').unwrap_or(&line).trim_end());
            text.push('\n');
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(text, "{}", printable(note));
        }
        text
    }

    /// As Markdown, with a heading of the second level.
    #[must_use]
    pub fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut text = format!("## {}\n\n", markdown_text(&self.title));
        let names = self.columns.iter().map(|c| markdown_text(&c.name));
        text.push_str(&line(names.collect()));
        let rules = self.columns.iter().map(|c| {
            let rule = if c.figures { "---:" } else { "---" };
            rule.to_owned()
        });
        text.push_str(&line(rules.collect()));
        for row in &self.rows {
            text.push_str(&line(row.iter().map(|cell| markdown_text(cell)).collect()));
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(text, "- {}", markdown_text(note));
        }
        text
    }

    /// As an HTML section.
    #[must_use]
    pub fn html(&self) -> String {
        let mut text = format!("<h3>{}</h3>\n", escape(&self.title));
        text.push_str("<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>");
        for column in &self.columns {
            let _ = write!(
                text,
                "<th scope=\"col\"{}>{}</th>",
                class(column.figures),
                escape(&column.name).replace(" [", "<br>[")
            );
        }
        text.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            text.push_str("<tr>");
            for (cell, column) in row.iter().zip(&self.columns) {
                let _ = write!(text, "<td{}>{}</td>", class(column.figures), escape(cell));
            }
            text.push_str("</tr>\n");
        }
        text.push_str("</tbody></table></div>\n");
        if !self.notes.is_empty() {
            text.push_str("<ul class=\"notes\">\n");
            for note in &self.notes {
                let _ = writeln!(text, "<li>{}</li>", escape(note));
            }
            text.push_str("</ul>\n");
        }
        text
    }
}

fn class(figures: bool) -> &'static str {
    if figures { " class=\"figure\"" } else { "" }
}

/// Text for HTML, in an element or in a quoted attribute.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Text that stays one cell and plain in Markdown.
fn markdown_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        if matches!(c, '|' | '\\' | '`' | '*' | '_' | '<' | '[' | ']') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Table {
        let mut table = Table::new("Boot", &["kernel", ">LMBs", ">time"]);
        table
            .rows
            .push(vec!["6.1_x".into(), "8".into(), "1.5 s".into()]);
        table
            .rows
            .push(vec!["6.12".into(), "1,024".into(), "12.5 s".into()]);
        table.notes.push("Note a|b".to_owned());
        table
    }

    #[test]
    fn figures_stand_at_the_right_in_a_terminal() {
        assert_eq!(
            sample().terminal(),
            "\
Boot

kernel   LMBs    time
6.1_x       8   1.5 s
6.12    1,024  12.5 s

Note a|b
"
        );
    }

    #[test]
    fn markdown_keeps_cells_apart() {
        assert_eq!(
            sample().markdown(),
            "\
## Boot

| kernel | LMBs | time |
| --- | ---: | ---: |
| 6.1\\_x | 8 | 1.5 s |
| 6.12 | 1,024 | 12.5 s |

- Note a\\|b
"
        );
    }

    #[test]
    fn what_is_the_same_in_every_row_is_said_once() {
        let mut table = Table::new("t", &["vmm", "none", ">LMB", ">time"]);
        for time in ["1", "2"] {
            table
                .rows
                .push(["a", "-", "8", time].map(str::to_owned).to_vec());
        }
        let mut one_row = table.clone();
        table.fold(&["LMB"]);
        assert_eq!(table.rows, [["8", "1"], ["8", "2"]]);
        assert_eq!(table.columns.len(), 2);
        assert_eq!(table.notes, ["In every row: vmm a."]);
        one_row.rows.truncate(1);
        one_row.fold(&[]);
        assert_eq!(one_row.columns.len(), 4);
    }

    #[test]
    fn a_shared_unit_stands_in_the_head() {
        let mut table = Table::new("t", &[">a", ">b", ">c", "d"]);
        for cells in [
            ["1.5 M instr", "1 s", "-", "1 s"],
            ["-", "2 ms", "-", "2 s"],
        ] {
            table.rows.push(cells.map(str::to_owned).to_vec());
        }
        table.hoist_units();
        let names: Vec<&str> = table.columns.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["a [M instr]", "b", "c", "d"]);
        assert_eq!(
            table.rows,
            [["1.5", "1 s", "-", "1 s"], ["-", "2 ms", "-", "2 s"]]
        );
    }

    proptest! {
        #[test]
        fn no_cell_breaks_out_of_its_form(cell in ".*") {
            let mut table = Table::new("t", &["a", "b"]);
            table.rows.push(vec![cell.clone(), String::new()]);
            let html = table.html();
            prop_assert_eq!(html.matches("<td").count(), 2);
            prop_assert_eq!(html.matches("</td>").count(), 2);
            let row = table.markdown().lines().nth(4).map(str::to_owned);
            let row = row.unwrap_or_default();
            // Two cells have three unescaped bars.
            let bars = row.replace("\\\\", "").replace("\\|", "").matches('|').count();
            prop_assert_eq!(bars, 3, "{}", row);
            prop_assert_eq!(table.terminal().lines().count(), 4);
        }
    }
}
