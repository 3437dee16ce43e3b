//! How long an open waits for the copy of its file. Times are milliseconds of the monotonic clock.

use super::{CopyWait, SlotValue};

/// How long the copying process may take to decide.
const MOST_TO_DECIDE: u64 = 250;

/// How long a copy may take. The copying process expects seconds at most.
const MOST_TO_COPY: u64 = 300_000;

/// A copying process is taken for dead after this time without a sign of life.
const SILENT: u64 = 2000;

/// The shortest and the longest time between two looks at the table, in microseconds.
const POLL: [u64; 2] = [300, 5000];

/// A look comes late by this part of the wait at most.
const LATE: u64 = 16;

/// The next step of an open that waits for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitStep {
    /// The copy is there.
    Copy,
    /// The original is to be opened.
    Original,
    /// The table is to be looked at again after so many microseconds.
    Sleep(u64),
}

impl SlotValue {
    /// The step of an open that has waited since `begun`. The copying process was `alive` last.
    pub fn wait_step(self, begun: u64, alive: u64, now: u64) -> WaitStep {
        let most = match self.wait {
            CopyWait::No => 0,
            CopyWait::Ask => MOST_TO_DECIDE,
            CopyWait::Coming => MOST_TO_COPY,
        };
        let waited = now.saturating_sub(begun);
        if self.is_present {
            WaitStep::Copy
        } else if waited >= most || !is_copier_alive(alive, now) {
            WaitStep::Original
        } else {
            let [shortest, longest] = POLL;
            WaitStep::Sleep((waited * 1000 / LATE).clamp(shortest, longest))
        }
    }
}

/// Whether the copying process lives, if it was `alive` last. Clocks of other namespaces may be
/// ahead or behind.
pub const fn is_copier_alive(alive: u64, now: u64) -> bool {
    alive.abs_diff(now) < SILENT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An open that begins at 10 s, of a file whose slot says `wait` until the copy is there. The
    /// copying process shows that it lives every 100 ms, until `dies`. Returns the last step, and
    /// the milliseconds of the wait.
    fn simulated(wait: CopyWait, copied: Option<u64>, dies: u64) -> (WaitStep, u64) {
        const BEGUN: u64 = 10_000;
        let mut waited = 0;
        loop {
            let now = waited / 1000;
            let is_present = copied.is_some_and(|copied| now >= copied);
            let wait = if is_present { CopyWait::No } else { wait };
            let value = SlotValue { is_present, wait, ..SlotValue::decode(0) };
            match value.wait_step(BEGUN, BEGUN + now.min(dies) / 100 * 100, BEGUN + now) {
                WaitStep::Sleep(microseconds) => waited += microseconds,
                step => return (step, now),
            }
        }
    }

    const NEVER: u64 = u64::MAX;

    #[test]
    // semantics: FILES-8
    fn open_waits_for_a_copy_while_its_maker_lives() {
        let (step, waited) = simulated(CopyWait::Coming, Some(4000), NEVER);
        assert!(step == WaitStep::Copy && (4000..4006).contains(&waited), "{waited}");
        assert_eq!(simulated(CopyWait::Ask, Some(0), NEVER), (WaitStep::Copy, 0));
        assert_eq!(simulated(CopyWait::No, None, NEVER), (WaitStep::Original, 0));
        // Nothing is waited for without end.
        let (step, waited) = simulated(CopyWait::Coming, None, NEVER);
        assert!(step == WaitStep::Original && (300_000..300_006).contains(&waited), "{waited}");
    }

    #[test]
    // semantics: FILES-8
    fn open_waits_a_quarter_of_a_second_for_a_decision() {
        let (step, waited) = simulated(CopyWait::Ask, None, NEVER);
        assert!(step == WaitStep::Original && (250..256).contains(&waited), "{waited}");
    }

    #[test]
    // semantics: FILES-7, FILES-8
    fn open_waits_two_seconds_for_a_dead_copying_process() {
        // Its last sign of life came 1 s after the beginning.
        let (step, waited) = simulated(CopyWait::Coming, None, 1050);
        assert!(step == WaitStep::Original && (3000..3006).contains(&waited), "{waited}");
        assert!(is_copier_alive(5000, 6999) && !is_copier_alive(5000, 7000) && !is_copier_alive(0, 7000));
        // A process of another namespace may have a clock that is ahead.
        assert!(is_copier_alive(6999, 5000) && !is_copier_alive(7000, 5000));
    }
}
