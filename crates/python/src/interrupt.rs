//! Waits that Ctrl-C ends.
//!
//! Python runs signal handlers on its main thread, between two instructions of its own: a thread that waits elsewhere
//! never gets there. So long work is done by a thread of its own, and the caller's looks for signals between naps,
//! without holding the interpreter's lock while it sleeps. What goes on after the caller has given up ends by itself, and
//! is let go then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors::Class;
use crate::logs;

/// How long a wait sleeps before it looks for signals.
pub(crate) const NAP: Duration = Duration::from_millis(100);

/// Whether the caller has given up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Does `work` on a thread of its own and waits for it. A handler's exception ends the wait: `work` is told, and has
/// `patience` left to come to its end.
pub(crate) fn apart<T: Send + 'static>(
    py: Python<'_>,
    patience: Duration,
    work: impl FnOnce(Interrupted) -> T + Send + 'static,
) -> PyResult<T> {
    apart_looking(py, patience, &mut |_| Ok(()), work)
}

/// The same with a look at something else after every nap, whose failure ends the wait, too.
pub(crate) fn apart_looking<T: Send + 'static>(
    py: Python<'_>,
    patience: Duration,
    look: &mut dyn FnMut(Python<'_>) -> PyResult<()>,
    work: impl FnOnce(Interrupted) -> T + Send + 'static,
) -> PyResult<T> {
    let interrupted = Interrupted::default();
    let (tell, mut told) = mpsc::sync_channel(1);
    let seen = interrupted.clone();
    let thread = std::thread::Builder::new().name("foreread-wait".to_owned()).spawn(move || {
        // Nobody listens any more: the caller has given up.
        let _ = tell.send(work(seen));
    });
    thread.map_err(|error| Class::Error.with(format!("no thread to work on: {error}")))?;
    loop {
        // The channel's end goes and comes back: it is not shared between threads.
        let next;
        (told, next) = py.detach(move || {
            let next = told.recv_timeout(NAP);
            (told, next)
        });
        match next {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Class::Error.with("a thread of foreread has panicked; what it said is on stderr"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(signal) = logs::drain(py).and_then(|()| py.check_signals()).and_then(|()| look(py)) {
            interrupted.0.store(true, Ordering::Relaxed);
            // Whether it came to its end or not makes no difference here.
            py.detach(move || told.recv_timeout(patience).map(drop)).ok();
            return Err(signal);
        }
    }
}
