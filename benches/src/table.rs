//! Measured figures compared with their targets.

use std::fmt;

/// The target of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// No target: the figure is for comparison.
    None,
    /// At most this value.
    AtMost(f64),
    /// At least this value.
    AtLeast(f64),
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The name of the figure.
    pub name: String,
    /// The target.
    pub target: Goal,
    /// The measured value.
    pub measured: f64,
    /// The unit of the target and of the value.
    pub unit: &'static str,
    /// Further information.
    pub note: String,
}

impl Figure {
    /// A figure without a note.
    pub fn new(name: impl Into<String>, target: Goal, measured: f64, unit: &'static str) -> Self {
        Self { name: name.into(), target, measured, unit, note: String::new() }
    }

    /// Adds a note.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// Whether the target is met. `None` without a target.
    pub fn is_met(&self) -> Option<bool> {
        match self.target {
            Goal::None => None,
            Goal::AtMost(most) => Some(self.measured <= most),
            Goal::AtLeast(least) => Some(self.measured >= least),
        }
    }
}

/// A number with three significant digits, or with all digits of its integer part.
pub fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => {
            let digits = format!("{value:.0}");
            let first = digits.len() % 3;
            let mut grouped = digits[..first].to_owned();
            for (at, digit) in digits[first..].chars().enumerate() {
                if at % 3 == 0 && !grouped.is_empty() {
                    grouped.push(',');
                }
                grouped.push(digit);
            }
            grouped
        }
        middle if middle >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = match self.target {
            Goal::None => String::new(),
            Goal::AtMost(most) => format!("<= {}", number(most)),
            Goal::AtLeast(least) => format!(">= {}", number(least)),
        };
        let status = match self.is_met() {
            None => "",
            Some(true) => "met",
            Some(false) => "missed",
        };
        let measured = number(self.measured);
        write!(
            f,
            "| {:<80} | {target:>10} | {measured:>9} | {:<9} | {status:<6} | {} |",
            self.name, self.unit, self.note
        )
    }
}

/// The figures as a table in Markdown.
pub fn markdown(figures: &[Figure]) -> String {
    let mut text = format!(
        "| {:<80} | {:>10} | {:>9} | {:<9} | {:<6} | |\n|---|--:|--:|---|---|---|\n",
        "figure", "target", "measured", "unit", "status"
    );
    for figure in figures {
        text.push_str(&format!("{figure}\n"));
    }
    text
}

/// Prints the figures as a table in Markdown.
pub fn print(figures: &[Figure]) {
    print!("{}", markdown(figures));
}
