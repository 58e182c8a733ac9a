//! Scales and round values along them.

/// From values to places.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    pub(super) log: bool,
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) start: f64,
    pub(super) end: f64,
}

impl Scale {
    pub(super) fn at(&self, value: f64) -> f64 {
        let f = |v: f64| {
            if self.log {
                v.max(f64::MIN_POSITIVE).log2()
            } else {
                v
            }
        };
        let (from, to) = (f(self.from), f(self.to));
        let share = if to > from {
            (f(value) - from) / (to - from)
        } else {
            0.5
        };
        self.start + share * (self.end - self.start)
    }
}

/// Round values across a scale, five or so, with their names.
pub(super) fn ticks(scale: &Scale) -> Vec<(f64, String)> {
    let values = if scale.log {
        log_ticks(scale.from, scale.to)
    } else {
        even_ticks(scale.from, scale.to)
    };
    values.into_iter().map(|v| (v, tick_name(v))).collect()
}

fn even_ticks(from: f64, to: f64) -> Vec<f64> {
    let rough = (to - from) / 5.0;
    if !rough.is_finite() || rough <= 0.0 {
        return Vec::new();
    }
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|m| m * power)
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    let first = (from / step).ceil();
    (0..20u32)
        .map(|n| (first + f64::from(n)) * step)
        .take_while(|v| *v <= to)
        .map(|v| if v.abs() < step / 1e6 { 0.0 } else { v })
        .collect()
}

fn log_ticks(from: f64, to: f64) -> Vec<f64> {
    let wide = to / from > 1e3;
    let steps: &[f64] = if wide { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let mut power = 10f64.powf(from.log10().floor());
    let mut all = Vec::new();
    while power <= to && all.len() < 40 {
        all.extend(
            steps
                .iter()
                .map(|s| s * power)
                .filter(|v| (from..=to).contains(v)),
        );
        power *= 10.0;
    }
    all
}

fn tick_name(value: f64) -> String {
    let magnitude = value.abs();
    let text = match magnitude {
        m if m >= 1e6 => format!("{value:.2e}"),
        m if m >= 10.0 || m == 0.0 => format!("{value:.1}"),
        m if m >= 0.0001 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    };
    let text = if text.contains('.') && !text.contains('e') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    };
    match text.parse::<u64>() {
        Ok(whole) => crate::report::figure::grouped(whole),
        Err(_) => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(even_ticks(0.0, 1080.0), [0.0, 250.0, 500.0, 750.0, 1000.0]);
        assert_eq!(even_ticks(-3.0, 3.0), [-2.0, 0.0, 2.0]);
        assert_eq!(log_ticks(3.0, 70.0), [5.0, 10.0, 20.0, 50.0]);
        assert_eq!(
            log_ticks(0.5, 20_000.0),
            [1.0, 10.0, 100.0, 1000.0, 10_000.0]
        );
        let names = [0.0, 0.25, 2.5, 50.0, 1500.0].map(tick_name);
        assert_eq!(names, ["0", "0.25", "2.5", "50", "1,500"]);
    }
}
