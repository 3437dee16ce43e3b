//! The signals by which schedulers and people ask a run to end: noted, and looked at between steps.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Whether the run was asked to end.
#[derive(Debug, Default)]
pub struct Signals(Arc<AtomicUsize>);

impl Signals {
    /// Notes SIGTERM and SIGINT from now on, instead of dying of them. A second one kills at once: whoever sends it
    /// has waited long enough.
    pub fn watch() -> Result<Self> {
        let (again, noted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        for signal in [SIGTERM, SIGINT] {
            // In this order: the first signal finds the flag down and raises it, the second finds it up.
            flag::register_conditional_default(signal, Arc::clone(&again))
                .and_then(|_| flag::register(signal, Arc::clone(&again)))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&noted), signal as usize))
                .context("signals cannot be watched")?;
        }
        Ok(Self(noted))
    }

    /// Whether a signal has come, for who looks from elsewhere.
    pub fn flag(&self) -> impl Fn() -> bool + Send + 'static + use<> {
        let noted = Arc::clone(&self.0);
        move || noted.load(Ordering::Relaxed) != 0
    }

    /// Fails if a signal has come.
    pub fn check(&self) -> Result<()> {
        anyhow::ensure!(self.noted().is_none(), "interrupted");
        Ok(())
    }

    /// How the program ends, if a signal has come.
    pub fn noted(&self) -> Option<ExitCode> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(ExitCode::from(128 + signal as u8)),
        }
    }
}
