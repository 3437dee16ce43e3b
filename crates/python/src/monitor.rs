//! Statistics, progress and starvation warnings of a run.
//!
//! The meaning of the figures is defined in Python (`_stats.py`, `_progress.py`). This module keeps
//! the state between two checks. Python code runs before a batch is taken, never after, because its
//! errors, Ctrl-C included, must not lose a batch. The price is that the progress bar is one batch
//! late, which is when that batch has been computed on.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foreread::report::{CountReport, EpochReport, ReadsReport, Report};
use pyo3::prelude::*;

use crate::json;

/// The interval of starvation checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The minimum interval of starvation warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The share of stalled time above which a warning is logged.
const STALL_SHARE: f64 = 0.2;

/// Statistics and progress of one run.
#[derive(Debug)]
pub(crate) struct Monitor {
    state: Mutex<MonitorState>,
    progress: Option<Py<PyAny>>,
}

#[derive(Debug)]
struct MonitorState {
    /// The report at the last `stats()`, with its epochs summed up.
    stats: Option<Report>,
    /// The report at the last starvation check, and the time of the check.
    checked: Option<Report>,
    at: Instant,
    /// The trainer's total stall time at that check, in seconds, if the trainer reported it.
    waited: f64,
    warned: Option<Instant>,
    /// The batch that the trainer holds: epoch, phase, samples.
    taken: Option<(u64, String, usize)>,
}

impl Monitor {
    pub(crate) fn new(progress: Option<Py<PyAny>>) -> Self {
        let state = MonitorState {
            stats: None,
            checked: None,
            at: Instant::now(),
            waited: 0.0,
            warned: None,
            taken: None,
        };
        Self { state: Mutex::new(state), progress }
    }

    fn lock(&self) -> MutexGuard<'_, MonitorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The statistics since the last call.
    pub(crate) fn stats<'py>(&self, py: Python<'py>, report: Report) -> PyResult<Bound<'py, PyAny>> {
        let whole = json::text(&report)?;
        let report = summed(report);
        let now = json::python(py, &report)?;
        let before = self.lock().stats.replace(report);
        let before = before.map(|before| json::python(py, &before)).transpose()?;
        py.import("foreread._stats")?.call_method1("build", (now, before, whole))
    }

    /// Records the batch that the trainer gets.
    pub(crate) fn took(&self, batch: &foreread::Batch) {
        if self.progress.is_some() {
            self.lock().taken = Some((batch.epoch(), batch.phase().to_string(), batch.len()));
        }
    }

    /// Called before a batch is requested: the previous batch is done. `waited` is the trainer's
    /// total stall time in seconds, if it differs from the wait for samples.
    pub(crate) fn before(
        &self,
        py: Python<'_>,
        waited: Option<f64>,
        report: impl FnOnce() -> Option<Report>,
    ) -> PyResult<()> {
        if let Some(progress) = &self.progress {
            let taken = self.lock().taken.take();
            if let Some((epoch, phase, samples)) = taken {
                progress.call_method1(py, "batch", (epoch, phase, samples))?;
            }
        }
        let due = {
            let state = self.lock();
            state.at.elapsed() >= CHECK_INTERVAL
        };
        if due { self.check(py, waited, report()) } else { Ok(()) }
    }

    /// Called at the end of the run.
    pub(crate) fn end(&self, py: Python<'_>) -> PyResult<()> {
        match &self.progress {
            Some(progress) => progress.call_method0(py, "end").map(drop),
            None => Ok(()),
        }
    }

    fn check(&self, py: Python<'_>, waited: Option<f64>, report: Option<Report>) -> PyResult<()> {
        let Some(report) = report.map(summed) else { return Ok(()) };
        let (before, share, is_quiet) = {
            let mut state = self.lock();
            let seconds = state.at.elapsed().as_secs_f64();
            state.at = Instant::now();
            let share =
                waited.map(|waited| (waited - std::mem::replace(&mut state.waited, waited)) / seconds);
            let is_quiet = state.warned.is_some_and(|warned| warned.elapsed() < WARNING_INTERVAL);
            (state.checked.replace(report.clone()), share, is_quiet)
        };
        if is_quiet {
            return Ok(());
        }
        let before = before.map(|before| json::python(py, &before)).transpose()?;
        let stats = py.import("foreread._stats")?;
        let warned: bool = stats
            .call_method1("starved", (json::python(py, &report)?, before, STALL_SHARE, share))?
            .extract()?;
        if warned {
            self.lock().warned = Some(Instant::now());
        }
        Ok(())
    }
}

/// A report with its epochs summed up.
fn summed(report: Report) -> Report {
    let mut epochs = report.epochs.into_iter();
    let first = epochs.next();
    Report { epochs: first.map(|first| epochs.fold(first, add_epochs)).into_iter().collect(), ..report }
}

fn add_epochs(mut sum: EpochReport, next: EpochReport) -> EpochReport {
    sum.passes += next.passes;
    sum.samples += next.samples;
    sum.batches += next.batches;
    sum.bytes += next.bytes;
    sum.seconds += next.seconds;
    sum.stall_seconds += next.stall_seconds;
    sum.reads = ReadsReport {
        origin: add_counts(sum.reads.origin, next.reads.origin),
        memory: add_counts(sum.reads.memory, next.reads.memory),
        disk: add_counts(sum.reads.disk, next.reads.disk),
        agent: add_counts(sum.reads.agent, next.reads.agent),
    };
    sum
}

fn add_counts(sum: CountReport, next: CountReport) -> CountReport {
    let both = |sum: Option<u64>, next: Option<u64>| match (sum, next) {
        (Some(sum), Some(next)) => Some(sum + next),
        (one, other) => one.or(other),
    };
    CountReport { samples: both(sum.samples, next.samples), bytes: both(sum.bytes, next.bytes) }
}
