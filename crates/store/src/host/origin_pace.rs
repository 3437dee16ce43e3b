//! The speed of reads of storage, measured by the reads that have ended lately.

/// Reads that ended so long ago say nothing of the present, in nanoseconds.
const RECENT: u64 = 600_000_000_000;

/// The time with reads over which a rate is measured, and the least where there were fewer.
const WINDOW: u64 = 1_000_000_000;
const SHORT: u64 = WINDOW / 4;

/// The time and the rate of reads of storage. Times are in nanoseconds.
///
/// The rate is that of the time in which reads were under way: storage that is seldom read is not
/// slow.
#[derive(Debug, Default)]
pub(super) struct OriginPace {
    /// The time from a request to its sample, over about eight reads, and when it was noted.
    wait: Option<(u64, u64)>,
    /// The time with reads in the present window, the bytes of ended reads, and the end of the last
    /// one.
    window: (u64, u64, u64),
    /// The highest bytes per second of a window lately, and when that was.
    rate: Option<(u64, u64)>,
}

impl OriginPace {
    /// A read of `bytes` has ended, which was requested `waited` ago.
    pub(super) fn ended(&mut self, bytes: u64, waited: u64, now: u64) {
        let before = self.wait.map_or(waited, |(wait, _)| wait);
        self.wait = Some(((before * 7 + waited) / 8, now));
        let (time, _, last) = self.window;
        let more = now.saturating_sub(last.max(now.saturating_sub(waited)));
        // Reads that end together are of one window.
        if time >= WINDOW && more > 0 {
            if let Some(rate) = self.rate_of_window(now)
                && self.rate.filter(|known| is_recent(*known, now)).is_none_or(|(known, _)| rate >= known)
            {
                self.rate = Some((rate, now));
            }
            self.window = (0, 0, last);
        }
        let (time, so_far, _) = self.window;
        self.window = (time + more, so_far + bytes, now);
    }

    /// The bytes per second of the present window, if it has any lately.
    fn rate_of_window(&self, now: u64) -> Option<u64> {
        let (time, bytes, last) = self.window;
        let rate = u128::from(bytes) * 1_000_000_000 / u128::from(time.max(SHORT));
        let is_recent = bytes > 0 && now.saturating_sub(last) < RECENT;
        is_recent.then(|| u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// The time from a request to its sample, if there were any lately.
    pub(super) fn wait(&self, now: u64) -> Option<u64> {
        let is_recent = |(wait, noted): &(u64, u64)| now.saturating_sub(*noted) < RECENT + 4 * wait;
        self.wait.filter(is_recent).map(|(wait, _)| wait)
    }

    /// The bytes per second of reads, if there were any lately.
    pub(super) fn rate(&self, now: u64) -> Option<u64> {
        let highest = self.rate.filter(|known| is_recent(*known, now)).map(|(rate, _)| rate);
        highest.max(self.rate_of_window(now))
    }
}

/// Whether a rate was noted lately.
fn is_recent((_, noted): (u64, u64), now: u64) -> bool {
    now.saturating_sub(noted) < RECENT
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Guards against this fault: the speed of an origin was not known, or too low, while its node
    /// waited for another one and read nothing. So it waited for seconds.
    #[test]
    // semantics: RANK-18
    fn rate_is_that_of_the_time_with_reads() {
        let mut pace = OriginPace::default();
        pace.ended(2_000_000, 5 * MS, 5 * MS);
        assert_eq!(pace.rate(3000 * MS), Some(8_000_000));
        // Forty at once, much later.
        (0..40).for_each(|_| pace.ended(2_000_000, 995 * MS, 5000 * MS));
        let rate = pace.rate(6000 * MS).unwrap();
        assert!((81_000_000..83_000_000).contains(&rate), "{rate}");
    }

    #[test]
    fn rate_is_the_highest_of_lately() {
        let mut pace = OriginPace::default();
        assert_eq!((pace.wait(0), pace.rate(0)), (None, None));
        // 1 MB every 10 ms for two seconds, and then every 100 ms.
        for at in (0..200).map(|at| at * 10 * MS) {
            pace.ended(1_000_000, 20 * MS, at);
        }
        let rate = pace.rate(2000 * MS).unwrap();
        assert!((98_000_000..102_000_000).contains(&rate), "{rate}");
        for at in (20..50).map(|at| at * 100 * MS) {
            pace.ended(1_000_000, 20 * MS, at);
        }
        assert_eq!((pace.rate(5000 * MS), pace.wait(5000 * MS)), (Some(rate), Some(20 * MS)));
        assert_eq!((pace.rate(700_000 * MS), pace.wait(700_000 * MS)), (None, None));
    }
}
