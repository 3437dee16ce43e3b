//! Ranks that work together, as the command sees them.
//!
//! The launcher's environment says which rank this is and where ranks can meet; then they share their caches without being
//! told to. Where nothing says so, each reads for itself, and is told what to set.

use std::time::Duration;

use anyhow::Result;
#[cfg(feature = "peer")]
use foreread::Meeting;
use foreread::{Builder, Config, Knobs, Loader, Merged};

/// How long a rank that is done answers others that are not.
const FAREWELL: Duration = Duration::from_secs(600);

/// The same after a signal: who sent it waits.
const HASTE: Duration = Duration::from_secs(5);

/// The first seconds of waiting are everyone's; then what is waited for is said this often.
#[cfg(feature = "peer")]
const SAID: Duration = Duration::from_secs(3);

/// Has the run meet other ranks, if there are any and they can; the second says whether.
#[cfg(feature = "peer")]
pub(super) fn gather(builder: Builder, config: &Config, knobs: &Knobs) -> Result<(Builder, bool)> {
    match knobs.get("peers").map_or("auto", |(value, _)| value) {
        "off" => return Ok((builder, false)),
        "auto" => {}
        _ => return Err(knobs.refuse("peers", "it is auto or off").into()),
    }
    let environment = |name: &str| std::env::var(name).ok();
    let Some(meeting) = Meeting::of(config, &environment)? else {
        if config.world_size > 1 {
            tracing::warn!(
                "ranks read for themselves: nothing says where they could meet; set FOREREAD_MEET to rank 0's \
                 host:port and FOREREAD_TOKEN to a secret, or FOREREAD_MEET to a directory that all ranks see"
            );
        }
        return Ok((builder, false));
    };
    let mut said = std::time::Instant::now();
    let meeting = meeting.progress(move |waiting| {
        if said.elapsed() > SAID {
            said = std::time::Instant::now();
            eprintln!("{waiting}");
        }
    });
    Ok((builder.together(meeting), true))
}

/// Without the feature, every rank is alone.
#[cfg(not(feature = "peer"))]
pub(super) fn gather(builder: Builder, _: &Config, _: &Knobs) -> Result<(Builder, bool)> {
    Ok((builder, false))
}

/// Waits until others are done; in haste after a signal.
pub(super) fn leave(loader: &Loader, haste: bool) -> Option<Merged> {
    loader.leave(if haste { HASTE } else { FAREWELL })
}
