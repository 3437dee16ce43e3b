//! Signals that end a run: recorded, and checked between steps.
//!
//! A launcher may send a signal to a process and to its group, so it comes twice. Signals within
//! [`TOGETHER`] of the first one count as one. A later one kills the process at once.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator;
use signal_hook::low_level::emulate_default_handler;

/// Signals that come within this time are the same.
const TOGETHER: Duration = Duration::from_secs(1);

/// The signal that was received, if any.
#[derive(Debug, Default)]
pub struct Signals(Arc<AtomicUsize>);

impl Signals {
    /// Records SIGTERM and SIGINT from now on. A second signal, a second later or more, kills the
    /// process at once.
    pub fn watch() -> Result<Self> {
        let received = Arc::new(AtomicUsize::new(0));
        let mut incoming =
            iterator::Signals::new([SIGTERM, SIGINT]).context("cannot register signal handlers")?;
        let seen = Arc::clone(&received);
        let watch = move || {
            let mut first: Option<Instant> = None;
            for signal in incoming.forever() {
                match first {
                    None => {
                        first = Some(Instant::now());
                        seen.store(signal as usize, Ordering::Relaxed);
                    }
                    Some(first) if first.elapsed() < TOGETHER => {}
                    // It ends the process.
                    Some(_) => drop(emulate_default_handler(signal)),
                }
            }
        };
        let thread = std::thread::Builder::new().name("foreread-signals".to_owned());
        thread.spawn(watch).context("cannot start a thread")?;
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
