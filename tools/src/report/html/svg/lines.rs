//! Lines and points.

use std::fmt::Write as _;

use super::axis::{Scale, ticks};
use super::{BOTTOM, HEIGHT, LEFT, RIGHT, STYLES, TOP, open};
use crate::report::stats::real;
use crate::report::table::escape;

/// Values that span more than this are drawn on a logarithmic axis.
const LOG_FROM: f64 = 20.0;

/// Room for a panel's title and for a row of its legend.
const PANEL_TITLE: f64 = 28.0;
const LEGEND_ROW: f64 = 18.0;

/// A point of a series.
#[derive(Clone, Debug, PartialEq)]
pub struct Spot {
    /// Where.
    pub x: f64,
    /// How much.
    pub y: f64,
    /// Smallest and largest of its repeats, if it has some.
    pub range: Option<(f64, f64)>,
    /// What it is, in words.
    pub words: String,
}

/// A line of points.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// Ascending by `x`.
    pub spots: Vec<Spot>,
}

/// How an axis of x is divided.
#[derive(Clone, Debug, PartialEq)]
pub enum XAxis {
    /// By doublings, with these ticks.
    Doublings(Vec<(f64, String)>),
    /// Evenly.
    Even,
}

/// A plot of series.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// Caption.
    pub title: String,
    /// A unique word for ids.
    pub id: String,
    /// How wide it is drawn.
    pub width: f64,
    /// Name of the x axis.
    pub x_name: String,
    /// Name of the y axis, with its unit.
    pub y_name: String,
    /// Its division.
    pub x_axis: XAxis,
    /// Whether points are joined.
    pub joined: bool,
    /// A line to compare points with.
    pub guide: Guide,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// A line that is no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guide {
    /// None.
    None,
    /// y = x.
    Diagonal,
    /// y = 0, with the y axis reaching as far below as above.
    Zero,
}

impl Lines {
    /// The figure: caption, plot, legend.
    #[must_use]
    pub fn figure(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        let mut text = open(
            &self.title,
            &self.id,
            &self.describe(),
            (self.width, HEIGHT),
        );
        self.drawing(&mut text);
        text.push_str("</svg>\n");
        let names: Vec<&str> = self.series.iter().map(|s| s.name.as_str()).collect();
        if names.iter().any(|name| !name.is_empty()) {
            legend(&mut text, &names, self.joined);
        }
        text.push_str("</figure>\n");
        text
    }

    fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.spots.is_empty())
    }

    /// Axes, lines and points.
    fn drawing(&self, text: &mut String) {
        let x = self.x_scale();
        let y = self.y_scale();
        self.y_axis(text, &y);
        self.x_axis(text, &x);
        self.guide(text, &x, &y);
        for (index, series) in self.series.iter().enumerate() {
            self.draw(text, index, series, (&x, &y));
        }
    }

    /// Height of [`Lines::panel`]'s part.
    pub(super) fn panel_height(&self) -> f64 {
        let names = real(u64::try_from(self.series.len()).unwrap_or(0));
        PANEL_TITLE + HEIGHT + names * LEGEND_ROW + LEGEND_ROW / 2.0
    }

    /// Title, plot and legend as a part of a picture that stands alone, with
    /// its corner at `(left, top)`.
    pub(super) fn panel(&self, text: &mut String, (left, top): (f64, f64)) {
        let _ = writeln!(
            text,
            "<g transform=\"translate({left} {top})\">\n\
             <text class=\"title\" x=\"{LEFT}\" y=\"20\">{}</text>\n\
             <g transform=\"translate(0 {PANEL_TITLE})\">",
            escape(&self.title)
        );
        if !self.is_empty() {
            self.drawing(text);
        }
        text.push_str("</g>\n");
        let mut at = PANEL_TITLE + HEIGHT + LEGEND_ROW / 2.0;
        for (index, series) in self.series.iter().enumerate() {
            let _ = writeln!(
                text,
                "<g class=\"s{}\"><line class=\"line\"{} x1=\"{LEFT}\" x2=\"{}\" y1=\"{at}\" \
                 y2=\"{at}\"/><path class=\"mark\" d=\"{}\"/></g>\n\
                 <text class=\"value\" x=\"{}\" y=\"{}\">{}</text>",
                index % STYLES,
                dashes(index),
                LEFT + 26.0,
                mark(index, LEFT + 13.0, at),
                LEFT + 34.0,
                at + 4.0,
                escape(&series.name)
            );
            at += LEGEND_ROW;
        }
        text.push_str("</g>\n");
    }

    fn values(&self, f: impl Fn(&Spot) -> f64) -> (f64, f64) {
        let all = self.series.iter().flat_map(|series| &series.spots).map(f);
        all.fold((f64::MAX, f64::MIN), |(low, high), v| {
            (low.min(v), high.max(v))
        })
    }

    fn x_scale(&self) -> Scale {
        let (low, high) = self.values(|spot| spot.x);
        let (log, from, to) = match self.x_axis {
            XAxis::Doublings(_) => (true, low / 1.25, high * 1.25),
            XAxis::Even => {
                let room = ((high - low) * 0.06).max(high.abs() * 0.01).max(1e-9);
                (false, low - room, high + room)
            }
        };
        Scale {
            log,
            from,
            to,
            start: LEFT,
            end: self.width - RIGHT,
        }
    }

    fn y_scale(&self) -> Scale {
        let (_, high) = self.values(|spot| spot.range.map_or(spot.y, |range| range.1.max(spot.y)));
        let (low, _) = self.values(|spot| spot.range.map_or(spot.y, |range| range.0.min(spot.y)));
        let (start, end) = (HEIGHT - BOTTOM, TOP);
        let (log, from, to) = match self.guide {
            Guide::Zero => {
                let most = high.abs().max(low.abs()).max(1e-3) * 1.15;
                (false, -most, most)
            }
            Guide::Diagonal => {
                let x = self.x_scale();
                let room = ((high - low) * 0.06).max(high.abs() * 0.01).max(1e-9);
                (false, (low - room).min(x.from), (high + room).max(x.to))
            }
            Guide::None if low > 0.0 && high / low > LOG_FROM => (true, low / 1.3, high * 1.3),
            Guide::None => (false, 0.0, (high * 1.08).max(1e-9)),
        };
        Scale {
            log,
            from,
            to,
            start,
            end,
        }
    }

    fn y_axis(&self, text: &mut String, y: &Scale) {
        for (value, name) in ticks(y) {
            let at = y.at(value);
            let _ = writeln!(
                text,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
                self.width - RIGHT,
                LEFT - 8.0,
                at + 4.0
            );
        }
        let log = if y.log { ", log scale" } else { "" };
        let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
        let _ = writeln!(
            text,
            "<text transform=\"translate(14 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}{log}</text>",
            escape(&self.y_name)
        );
    }

    fn x_axis(&self, text: &mut String, x: &Scale) {
        let base = HEIGHT - BOTTOM;
        let _ = writeln!(
            text,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{base}\" y2=\"{base}\"/>",
            self.width - RIGHT
        );
        let all = match &self.x_axis {
            XAxis::Doublings(ticks) => ticks.clone(),
            XAxis::Even => ticks(x),
        };
        let mut free_from = 0.0;
        for (value, name) in all {
            let at = x.at(value);
            // A letter is about 7 wide: a name that would touch the last is left out.
            let half = real(u64::try_from(name.len()).unwrap_or(0)) * 3.5;
            let _ = writeln!(
                text,
                "<line class=\"axis\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{base}\" y2=\"{}\"/>",
                base + 5.0
            );
            if at - half < free_from {
                continue;
            }
            free_from = at + half + 6.0;
            let _ = writeln!(
                text,
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                base + 19.0,
                escape(&name)
            );
        }
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            (LEFT + self.width - RIGHT) / 2.0,
            HEIGHT - 10.0,
            escape(&self.x_name)
        );
    }

    fn guide(&self, text: &mut String, x: &Scale, y: &Scale) {
        let (from, to) = match self.guide {
            Guide::None => return,
            Guide::Zero => ((x.from, 0.0), (x.to, 0.0)),
            Guide::Diagonal => {
                let (low, high) = (x.from.max(y.from), x.to.min(y.to));
                ((low, low), (high, high))
            }
        };
        let _ = writeln!(
            text,
            "<line class=\"guide\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            x.at(from.0),
            y.at(from.1),
            x.at(to.0),
            y.at(to.1)
        );
    }

    fn draw(&self, text: &mut String, index: usize, series: &Series, (x, y): (&Scale, &Scale)) {
        let _ = writeln!(text, "<g class=\"s{}\">", index % STYLES);
        if self.joined && series.spots.len() > 1 {
            let path: Vec<String> = series
                .spots
                .iter()
                .map(|spot| format!("{:.1},{:.1}", x.at(spot.x), y.at(spot.y)))
                .collect();
            let _ = writeln!(
                text,
                "<polyline class=\"line\"{} points=\"{}\"/>",
                dashes(index),
                path.join(" ")
            );
        }
        for spot in &series.spots {
            let (at_x, at_y) = (x.at(spot.x), y.at(spot.y));
            if let Some((low, high)) = spot.range {
                let _ = writeln!(
                    text,
                    "<line class=\"range\" x1=\"{at_x:.1}\" x2=\"{at_x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
                    y.at(low),
                    y.at(high)
                );
            }
            let _ = writeln!(
                text,
                "<path class=\"mark\" d=\"{}\"><title>{}</title></path>",
                mark(index, at_x, at_y),
                escape(&spot.words)
            );
        }
        text.push_str("</g>\n");
    }

    /// Every point in words, for those who do not see the plot.
    pub(super) fn describe(&self) -> String {
        let all: Vec<String> = self
            .series
            .iter()
            .map(|series| {
                let spots: Vec<&str> = series.spots.iter().map(|s| s.words.as_str()).collect();
                format!("{}: {}", series.name, spots.join("; "))
            })
            .collect();
        format!(
            "{} against {}. {}",
            self.y_name,
            self.x_name,
            all.join(". ")
        )
    }
}

