//! The wait of an open for the copy of its file.
//!
//! The kernel keeps no pages of some file systems over opens, such as those of buckets. There, a
//! copy that is made next to a program reads its file a second time. So the copy is made first, and
//! the program reads that. The price is that the open takes as long as the copy.
//!
//! A wait ends with the copy, with the copying process, or after some time, whichever comes first.
//! Then the original is opened.

use crate::layout::{CopyWait, SlotValue, WaitStep, is_copier_alive};
use crate::mapped::Mapped;
use crate::system;

/// Whether a copy may come that an open has to wait for.
pub(crate) fn may_come(mapped: Mapped, value: SlotValue) -> bool {
    let may_come = match value.wait {
        CopyWait::No => false,
        CopyWait::Ask => mapped.asks(),
        CopyWait::Coming => true,
    };
    let is_alive = || system::milliseconds().is_some_and(|now| is_copier_alive(mapped.alive(), now));
    may_come && mapped.is_heard() && is_alive()
}

/// Waits for the copy of a file. Whether it is there.
pub(crate) fn for_copy(mapped: Mapped, hash: u64) -> bool {
    let Some(begun) = system::milliseconds() else { return false };
    loop {
        let Some((_, value)) = mapped.find(hash) else { return false };
        let Some(now) = system::milliseconds() else { return false };
        match SlotValue::decode(value).wait_step(begun, mapped.alive(), now) {
            WaitStep::Copy => return true,
            WaitStep::Original => return false,
            WaitStep::Sleep(microseconds) => system::sleep(microseconds),
        }
    }
}
