//! What a user sees of a run while it goes on: figures since the last look, a bar, a line when the trainer starves.
//!
//! The figures' meaning is Python's (`_stats.py`, `_progress.py`); here is only what has to be kept between two looks. Python is
//! told before a batch is taken, never after: what fails there, Ctrl-C included, must not lose one. The price is that a bar
//! is a batch late, which is when that batch has been computed on.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foreread::report::{CountReport, EpochReport, ReadsReport, Report};
use pyo3::prelude::*;

use crate::json;

/// How often it is looked whether the trainer starves.
const EVERY: Duration = Duration::from_secs(10);

/// How often that is said at most.
const SAID: Duration = Duration::from_secs(60);

/// The part of the time that a trainer may wait before something is said.
const STARVED: f64 = 0.2;

#[derive(Debug)]
pub(crate) struct Watch {
    state: Mutex<State>,
    progress: Option<Py<PyAny>>,
}

#[derive(Debug)]
struct State {
    /// The report at the last `stats()`, its epochs as one: a run has many.
    stats: Option<Report>,
    /// Likewise, when it was last looked for starvation, and when that was.
    looked: Option<Report>,
    at: Instant,
    /// How long the trainer had waited by then, in seconds, where it said so.
    waited: f64,
    said: Option<Instant>,
    /// The batch that the trainer has: epoch, phase, samples.
    taken: Option<(u64, String, usize)>,
}

impl Watch {
    pub(crate) fn new(progress: Option<Py<PyAny>>) -> Self {
        let state =
            State { stats: None, looked: None, at: Instant::now(), waited: 0.0, said: None, taken: None };
        Self { state: Mutex::new(state), progress }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The figures since the last call.
    pub(crate) fn stats<'py>(&self, py: Python<'py>, report: Report) -> PyResult<Bound<'py, PyAny>> {
        let whole = json::text(&report)?;
        let report = brief(report);
        let now = json::python(py, &report)?;
        let before = self.lock().stats.replace(report);
        let before = before.map(|before| json::python(py, &before)).transpose()?;
        py.import("foreread._stats")?.call_method1("build", (now, before, whole))
    }

    /// Notes the batch that the trainer gets.
    pub(crate) fn took(&self, batch: &foreread::Batch) {
        if self.progress.is_some() {
            self.lock().taken = Some((batch.epoch(), batch.phase().to_string(), batch.len()));
        }
    }

    /// Before a batch is asked for: the one before is done. `waited` is how long the trainer has waited so far, in seconds, where
    /// that is not how long samples were waited for.
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
            state.at.elapsed() >= EVERY
        };
        if due { self.look(py, waited, report()) } else { Ok(()) }
    }

    /// The run is over.
    pub(crate) fn end(&self, py: Python<'_>) -> PyResult<()> {
        match &self.progress {
            Some(progress) => progress.call_method0(py, "end").map(drop),
            None => Ok(()),
        }
    }

    fn look(&self, py: Python<'_>, waited: Option<f64>, report: Option<Report>) -> PyResult<()> {
        let Some(report) = report.map(brief) else { return Ok(()) };
        let (before, share, hushed) = {
            let mut state = self.lock();
            let seconds = state.at.elapsed().as_secs_f64();
            state.at = Instant::now();
            let share =
                waited.map(|waited| (waited - std::mem::replace(&mut state.waited, waited)) / seconds);
            let hushed = state.said.is_some_and(|said| said.elapsed() < SAID);
            (state.looked.replace(report.clone()), share, hushed)
        };
        if hushed {
            return Ok(());
        }
        let before = before.map(|before| json::python(py, &before)).transpose()?;
        let stats = py.import("foreread._stats")?;
        let said: bool =
            stats.call_method1("starved", (json::python(py, &report)?, before, STARVED, share))?.extract()?;
        if said {
            self.lock().said = Some(Instant::now());
        }
        Ok(())
    }
}

/// A report with its epochs as one: sums are all that is made of them here.
fn brief(report: Report) -> Report {
    let mut epochs = report.epochs.into_iter();
    let first = epochs.next();
    Report { epochs: first.map(|first| epochs.fold(first, followed)).into_iter().collect(), ..report }
}

fn followed(mut sum: EpochReport, next: EpochReport) -> EpochReport {
    sum.passes += next.passes;
    sum.samples += next.samples;
    sum.batches += next.batches;
    sum.bytes += next.bytes;
    sum.seconds += next.seconds;
    sum.stall_seconds += next.stall_seconds;
    sum.reads = ReadsReport {
        origin: added(sum.reads.origin, next.reads.origin),
        memory: added(sum.reads.memory, next.reads.memory),
        disk: added(sum.reads.disk, next.reads.disk),
        peer: added(sum.reads.peer, next.reads.peer),
    };
    sum
}

fn added(sum: CountReport, next: CountReport) -> CountReport {
    let both = |sum: Option<u64>, next: Option<u64>| match (sum, next) {
        (Some(sum), Some(next)) => Some(sum + next),
        (one, other) => one.or(other),
    };
    CountReport { samples: both(sum.samples, next.samples), bytes: both(sum.bytes, next.bytes) }
}
