//! The pauses between attempts to connect: exponential backoff with jitter.
//!
//! The jitter is a function of a seed, so that simulated runs repeat. Processes that lost one peer
//! have different seeds and do not all return at one moment.

use std::time::Duration;

use foreread_types::mix;

/// The pauses of one process.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    seed: u64,
    attempts: u32,
}

impl Backoff {
    /// Pauses that double from `first` to `longest`, each longer by a random part of at most a
    /// half.
    pub fn new(first: Duration, longest: Duration, seed: u64) -> Self {
        Self { first, longest, seed, attempts: 0 }
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let pause = self.first.saturating_mul(1 << self.attempts.min(16)).min(self.longest);
        self.attempts = self.attempts.saturating_add(1);
        let part = mix(self.seed ^ mix(u64::from(self.attempts))) % 512;
        pause + pause / 1024 * (part as u32)
    }

    /// The next pause is the first one again: an attempt has succeeded.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_differ_between_seeds() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(5));
        let mut pauses = Backoff::new(first, longest, 7);
        let all: Vec<Duration> = (0..100).map(|_| pauses.pause()).collect();
        for (at, pause) in (0..).zip(&all) {
            let least = first.saturating_mul(1 << at.min(16)).min(longest);
            assert!((least..=least * 3 / 2).contains(pause), "{at}: {pause:?}");
        }
        pauses.reset();
        assert_eq!(pauses.pause(), all[0]);
        assert_ne!(Backoff::new(first, longest, 8).pause(), all[0]);
    }
}
