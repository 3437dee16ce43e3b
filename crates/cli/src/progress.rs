//! How far long work has come: a bar on a terminal, now and then a plain line otherwise.
//!
//! Decision: what is no terminal is a log, and hours of work are a few lines there: the first after a minute, each
//! further one after twice the wait. Of several ranks rank 0 alone shows anything. The price is that a rank that is
//! slow for itself is not seen here; its epochs are reported all the same.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use foreread::dataset::Progress;
use foreread::size::ByteSize;
use foreread_settings::Knobs;
use indicatif::{ProgressBar, ProgressStyle};

use crate::settings;

/// The wait before the first line on something that is no terminal.
const FIRST: Duration = Duration::from_secs(60);

/// Where progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    Bar,
    Lines,
    Nothing,
}

impl Show {
    /// As standard error has it.
    pub fn auto() -> Self {
        if std::io::stderr().is_terminal() { Self::Bar } else { Self::Lines }
    }

    /// As the settings say; `rank` is the one among the run's ranks.
    pub fn of(knobs: &Knobs, rank: u32) -> anyhow::Result<Self> {
        let wanted = settings::is_on(knobs, "progress")?;
        Ok(if wanted && rank == 0 { Self::auto() } else { Self::Nothing })
    }
}

/// When a line is due: after a wait that doubles each time.
#[derive(Debug)]
struct Pace {
    wait: Duration,
    due: Duration,
}

impl Pace {
    fn new() -> Self {
        Self { wait: FIRST, due: FIRST }
    }

    /// Whether a line is due this long after the beginning.
    fn is_due(&mut self, elapsed: Duration) -> bool {
        let due = elapsed >= self.due;
        if due {
            self.wait *= 2;
            self.due = elapsed + self.wait;
        }
        due
    }
}

/// Work whose end is known (`total` steps) or not (0).
#[derive(Debug)]
pub struct Work {
    show: Show,
    bar: Option<ProgressBar>,
    label: String,
    total: u64,
    done: u64,
    /// When this part of it began, and when all of it did.
    part: Instant,
    began: Instant,
    pace: Pace,
}

impl Work {
    /// Begins. `unit` is what is counted.
    pub fn new(show: Show, label: impl Into<String>, total: u64, unit: &str) -> Self {
        let (label, now) = (label.into(), Instant::now());
        let bar = bar(show, &label, total, unit);
        Self { show, bar, label, total, done: 0, part: now, began: now, pace: Pace::new() }
    }

    /// Begins the next part, which is counted from zero.
    pub fn next(&mut self, label: impl Into<String>, total: u64, unit: &str) {
        self.end();
        let label = label.into();
        self.bar = bar(self.show, &label, total, unit);
        (self.label, self.total, self.done, self.part) = (label, total, 0, Instant::now());
    }

    /// So much is done by now.
    pub fn at(&mut self, done: u64) {
        self.done = done;
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if self.show == Show::Lines && self.pace.is_due(self.began.elapsed()) {
            let rate = done as f64 / self.part.elapsed().as_secs_f64();
            match self.total {
                0 => eprintln!("{}: {done}, {rate:.0}/s", self.label),
                total => eprintln!("{}: {done} of {total}, {rate:.0}/s", self.label),
            }
        }
    }

    /// One more step is done.
    pub fn step(&mut self) {
        self.at(self.done + 1);
    }

    /// Takes the bar away, so that what follows has the line for itself.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.end();
    }
}

fn bar(show: Show, label: &str, total: u64, unit: &str) -> Option<ProgressBar> {
    (show == Show::Bar).then(|| {
        let style = if total > 0 {
            format!("{{msg:16}} [{{bar:30}}] {{pos}}/{{len}} {unit} {{per_sec}} {{eta}} left")
        } else {
            format!("{{spinner}} {{msg:16}} {{human_pos}} {unit} {{per_sec}}")
        };
        let style = ProgressStyle::with_template(&style).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = if total > 0 { ProgressBar::new(total) } else { ProgressBar::new_spinner() };
        bar.with_style(style.progress_chars("=> ")).with_message(label.to_owned())
    })
}

/// Follows the listing of a dataset.
pub fn listing(show: Show, target: &str) -> impl FnMut(Progress) + Send + 'static {
    let mut work = Work::new(show, format!("listing {target}"), 0, "samples");
    move |progress| {
        work.at(progress.samples);
        if let Some(bar) = &work.bar {
            bar.set_message(match progress.requests {
                0 => format!("listing, {}", ByteSize(progress.bytes)),
                requests => format!("indexing {}, {requests} requests", ByteSize(progress.bytes)),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_alone_shows_progress_and_only_if_it_is_on() {
        let of = |value: &str, rank| {
            let given = [("progress", value.to_owned())];
            let file = std::path::Path::new("/nonexistent/foreread.toml");
            Show::of(&Knobs::gather(foreread_settings::COMMAND_KNOBS, given, |_| None, file).unwrap(), rank)
        };
        assert_eq!(of("auto", 0).unwrap(), Show::auto());
        assert_eq!(of("auto", 1).unwrap(), Show::Nothing);
        assert_eq!(of("off", 0).unwrap(), Show::Nothing);
        assert!(of("some", 0).unwrap_err().to_string().contains("it is auto or off"));
    }

    #[test]
    // semantics: FAIL-27
    fn ten_hours_of_progress_are_ten_lines() {
        let mut pace = Pace::new();
        let lines: Vec<u64> =
            (0..36_000).filter(|second| pace.is_due(Duration::from_secs(*second))).collect();
        assert_eq!(lines, [1, 3, 7, 15, 31, 63, 127, 255, 511].map(|minute| minute * 60));
    }
}
