//! The wait of an open for the copy of its file.
//!
//! The kernel keeps no pages of some file systems over opens, such as those of buckets. There, a
//! copy that is made next to a program reads its file a second time. So the copy is made first, and
//! the program reads that. The price is that the open takes as long as the copy.
//!
//! A wait ends with the copy, with the copying process, or after some time, whichever comes first.
//! Then the original is opened.

use crate::layout::{CopyWait, SlotValue};
use crate::mapped::Mapped;
use crate::system;

/// How long the copying process may take to decide, in milliseconds.
const MOST_TO_DECIDE: u64 = 250;

/// How long a copy may take, in milliseconds. The copying process expects seconds at most.
const MOST_TO_COPY: u64 = 300_000;

/// A copying process is taken for dead after so many milliseconds.
const SILENT: u64 = 2000;

/// The shortest and the longest time between two looks at the table, in nanoseconds.
const POLL: [i64; 2] = [300_000, 5_000_000];

/// A look comes late by this part of the wait at most.
const LATE: u64 = 16;

/// Whether a copy may come that an open has to wait for.
pub(crate) fn may_come(mapped: Mapped, value: SlotValue) -> bool {
    let may_come = match value.wait {
        CopyWait::No => false,
        CopyWait::Ask => mapped.asks(),
        CopyWait::Coming => true,
    };
    may_come && mapped.is_heard() && system::milliseconds().is_some_and(|now| is_alive(mapped, now))
}

/// Clocks of other namespaces may be ahead or behind.
fn is_alive(mapped: Mapped, now: u64) -> bool {
    mapped.alive().abs_diff(now) < SILENT
}

/// Waits for the copy of a file. Whether it is there.
pub(crate) fn for_copy(mapped: Mapped, hash: u64) -> bool {
    let Some(begun) = system::milliseconds() else { return false };
    loop {
        let Some((_, value)) = mapped.find(hash) else { return false };
        let value = SlotValue::decode(value);
        if value.is_present {
            return true;
        }
        let most = match value.wait {
            CopyWait::No => return false,
            CopyWait::Ask => MOST_TO_DECIDE,
            CopyWait::Coming => MOST_TO_COPY,
        };
        let Some(now) = system::milliseconds() else { return false };
        let waited = now.saturating_sub(begun);
        if waited >= most || !is_alive(mapped, now) {
            return false;
        }
        let [shortest, longest] = POLL;
        system::sleep((waited * (1_000_000 / LATE)).clamp(shortest as u64, longest as u64) as i64);
    }
}
