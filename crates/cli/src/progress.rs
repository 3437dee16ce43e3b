//! Progress of long work: a bar on a terminal, few plain lines otherwise.
//!
//! Decision: standard error without a terminal is a log. Hours of work are a few lines there: the
//! first after a minute, each next one after twice the wait. Of several ranks only rank 0 shows
//! progress. The price: a single slow rank is not seen here. Its epochs are reported.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use foreread::dataset::IndexProgress;
use foreread::size::ByteSize;
use foreread_settings::Knobs;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{output, settings};

/// The wait before the first line without a terminal.
const FIRST: Duration = Duration::from_secs(60);

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressMode {
    Bar,
    Lines,
    Nothing,
}

impl ProgressMode {
    /// A bar if standard error is a terminal, else lines.
    pub fn auto() -> Self {
        if std::io::stderr().is_terminal() { Self::Bar } else { Self::Lines }
    }

    /// By the settings; ranks other than 0 show nothing.
    pub fn of(knobs: &Knobs, rank: u32) -> Self {
        if settings::is_on(knobs, "progress") && rank == 0 { Self::auto() } else { Self::Nothing }
    }
}

/// Decides when a line is due: after a wait that doubles each time.
#[derive(Debug)]
struct LineTimer {
    wait: Duration,
    due: Duration,
}

impl LineTimer {
    fn new() -> Self {
        Self { wait: FIRST, due: FIRST }
    }

    /// Whether a line is due after this time.
    fn is_due(&mut self, elapsed: Duration) -> bool {
        let due = elapsed >= self.due;
        if due {
            self.wait *= 2;
            self.due = elapsed + self.wait;
        }
        due
    }
}

/// Progress with `total` steps, or 0 if the number is unknown.
#[derive(Debug)]
pub struct WorkProgress {
    show: ProgressMode,
    bar: Option<ProgressBar>,
    label: String,
    total: u64,
    done: u64,
    /// When this part began, and when the work began.
    part: Instant,
    began: Instant,
    timer: LineTimer,
}

impl WorkProgress {
    /// Begins. `unit` names the steps.
    pub fn new(show: ProgressMode, label: impl Into<String>, total: u64, unit: &str) -> Self {
        let (label, now) = (label.into(), Instant::now());
        let bar = bar(show, &label, total, unit);
        Self { show, bar, label, total, done: 0, part: now, began: now, timer: LineTimer::new() }
    }

    /// Shows the progress of `work`, which reports the units that are done and their total.
    pub fn watch<T>(
        show: ProgressMode,
        label: String,
        unit: &str,
        work: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T,
    ) -> T {
        let mut shown: Option<Self> = None;
        work(&mut |done, total| {
            shown.get_or_insert_with(|| Self::new(show, label.clone(), total, unit)).at(done);
        })
    }

    /// Begins the next part, whose steps count from zero.
    pub fn next(&mut self, label: impl Into<String>, total: u64, unit: &str) {
        self.end();
        let label = label.into();
        self.bar = bar(self.show, &label, total, unit);
        (self.label, self.total, self.done, self.part) = (label, total, 0, Instant::now());
    }

    /// Sets the number of finished steps.
    pub fn at(&mut self, done: u64) {
        self.done = done;
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if self.show == ProgressMode::Lines && self.timer.is_due(self.began.elapsed()) {
            let rate = done as f64 / self.part.elapsed().as_secs_f64();
            match self.total {
                0 => output::note(&format!("{}: {done}, {rate:.0}/s", self.label)),
                total => output::note(&format!("{}: {done} of {total}, {rate:.0}/s", self.label)),
            }
        }
    }

    /// Adds a finished step.
    pub fn step(&mut self) {
        self.at(self.done + 1);
    }

    /// Removes the bar.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for WorkProgress {
    fn drop(&mut self) {
        self.end();
    }
}

fn bar(show: ProgressMode, label: &str, total: u64, unit: &str) -> Option<ProgressBar> {
    (show == ProgressMode::Bar).then(|| {
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

/// Shows the progress of listing a dataset.
pub fn listing(show: ProgressMode, target: &str) -> impl FnMut(IndexProgress) + Send + 'static {
    let mut work = WorkProgress::new(show, format!("listing {target}"), 0, "samples");
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
    fn only_rank_0_shows_progress_and_only_if_it_is_on() {
        let of = |value: &str, rank| {
            let given = [("progress", value.to_owned())];
            let file = std::path::Path::new("/nonexistent/foreread.toml");
            Knobs::gather(given, |_| None, file).map(|knobs| ProgressMode::of(&knobs, rank))
        };
        assert_eq!(of("auto", 0).unwrap(), ProgressMode::auto());
        assert_eq!(of("auto", 1).unwrap(), ProgressMode::Nothing);
        assert_eq!(of("off", 0).unwrap(), ProgressMode::Nothing);
        assert!(of("some", 0).unwrap_err().to_string().contains("expected auto or off"));
    }

    #[test]
    // semantics: FAIL-27
    fn ten_hours_of_progress_are_ten_lines() {
        let mut timer = LineTimer::new();
        let lines: Vec<u64> =
            (0..36_000).filter(|second| timer.is_due(Duration::from_secs(*second))).collect();
        assert_eq!(lines, [1, 3, 7, 15, 31, 63, 127, 255, 511].map(|minute| minute * 60));
    }
}
