//! Plots side by side in a file of their own, for documents that show
//! pictures. Colours follow the reader's light or dark scheme, as the page's do.

use std::fmt::Write as _;

use super::Lines;
use crate::report::table::escape;

const STYLE: &str = include_str!("../picture.css");
const GAP: f64 = 12.0;
const NOTE_ROW: f64 = 26.0;

/// The picture, with a note below its plots.
#[must_use]
pub fn picture(title: &str, note: &str, plots: &[Lines]) -> String {
    let tallest = plots.iter().map(Lines::panel_height).fold(0.0, f64::max);
    let mut left = 0.0;
    let mut panels = String::new();
    for plot in plots {
        plot.panel(&mut panels, (left, 0.0));
        left += plot.width + GAP;
    }
    let (width, height) = ((left - GAP).max(GAP), tallest + NOTE_ROW);
    let words: Vec<String> = plots
        .iter()
        .map(|plot| format!("{}: {}", plot.title, plot.describe()))
        .collect();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" role=\"img\" \
         viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         aria-labelledby=\"title\" aria-describedby=\"desc\">\n\
         <title id=\"title\">{}</title>\n<desc id=\"desc\">{}</desc>\n\
         <style>\n{STYLE}</style>\n\
         <rect class=\"page\" width=\"{width}\" height=\"{height}\"/>\n",
        escape(title),
        escape(&words.join(" "))
    );
    text.push_str(&panels);
    let _ = writeln!(
        text,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n</svg>",
        width / 2.0,
        height - 9.0,
        escape(note)
    );
    text
}
