//! Waits that Ctrl-C interrupts.
//!
//! Python runs signal handlers on its main thread, between two bytecode instructions. A main thread
//! that waits in native code never runs them. So long work runs on a separate thread. The calling
//! thread sleeps without the GIL and checks for signals at intervals. Work that continues after the
//! caller has been interrupted ends automatically, and its result is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors::{self, ExceptionClass};
use crate::logs;

/// The interval between two checks for signals.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Set when the caller was interrupted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs `work` on a separate thread and waits for it. An exception of a signal handler ends the
/// wait: `work` is notified and has `timeout` to finish.
pub(crate) fn run_interruptible<T: Send + 'static>(
    py: Python<'_>,
    timeout: Duration,
    work: impl FnOnce(Interrupted) -> T + Send + 'static,
) -> PyResult<T> {
    run_polling(py, timeout, &mut |_| Ok(()), work)
}

/// The same for work that may fail. An interrupted caller does not wait for its end.
pub(crate) fn run_fallible<T: Send + 'static, E: Into<foreread::Error> + Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(Interrupted) -> Result<T, E> + Send + 'static,
) -> PyResult<T> {
    run_interruptible(py, Duration::ZERO, work)?.map_err(errors::raised)
}

/// The same as [`run_interruptible`], calling `poll` at each interval. Its error ends the wait too.
pub(crate) fn run_polling<T: Send + 'static>(
    py: Python<'_>,
    timeout: Duration,
    poll: &mut dyn FnMut(Python<'_>) -> PyResult<()>,
    work: impl FnOnce(Interrupted) -> T + Send + 'static,
) -> PyResult<T> {
    let interrupted = Interrupted::default();
    let (sender, mut receiver) = mpsc::sync_channel(1);
    let flag = interrupted.clone();
    let thread = std::thread::Builder::new().name("foreread-wait".to_owned()).spawn(move || {
        // Sending fails after the caller was interrupted.
        let _ = sender.send(work(flag));
    });
    thread.map_err(|error| ExceptionClass::Error.with(format!("cannot start a thread: {error}")))?;
    loop {
        // The receiver is not `Sync`, so it moves into the closure and back.
        let next;
        (receiver, next) = py.detach(move || {
            let next = receiver.recv_timeout(POLL_INTERVAL);
            (receiver, next)
        });
        match next {
            Ok(done) => {
                // There may be no next call that passes the warnings of this one.
                logs::drain(py)?;
                return Ok(done);
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(ExceptionClass::Error
                    .with("a thread of foreread has panicked; see stderr for its message"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(signal) = logs::drain(py).and_then(|()| py.check_signals()).and_then(|()| poll(py)) {
            interrupted.0.store(true, Ordering::Relaxed);
            py.detach(move || receiver.recv_timeout(timeout).map(drop)).ok();
            return Err(signal);
        }
    }
}
