//! The demo's rows as bars of text. ASCII only, so that every terminal and log shows them.

use std::io::{Result, Write};

use super::{DemoRun, EPOCHS};

/// The letters of the longest bar.
const WIDTH: f64 = 60.0;

/// Writes one bar per row: the mean seconds of an epoch, split into computing and waiting.
pub fn write(out: &mut impl Write, rows: &[DemoRun]) -> Result<()> {
    let times: Vec<_> = rows.iter().map(|run| (run.name, run.waited(), run.seconds())).collect();
    bars(out, &times)
}

/// The same, from each row's name, waited seconds and seconds.
fn bars(out: &mut impl Write, rows: &[(&str, f64, f64)]) -> Result<()> {
    let longest = rows.iter().map(|(.., seconds)| *seconds).fold(f64::MIN_POSITIVE, f64::max);
    writeln!(out, "{:30}# computing   . waiting for data", "seconds per epoch")?;
    for (name, waited, seconds) in rows {
        let letters = |seconds: f64| (WIDTH * seconds / longest).round() as usize;
        // Rounded together, so that bars of equal length are equal.
        let (whole, computing) = (letters(*seconds).max(1), letters(seconds - waited));
        let (computing, waiting) = (computing.min(whole), whole.saturating_sub(computing));
        let bar = format!("{}{}", "#".repeat(computing), ".".repeat(waiting));
        writeln!(out, "{name:30}{bar} {:.2}", seconds / EPOCHS as f64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_proportional_to_seconds() {
        let mut out = Vec::new();
        bars(&mut out, &[("slow", 27.0, 30.0), ("fast", 0.0, 3.0), ("none", 0.0, 0.0)]).unwrap();
        let text = String::from_utf8(out).unwrap();
        let bars: Vec<&str> = text.lines().skip(1).map(|line| line[30..].trim_end()).collect();
        let slow = format!("######{} 10.00", ".".repeat(54));
        assert_eq!(bars, [slow.as_str(), "###### 1.00", ". 0.00"]);
    }
}
