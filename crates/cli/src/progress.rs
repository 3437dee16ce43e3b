//! How far long work has come: a bar on a terminal, a plain line every few seconds otherwise.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use foreread::{ByteSize, Progress};
use indicatif::{ProgressBar, ProgressStyle};

/// Lines on something that is no terminal come no closer together than this.
const EVERY: Duration = Duration::from_secs(2);

/// Work whose end is known (`total` steps) or not (0).
#[derive(Debug)]
pub struct Work {
    bar: Option<ProgressBar>,
    label: String,
    total: u64,
    done: u64,
    began: Instant,
    said: Instant,
}

impl Work {
    /// Begins. `unit` is what is counted.
    pub fn new(label: impl Into<String>, total: u64, unit: &str) -> Self {
        let label = label.into();
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = if total > 0 {
                format!("{{msg:16}} [{{bar:30}}] {{pos}}/{{len}} {unit} {{per_sec}} {{eta}} left")
            } else {
                format!("{{spinner}} {{msg:16}} {{human_pos}} {unit} {{per_sec}}")
            };
            let style = ProgressStyle::with_template(&style).unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = if total > 0 { ProgressBar::new(total) } else { ProgressBar::new_spinner() };
            bar.with_style(style.progress_chars("=> ")).with_message(label.clone())
        });
        let now = Instant::now();
        Self { bar, label, total, done: 0, began: now, said: now }
    }

    /// So much is done by now.
    pub fn at(&mut self, done: u64) {
        self.done = done;
        match &self.bar {
            Some(bar) => bar.set_position(done),
            None if self.said.elapsed() >= EVERY => {
                self.said = Instant::now();
                let rate = done as f64 / self.began.elapsed().as_secs_f64();
                match self.total {
                    0 => eprintln!("{}: {done}, {rate:.0}/s", self.label),
                    total => eprintln!("{}: {done} of {total}, {rate:.0}/s", self.label),
                }
            }
            None => {}
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

/// Follows the listing of a dataset.
pub fn listing(target: &str) -> impl FnMut(Progress) + Send + 'static {
    let mut work = Work::new(format!("listing {target}"), 0, "samples");
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