fn legend(text: &mut String, names: &[&str], joined: bool) {
    text.push_str("<ul class=\"legend\">\n");
    for (index, name) in names.iter().enumerate() {
        let line = if joined {
            format!(
                "<line class=\"line\"{} x1=\"0\" x2=\"26\" y1=\"6\" y2=\"6\"/>",
                dashes(index)
            )
        } else {
            String::new()
        };
        let _ = writeln!(
            text,
            "<li><svg viewBox=\"0 0 26 12\" aria-hidden=\"true\" class=\"s{}\">{line}\
             <path class=\"mark\" d=\"{}\"/></svg>{}</li>",
            index % STYLES,
            mark(index, 13.0, 6.0),
            escape(name)
        );
    }
    text.push_str("</ul>\n");
}

fn dashes(index: usize) -> &'static str {
    match index % 4 {
        0 => "",
        1 => " stroke-dasharray=\"7 4\"",
        2 => " stroke-dasharray=\"2 4\"",
        _ => " stroke-dasharray=\"10 3 2 3\"",
    }
}

fn mark(index: usize, x: f64, y: f64) -> String {
    match index % 4 {
        0 => format!(
            "M{:.1} {y:.1}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
            x - 4.5
        ),
        1 => format!("M{:.1} {:.1}h8v8h-8z", x - 4.0, y - 4.0),
        2 => format!("M{x:.1} {:.1}l5.5 5.5l-5.5 5.5l-5.5 -5.5z", y - 5.5),
        _ => format!("M{x:.1} {:.1}l5.2 9h-10.4z", y - 5.5),
    }
}

#[cfg(test)]
mod tests {
    use super::super::WIDTH;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_coordinate_is_a_number_inside_the_plot(
            values in prop::collection::vec((1e-3f64..1e9, 1e-6f64..1e9), 1..20),
            even in any::<bool>(),
            guide in prop::sample::select(vec![Guide::None, Guide::Diagonal, Guide::Zero]),
        ) {
            let spots = values.iter().map(|(x, y)| Spot {
                x: *x, y: *y, range: Some((*y, *y)), words: String::new(),
            });
            let lines = Lines {
                title: "t".into(), id: "i".into(), width: WIDTH, x_name: "x".into(), y_name: "y".into(),
                x_axis: if even { XAxis::Even } else { XAxis::Doublings(Vec::new()) },
                joined: true, guide,
                series: vec![Series { name: "s".into(), spots: spots.collect() }],
            };
            let text = lines.figure();
            prop_assert!(!text.contains("NaN") && !text.contains("inf"), "{}", text);
            let (x, y) = (lines.x_scale(), lines.y_scale());
            for (vx, vy) in values {
                let (ax, ay) = (x.at(vx), y.at(vy));
                prop_assert!((LEFT..=lines.width - RIGHT).contains(&ax), "{}", ax);
                prop_assert!((TOP..=HEIGHT - BOTTOM).contains(&ay), "{}", ay);
            }
        }
    }
}
