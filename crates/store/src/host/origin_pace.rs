//! How fast reads of storage are, from those that have ended lately.

/// Reads that ended so long ago say nothing of the present, in nanoseconds.
const RECENT: u64 = 30_000_000_000;

/// The time over which a rate is measured.
const WINDOW: u64 = 1_000_000_000;

/// The time and the rate of reads of storage. Times are in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct OriginPace {
    /// The time from a request to its sample, over about eight reads, and when it was noted.
    wait: Option<(u64, u64)>,
    /// The beginning of the present window, and the bytes in it.
    window: (u64, u64),
    /// The highest bytes per second of a window lately, and when that was.
    rate: Option<(u64, u64)>,
}

impl OriginPace {
    /// A read of `bytes` has ended, which was requested `waited` ago.
    pub(super) fn ended(&mut self, bytes: u64, waited: u64, now: u64) {
        let before = self.wait.map_or(waited, |(wait, _)| wait);
        self.wait = Some(((before * 7 + waited) / 8, now));
        let (begun, so_far) = self.window;
        let time = now.saturating_sub(begun);
        if time < WINDOW {
            self.window.1 = so_far + bytes;
            return;
        }
        let rate = (u128::from(so_far) * 1_000_000_000 / u128::from(time)) as u64;
        if rate >= self.rate(now).unwrap_or_default() {
            self.rate = Some((rate, now));
        }
        self.window = (now, bytes);
    }

    /// The time from a request to its sample, if there were any lately.
    pub(super) fn wait(&self, now: u64) -> Option<u64> {
        let is_recent = |(wait, noted): &(u64, u64)| now.saturating_sub(*noted) < RECENT + 4 * wait;
        self.wait.filter(is_recent).map(|(wait, _)| wait)
    }

    /// The bytes per second of reads, if there were any lately.
    pub(super) fn rate(&self, now: u64) -> Option<u64> {
        let is_recent = |(rate, noted): &(u64, u64)| *rate > 0 && now.saturating_sub(*noted) < RECENT;
        self.rate.filter(is_recent).map(|(rate, _)| rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

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
        assert_eq!((pace.rate(40_000 * MS), pace.wait(40_000 * MS)), (None, None));
    }
}
