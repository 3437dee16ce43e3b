//! Groups of ranks, as the command sees them.
//!
//! The launcher's environment has this process's rank and the meeting place. Then ranks share their
//! caches automatically. Without a meeting place each rank reads alone, and a warning names the
//! setting.

#[cfg(feature = "share")]
use std::io::IsTerminal;
#[cfg(feature = "share")]
use std::time::Duration;

use anyhow::Result;
#[cfg(feature = "share")]
use foreread::ranks::Meeting;
use foreread::report::Merged;
use foreread::{Builder, Config, Loader};
use foreread_settings::Knobs;

use crate::signals::Signals;
#[cfg(feature = "share")]
use crate::{output, settings};

/// When a rank that waits for others first reports it: on a terminal, and in a log. Each next
/// report comes after twice the time. Every rank reports, because each knows whom it misses.
#[cfg(feature = "share")]
const FIRST_PROGRESS: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(60)];

/// Makes the run share its caches with other ranks, if there are any and a meeting place is known.
/// Returns whether it does.
#[cfg(feature = "share")]
pub(super) fn gather(builder: Builder, config: &Config, knobs: &Knobs) -> Result<(Builder, bool)> {
    if !settings::is_on(knobs, "peers") {
        return Ok((builder, false));
    }
    let environment = |name: &str| std::env::var(name).ok();
    let meeting = Meeting::of(config, &environment)
        .map_err(|error| anyhow::anyhow!("{error}; or have each rank read for itself, with --peers off"))?;
    let Some(meeting) = meeting else {
        // With --state, the caller refuses such a run.
        if config.rank.ranks > 1 && knobs.get("state").is_none() {
            tracing::warn!("{}", Meeting::ADVICE);
        }
        return Ok((builder, false));
    };
    let is_log = !std::io::stderr().is_terminal();
    let (mut printed, mut pause) = (std::time::Instant::now(), FIRST_PROGRESS[usize::from(is_log)]);
    let meeting = meeting.progress(move |waiting| {
        if printed.elapsed() > pause {
            (printed, pause) = (std::time::Instant::now(), pause * 2);
            output::note(&waiting.to_string());
        }
    });
    Ok((builder.peers(meeting), true))
}

/// Without the feature, no rank shares its caches.
#[cfg(not(feature = "share"))]
pub(super) fn gather(builder: Builder, _: &Config, _: &Knobs) -> Result<(Builder, bool)> {
    Ok((builder, false))
}

/// Waits until the other ranks are done, and only a short time after a signal.
pub(super) fn leave(loader: &Loader, signals: Option<&Signals>) -> foreread::Result<Option<Merged>> {
    match signals {
        Some(signals) => loader.leave_unless(Loader::FAREWELL, signals.flag()),
        None => loader.leave(Loader::FAREWELL),
    }
}
