//! Bars of parts that add up.

use std::fmt::Write as _;

use super::axis::{Scale, ticks};
use super::{BOTTOM, STYLES, TOP, WIDTH, open};
use crate::report::stats::real;
use crate::report::table::escape;

/// Bars with long names take the page's whole width.
const WIDE: f64 = 1280.0;
const NARROW_NAMES: f64 = 200.0;

/// A bar of parts that add up.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// At its left.
    pub name: String,
    /// Values of the parts, in the plot's order.
    pub parts: Vec<f64>,
    /// Each in words, and the whole.
    pub words: Vec<String>,
    /// The whole in words, at its right.
    pub whole: String,
}

/// A plot of bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// Caption.
    pub title: String,
    /// A unique word for ids.
    pub id: String,
    /// What is measured, with its unit.
    pub x_name: String,
    /// Names of the parts.
    pub parts: Vec<String>,
    /// Bars from the top.
    pub bars: Vec<Bar>,
}

impl Bars {
    /// The figure: caption, plot, legend.
    #[must_use]
    pub fn figure(&self) -> String {
        const ROW: f64 = 24.0;
        if self.bars.is_empty() {
            return String::new();
        }
        let longest = self.bars.iter().map(|bar| bar.name.chars().count()).max();
        let left = real(u64::try_from(longest.unwrap_or(0)).unwrap_or(0)).mul_add(6.6, 14.0);
        let left = left.clamp(60.0, 740.0);
        let wide = left > NARROW_NAMES;
        let width = if wide { WIDE } else { WIDTH };
        let rows = real(u64::try_from(self.bars.len()).unwrap_or(0));
        let height = TOP + rows * ROW + BOTTOM;
        let most = self.bars.iter().map(|bar| bar.parts.iter().sum::<f64>());
        let scale = Scale {
            log: false,
            from: 0.0,
            to: most.fold(1e-9, f64::max),
            start: left,
            end: width - 112.0,
        };
        let words: Vec<String> = self
            .bars
            .iter()
            .map(|bar| format!("{}: {}", bar.name, bar.words.join(", ")))
            .collect();
        let mut text = open(&self.title, &self.id, &words.join(". "), (width, height));
        let base = TOP + rows * ROW;
        for (value, name) in ticks(&scale) {
            let at = scale.at(value);
            let _ = writeln!(
                text,
                "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{base:.1}\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>",
                base + 18.0
            );
        }
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (scale.start + scale.end) / 2.0,
            height - 10.0,
            escape(&self.x_name)
        );
        let mut top = TOP;
        for bar in &self.bars {
            draw_bar(&mut text, bar, &scale, top, ROW);
            top += ROW;
        }
        text.push_str("</svg>\n");
        let names: Vec<&str> = self.parts.iter().map(String::as_str).collect();
        bar_legend(&mut text, &names);
        text.push_str("</figure>\n");
        text
    }
}

fn draw_bar(text: &mut String, bar: &Bar, scale: &Scale, top: f64, row: f64) {
    let middle = top + row / 2.0 + 4.0;
    let _ = writeln!(
        text,
        "<text class=\"value\" x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
        scale.start - 8.0,
        escape(&bar.name)
    );
    let mut from = 0.0;
    for (index, (part, words)) in bar.parts.iter().zip(&bar.words).enumerate() {
        let (start, end) = (scale.at(from), scale.at(from + part));
        from += part;
        let _ = writeln!(
            text,
            "<g class=\"s{}\"><rect class=\"bar\" x=\"{start:.1}\" y=\"{:.1}\" width=\"{:.1}\" \
             height=\"{:.1}\"><title>{}</title></rect></g>",
            index % STYLES,
            top + 3.0,
            (end - start).max(0.0),
            row - 6.0,
            escape(words)
        );
    }
    let _ = writeln!(
        text,
        "<text class=\"value\" x=\"{:.1}\" y=\"{middle:.1}\">{}</text>",
        scale.at(from) + 6.0,
        escape(&bar.whole)
    );
}

fn bar_legend(text: &mut String, names: &[&str]) {
    text.push_str("<ul class=\"legend\">\n");
    for (index, name) in names.iter().enumerate() {
        let _ = writeln!(
            text,
            "<li><svg viewBox=\"0 0 26 12\" aria-hidden=\"true\" class=\"s{}\">\
             <rect class=\"mark\" width=\"26\" height=\"12\" rx=\"2\"/></svg>{}</li>",
            index % STYLES,
            escape(name)
        );
    }
    text.push_str("</ul>\n");
}
