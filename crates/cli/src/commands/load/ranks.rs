//! Ranks that work together, as the command sees them.
//!
//! The launcher's environment says which rank this is and where ranks can meet; then they share their caches without being
//! told to. Where nothing says so, each reads for itself, and is told what to set.

use std::time::Duration;

use anyhow::Result;
#[cfg(feature = "peer")]
use foreread::ranks::Meeting;
use foreread::report::Merged;
use foreread::{Builder, Config, Loader};
use foreread_settings::Knobs;

#[cfg(feature = "peer")]
use crate::settings;
use crate::signals::Signals;

/// How long a rank that is done answers others that are not, after a signal: who sent it waits.
const HASTE: Duration = Duration::from_secs(5);

/// The first seconds of waiting are everyone's; then what is waited for is said, each time after twice as long.
#[cfg(feature = "peer")]
const SAID: Duration = Duration::from_secs(3);

/// How a rank stands to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Company {
    /// There are no others, or it is to do without.
    Alone,
    /// There are, and nothing says where they could meet.
    #[cfg(feature = "peer")]
    Unmet,
    /// It works together with them.
    #[cfg(feature = "peer")]
    Together,
}

impl Company {
    pub(super) fn is_together(self) -> bool {
        #[cfg(feature = "peer")]
        return self == Self::Together;
        #[cfg(not(feature = "peer"))]
        false
    }

    /// Says what could be better.
    pub(super) fn advise(self) {
        #[cfg(feature = "peer")]
        if self == Self::Unmet {
            tracing::warn!("{}", Meeting::ADVICE);
        }
    }
}

/// Has the run meet other ranks, if there are any and they can.
#[cfg(feature = "peer")]
pub(super) fn gather(builder: Builder, config: &Config, knobs: &Knobs) -> Result<(Builder, Company)> {
    if !settings::is_on(knobs, "peers")? {
        return Ok((builder, Company::Alone));
    }
    let environment = |name: &str| std::env::var(name).ok();
    let meeting = Meeting::of(config, &environment)
        .map_err(|error| anyhow::anyhow!("{error}; or have each rank read for itself, with --peers off"))?;
    let Some(meeting) = meeting else {
        let company = if config.world_size > 1 { Company::Unmet } else { Company::Alone };
        return Ok((builder, company));
    };
    let (mut said, mut pause) = (std::time::Instant::now(), SAID);
    let meeting = meeting.progress(move |waiting| {
        if said.elapsed() > pause {
            (said, pause) = (std::time::Instant::now(), pause * 2);
            eprintln!("{waiting}");
        }
    });
    Ok((builder.together(meeting), Company::Together))
}

/// Without the feature, every rank is alone.
#[cfg(not(feature = "peer"))]
pub(super) fn gather(builder: Builder, _: &Config, _: &Knobs) -> Result<(Builder, Company)> {
    Ok((builder, Company::Alone))
}

/// Waits until others are done; in haste once a signal has come.
pub(super) fn leave(loader: &Loader, signals: Option<&Signals>) -> foreread::Result<Option<Merged>> {
    match signals {
        Some(signals) => loader.leave_unless(Loader::FAREWELL, HASTE, signals.flag()),
        None => loader.leave(Loader::FAREWELL),
    }
}
