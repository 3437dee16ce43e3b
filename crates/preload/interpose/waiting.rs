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

/// How long a copy may take, in milliseconds.
const MOST_TO_COPY: u64 = 60_000;

/// A copying process is taken for dead after so many milliseconds.
const SILENT: u64 = 2000;

/// The time between two looks at the table, in nanoseconds.
const POLL: i64 = 300_000;

/// Whether a copy may come that an open has to wait for.
pub(crate) fn may_come(mapped: Mapped, value: SlotValue) -> bool {
    let is_asked = match value.wait {
        CopyWait::No => false,
        CopyWait::Ask => mapped.asks(),
        CopyWait::Coming => true,
    };
    is_asked && system::milliseconds().is_some_and(|now| is_alive(mapped, now))
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
        let may_wait = |now: u64| now.saturating_sub(begun) < most && is_alive(mapped, now);
        if !system::milliseconds().is_some_and(may_wait) {
            return false;
        }
        system::sleep(POLL);
    }
}
