//! What a process did for others and others for it.

use std::sync::{Mutex, MutexGuard};

use crate::lock;

/// Sums of one process, kept as it goes.
#[derive(Debug, Default)]
pub struct Counters {
    tally: Mutex<Tally>,
    /// The last one who named this job and has another token or version, in words.
    mistaken: Mutex<Option<String>>,
}

/// The sums at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Samples that others were sent.
    pub served: u64,
    /// Their bytes.
    pub served_bytes: u64,
    /// Samples that others asked for and were told why they do not get them.
    pub refused: u64,
    /// Samples that others were asked for.
    pub asked: u64,
    /// Samples that came.
    pub got: u64,
    /// Their bytes.
    pub got_bytes: u64,
    /// Samples that were given up because they did not come in time, or nothing was said of them.
    pub late: u64,
    /// Samples that were given up because their rank fell silent or its connection ended.
    pub lost: u64,
    /// Connections of somebody who did not prove to be of this job.
    pub strangers: u64,
    /// Messages that were sent to other ranks for the meeting and during the run, heartbeats aside.
    pub messages: u64,
    /// How often the catalogs were sent to another rank.
    pub bulks: u64,
}

impl Counters {
    /// The sums now.
    pub fn read(&self) -> Tally {
        *self.now()
    }

    /// The sums, to be added to.
    pub(crate) fn now(&self) -> MutexGuard<'_, Tally> {
        lock(&self.tally)
    }

    /// A process named this job and has another token or version.
    pub(crate) fn note_mistaken(&self, who: String) {
        *lock(&self.mistaken) = Some(who);
    }

    /// The last process that named this job and has another token or version, if there was one. It may be a lie.
    pub(crate) fn mistaken(&self) -> Option<String> {
        lock(&self.mistaken).clone()
    }
}
