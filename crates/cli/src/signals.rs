//! Signals that end a run: recorded, and checked between steps.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The signal that was received, if any.
#[derive(Debug, Default)]
pub struct Signals(Arc<AtomicUsize>);

impl Signals {
    /// Records SIGTERM and SIGINT from now on. A second signal kills the process at once.
    pub fn watch() -> Result<Self> {
        let (again, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        for signal in [SIGTERM, SIGINT] {
            // The order matters: the first signal finds the flag unset and sets it, the second
            // finds it set.
            flag::register_conditional_default(signal, Arc::clone(&again))
                .and_then(|_| flag::register(signal, Arc::clone(&again)))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&received), signal as usize))
                .context("cannot register signal handlers")?;
        }
        Ok(Self(received))
    }

    /// A function that tells whether a signal was received.
    pub fn flag(&self) -> impl Fn() -> bool + Send + 'static + use<> {
        let received = Arc::clone(&self.0);
        move || received.load(Ordering::Relaxed) != 0
    }

    /// Fails if a signal was received.
    pub fn check(&self) -> Result<()> {
        anyhow::ensure!(self.received().is_none(), "interrupted");
        Ok(())
    }

    /// The exit code, if a signal was received.
    pub fn received(&self) -> Option<ExitCode> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(ExitCode::from(128 + signal as u8)),
        }
    }
}
