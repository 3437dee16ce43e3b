//! Figures beside those that were asked for.

use std::fmt;

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub enum Asked {
    /// Nothing: the figure is there to compare with.
    Nothing,
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What was measured.
    pub what: String,
    /// What was asked for.
    pub asked: Asked,
    /// What was found.
    pub found: f64,
    /// Of what the two are numbers.
    pub unit: &'static str,
    /// What else there is to say.
    pub note: String,
}

impl Figure {
    /// A figure without a note.
    pub fn new(what: impl Into<String>, asked: Asked, found: f64, unit: &'static str) -> Self {
        Self { what: what.into(), asked, found, unit, note: String::new() }
    }

    /// The same with a note.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// Whether it is as good as asked; `None` where nothing was.
    pub fn is_met(&self) -> Option<bool> {
        match self.asked {
            Asked::Nothing => None,
            Asked::AtMost(most) => Some(self.found <= most),
            Asked::AtLeast(least) => Some(self.found >= least),
        }
    }
}

/// A number with as many digits as it is worth.
fn number(value: f64) -> String {
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
        let asked = match self.asked {
            Asked::Nothing => String::new(),
            Asked::AtMost(most) => format!("<= {}", number(most)),
            Asked::AtLeast(least) => format!(">= {}", number(least)),
        };
        let verdict = match self.is_met() {
            None => "",
            Some(true) => "met",
            Some(false) => "MISSED",
        };
        let found = number(self.found);
        write!(
            f,
            "| {:<80} | {asked:>10} | {found:>9} | {:<9} | {verdict:<6} | {} |",
            self.what, self.unit, self.note
        )
    }
}

/// The lines as a table that Markdown understands.
pub fn print(figures: &[Figure]) {
    println!("| {:<80} | {:>10} | {:>9} | {:<9} | {:<6} | |", "", "asked", "measured", "unit", "");
    println!("|---|--:|--:|---|---|---|");
    for figure in figures {
        println!("{figure}");
    }
}
