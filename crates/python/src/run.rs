//! A run that Python has started: shared by its threads, closed once, and at the latest when the
//! interpreter exits.
//!
//! The loader is in a slot that closing empties. Callers share it during a call, without the GIL. A
//! report is available while another thread waits for a batch. Calls that need the loader
//! exclusively (close, jump) wait for no thread that waits for them. Weak references to open runs
//! let one call at the interpreter's exit close them, because threads of a runtime must not outlive
//! the interpreter.

use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use foreread::report::{History, Report};
use foreread::{Error, Jump, Loader};
use pyo3::Python;

use crate::interrupt::Interrupted;
use crate::process_local::{ProcessLocal, generation};

/// How long an interrupted rank, or one whose interpreter exits, serves unfinished ranks.
pub(crate) const INTERRUPT_TIMEOUT: Duration = Loader::INTERRUPTED_FAREWELL;

/// How long a finished rank serves unfinished ranks.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Loader::FAREWELL;

/// An object with threads, which must end before the interpreter does.
pub(crate) trait Closable: Send + Sync {
    /// Ends it within `timeout`. Closing again does nothing.
    fn close(&self, timeout: Duration, interrupted: Interrupted);
}

/// Open objects with the generation of the process that made them.
static LIVE: Mutex<Vec<(u64, Weak<dyn Closable>)>> = Mutex::new(Vec::new());

/// Registers an object for [`close_all`].
pub(crate) fn register(one: Weak<dyn Closable>) {
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    live.retain(|(_, one)| one.strong_count() > 0);
    live.push((generation(), one));
}

/// One object that is dropped when it is closed.
#[derive(Debug)]
pub(crate) struct ClosableSlot<T>(Mutex<Option<T>>);

impl<T: Send + 'static> ClosableSlot<T> {
    pub(crate) fn new(one: T) -> ProcessLocal<Arc<Self>> {
        let slot = Arc::new(Self(Mutex::new(Some(one))));
        register(Arc::downgrade(&slot) as Weak<dyn Closable>);
        ProcessLocal::new(slot)
    }

    /// Applies `work` to it without the GIL. `None` if it is closed.
    pub(crate) fn with<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&T) -> R + Send) -> Option<R> {
        py.detach(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(work))
    }
}

impl<T: Send> Closable for ClosableSlot<T> {
    fn close(&self, _: Duration, _: Interrupted) {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(taken);
    }
}

/// A run, shared by the threads of Python that use it.
#[derive(Debug)]
pub(crate) struct RunHandle {
    loader: RwLock<Option<Loader>>,
    /// The final report and history of a closed run.
    last: Mutex<Option<(Report, History)>>,
}

impl RunHandle {
    pub(crate) fn new(loader: Loader) -> ProcessLocal<Arc<Self>> {
        let loader = RwLock::new(Some(loader));
        let run = Arc::new(Self { loader, last: Mutex::new(None) });
        register(Arc::downgrade(&run) as Weak<dyn Closable>);
        ProcessLocal::new(run)
    }

    /// Applies `work` to the loader, concurrently with other callers. `None` if it is closed.
    pub(crate) fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&Loader) -> T + Send) -> Option<T> {
        py.detach(|| self.share(work))
    }

    /// The same for callers without the GIL.
    pub(crate) fn share<T>(&self, work: impl FnOnce(&Loader) -> T) -> Option<T> {
        self.loader.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(work)
    }

    /// The current report, or the final one of a closed run.
    pub(crate) fn report(&self, py: Python<'_>) -> Option<Report> {
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.with(py, Loader::report).or_else(|| last().map(|(report, _)| report))
    }

    /// The current report and history, or the final ones of a closed run.
    pub(crate) fn course(&self, py: Python<'_>) -> Option<(Report, History)> {
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.with(py, |run| (run.report(), run.history())).or_else(last)
    }

    /// Moves the run to another position. `None` if it is closed. Waits for threads that wait for a
    /// batch, which release the loader at their next poll.
    pub(crate) fn jump(&self, py: Python<'_>, to: &Jump) -> Option<Result<(), Error>> {
        py.detach(|| {
            let mut loader = self.loader.write().unwrap_or_else(PoisonError::into_inner);
            Some(loader.as_mut()?.jump(to))
        })
    }
}

impl Closable for RunHandle {
    /// Ends the run: serves other ranks until they finish, for at most `timeout`, and flushes the
    /// disk tier.
    fn close(&self, timeout: Duration, interrupted: Interrupted) {
        let store = |course| *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(course);
        let taken = self.loader.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(loader) = taken else { return };
        let (before, history) = (loader.report(), loader.history());
        store((before.clone(), history.clone()));
        // The engine has its own thread: neither call is refused, and both fail only after a panic.
        let left = loader.leave_unless(timeout, move || interrupted.is_set());
        let all_ranks = left.unwrap_or_else(|error| {
            tracing::warn!(target: "foreread", %error, "the reports of the other ranks are missing");
            None
        });
        let report = loader.close().unwrap_or_else(|error| {
            tracing::warn!(target: "foreread", %error, "the run was not closed properly");
            before
        });
        store((Report { all_ranks, ..report }, history));
    }
}

/// Closes all runs of this process, each within `timeout` plus the flush of its disk tier.
pub(crate) fn close_all(timeout: Duration) {
    let live = match LIVE.try_lock() {
        Ok(mut live) => std::mem::take(&mut *live),
        // A forked child inherited the lock from a thread that it does not have.
        Err(_) => return,
    };
    let own = live.into_iter().filter(|(made, _)| *made == generation());
    let runs: Vec<Arc<dyn Closable>> = own.filter_map(|(_, run)| run.upgrade()).collect();
    std::thread::scope(|scope| {
        for run in &runs {
            scope.spawn(|| run.close(timeout, Interrupted::default()));
        }
    });
}
