//! Plots as SVG, without any colour of their own: classes `s0` to `s7` get it
//! from the page's style sheet, in either scheme. Series also differ by mark
//! and dashes, so that colour is never all that tells them apart.

mod axis;
mod bars;
mod lines;
mod picture;

pub use bars::{Bar, Bars};
pub use lines::{Guide, Lines, Series, Spot, XAxis};
pub use picture::picture;

use crate::report::table::escape;

/// Width of a plot on the page.
pub const WIDTH: f64 = 640.0;
/// Width of one of several side by side in a picture.
pub const NARROW: f64 = 400.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 52.0;
/// Styles there are; further series start over.
const STYLES: usize = 8;

fn open(title: &str, id: &str, description: &str, (width, height): (f64, f64)) -> String {
    let wide = if width > WIDTH { " class=\"wide\"" } else { "" };
    format!(
        "<figure{wide}>\n<figcaption id=\"{id}-title\">{}</figcaption>\n\
         <svg class=\"plot\" role=\"img\" viewBox=\"0 0 {width} {height}\" \
         aria-labelledby=\"{id}-title\" aria-describedby=\"{id}-desc\">\n\
         <desc id=\"{id}-desc\">{}</desc>\n",
        escape(title),
        escape(description)
    )
}
