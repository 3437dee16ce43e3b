//! Axes: values to pixels, and ticks at round values.

/// Values to pixels.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// The value at `low`.
    pub from: f64,
    /// The value at `high`.
    pub to: f64,
    /// A pixel.
    pub low: i32,
    /// A pixel.
    pub high: i32,
    /// Whether the axis is logarithmic. Then `from` must be positive.
    pub log: bool,
}

impl Axis {
    /// A linear axis from 0. Without a positive `most` it still has a length.
    pub fn from_zero(most: f64, low: i32, high: i32) -> Self {
        let to = if most > 0.0 && most.is_finite() { most } else { 1.0 };
        Self { from: 0.0, to, low, high, log: false }
    }

    /// The pixel of a value.
    pub fn at(&self, value: f64) -> i32 {
        let share = if self.log {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.low + (share * f64::from(self.high - self.low)).round() as i32
    }

    /// Values that are 1, 2 or 5 times a power of ten, or have such distances. There are two to
    /// twelve of them.
    pub fn ticks(&self) -> Vec<f64> {
        if self.log && self.to / self.from > 5.0 {
            let lowest = self.from.log10().floor() as i32;
            let highest = self.to.log10().ceil() as i32;
            let all =
                (lowest..=highest).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
            return all.filter(|tick| (self.from..=self.to).contains(tick)).collect();
        }
        self.ticks_in(8.0)
    }

    /// The ticks of a linear axis, in at most about `parts` parts.
    pub fn ticks_in(&self, parts: f64) -> Vec<f64> {
        let rough = (self.to - self.from) / parts;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|&step| step >= rough);
        let step = step.unwrap_or(10.0 * power);
        let first = (self.from / step).ceil() as i64;
        let last = (self.to / step).floor() as i64;
        (first..=last).map(|tick| tick as f64 * step).collect()
    }
}

/// A tick's value without trailing zeros.
pub fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let axis = |from, to, log| Axis { from, to, low: 0, high: 100, log };
        assert_eq!(axis(0.0, 2.0, false).ticks(), [0.0, 0.5, 1.0, 1.5, 2.0]);
        assert_eq!(axis(7.0, 31.0, false).ticks(), [10.0, 15.0, 20.0, 25.0, 30.0]);
        assert_eq!(axis(7.0, 31.0, true).ticks(), [10.0, 15.0, 20.0, 25.0, 30.0]);
        assert_eq!(axis(3.0, 300.0, true).ticks(), [5.0, 10.0, 20.0, 50.0, 100.0, 200.0]);
        assert_eq!((axis(1.0, 100.0, true).at(10.0), axis(0.0, 10.0, false).at(5.0)), (50, 50));
        assert_eq!(axis(0.0, 100.0, false).ticks_in(2.0), [0.0, 50.0, 100.0]);
    }

    #[test]
    fn axis_of_zeros_has_a_length() {
        for most in [0.0, f64::NAN, f64::INFINITY] {
            let axis = Axis::from_zero(most, 0, 10);
            assert_eq!((axis.at(0.0), axis.at(1.0)), (0, 10));
        }
    }

    #[test]
    fn numbers_have_no_trailing_zeros() {
        assert_eq!([0.25, 10.0, 0.1 + 0.2, 0.0].map(number), ["0.25", "10", "0.3", "0"]);
    }
}
