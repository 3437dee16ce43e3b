//! A run that Python has started: shared by the threads that use it, closed once, and closed at the latest when the
//! interpreter ends.
//!
//! The loader lives in a slot that closing empties. Who uses it shares it with others for the moment of the call, without the
//! interpreter's lock: a report can be had while another thread waits for a batch, and who has to have the loader to himself
//! (closing, jumping) waits for nobody who waits for him. Live runs are listed, weakly, so that
//! one call at the interpreter's end finds them: threads of a runtime must not outlive what Python tears down.

use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use foreread::report::Report;
use foreread::{Error, Jump, Loader};
use pyo3::Python;

use crate::here::{Here, generation};
use crate::waiting::Interrupted;

/// How long ranks that are not done are answered by one that was interrupted or whose interpreter ends.
pub(crate) const HASTE: Duration = Duration::from_secs(5);

/// How long a rank that is done answers others that are not.
pub(crate) const FAREWELL: Duration = Loader::FAREWELL;

/// What has threads, and must end before the interpreter does.
pub(crate) trait Live: Send + Sync {
    /// Ends it, if nobody has, within `at_most`.
    fn close(&self, at_most: Duration, interrupted: Interrupted);
}

/// What lives in this process, and of which generation it is.
static LIVE: Mutex<Vec<(u64, Weak<dyn Live>)>> = Mutex::new(Vec::new());

/// Has [`close_all`] end it, too.
pub(crate) fn list(one: Weak<dyn Live>) {
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    live.retain(|(_, one)| one.strong_count() > 0);
    live.push((generation(), one));
}

#[derive(Debug)]
pub(crate) struct Engine {
    loader: RwLock<Option<Loader>>,
    /// What the run has come to, once it is closed.
    last: Mutex<Option<Report>>,
}

impl Engine {
    pub(crate) fn new(loader: Loader) -> Here<Arc<Self>> {
        let loader = RwLock::new(Some(loader));
        let engine = Arc::new(Self { loader, last: Mutex::new(None) });
        list(Arc::downgrade(&engine) as Weak<dyn Live>);
        Here::new(engine)
    }

    /// What `work` makes of the loader, which others use at the same time; `None` if it is closed.
    pub(crate) fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&Loader) -> T + Send) -> Option<T> {
        py.detach(|| self.share(work))
    }

    /// The same for who does not hold the interpreter's lock.
    pub(crate) fn share<T>(&self, work: impl FnOnce(&Loader) -> T) -> Option<T> {
        self.loader.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(work)
    }

    /// What has been delivered and read; of a closed run, in all.
    pub(crate) fn report(&self, py: Python<'_>) -> Option<Report> {
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.with(py, Loader::report).or_else(last)
    }

    /// Has the run go on elsewhere; `None` if it is closed. Waits for threads that wait for a batch, which look up soon.
    pub(crate) fn jump(&self, py: Python<'_>, to: &Jump) -> Option<Result<(), Error>> {
        py.detach(|| {
            let mut loader = self.loader.write().unwrap_or_else(PoisonError::into_inner);
            Some(loader.as_mut()?.jump(to))
        })
    }
}

impl Live for Engine {
    /// Ends the run in order, if nobody has: answers other ranks until they are done, for `at_most`, and has the disk tier
    /// write what it was given.
    fn close(&self, at_most: Duration, interrupted: Interrupted) {
        let said = |report| *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
        let taken = self.loader.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(loader) = taken else { return };
        let before = loader.report();
        said(before.clone());
        // The engine has a thread of its own: neither call is refused, and either fails only after a panic.
        let left = loader.leave_unless(at_most, HASTE, move || interrupted.is_set());
        let all_ranks = left.unwrap_or_else(|error| {
            tracing::warn!(target: "foreread", %error, "the other ranks were left without a report");
            None
        });
        let report = loader.close().unwrap_or_else(|error| {
            tracing::warn!(target: "foreread", %error, "the run was not closed in order");
            before
        });
        said(Report { all_ranks, ..report });
    }
}

/// Ends all runs of this process, each within `at_most` and what its disk tier takes.
pub(crate) fn close_all(at_most: Duration) {
    let live = match LIVE.try_lock() {
        Ok(mut live) => std::mem::take(&mut *live),
        // In a fork's child, of a thread that is not here.
        Err(_) => return,
    };
    let here = live.into_iter().filter(|(made, _)| *made == generation());
    let engines: Vec<Arc<dyn Live>> = here.filter_map(|(_, engine)| engine.upgrade()).collect();
    std::thread::scope(|scope| {
        for engine in &engines {
            scope.spawn(|| engine.close(at_most, Interrupted::default()));
        }
    });
}
