//! A discrete-event scheduler: simulated time, seeded randomness and the hash of a trace.
//!
//! Simulations of state machines run on it. Events are delivered in the order of their time. Events
//! of one time are delivered in the order in which they were scheduled. There is no thread, no
//! clock and no hash order, so one seed gives one run: [`Scheduler::digest`] is equal for two runs
//! of a seed. Delivered events enter the digest by their `Debug` text, and a simulation adds its
//! observations with [`Scheduler::note`].
//!
//! The price is that the `Debug` text of an event must not contain addresses, or the digests
//! differ.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use xxhash_rust::xxh3::Xxh3;

/// Identifies a scheduled event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventId(Duration, u64);

/// Time-ordered events of type `E`.
pub struct Scheduler<E> {
    now: Duration,
    sequence: u64,
    queue: BTreeMap<EventId, E>,
    random: ChaCha8Rng,
    trace: Trace,
}

struct Trace {
    hash: Xxh3,
    /// Every line is printed as well.
    verbose: bool,
}

impl<E: fmt::Debug> Scheduler<E> {
    /// No events, at time 0. With the environment variable `FOREREAD_TRACE` the trace is printed.
    pub fn new(seed: u64) -> Self {
        Self {
            now: Duration::ZERO,
            sequence: 0,
            queue: BTreeMap::new(),
            random: ChaCha8Rng::seed_from_u64(seed),
            trace: Trace { hash: Xxh3::new(), verbose: std::env::var_os("FOREREAD_TRACE").is_some() },
        }
    }

    /// The simulated time since the start.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Schedules `event` after `delay`.
    pub fn after(&mut self, delay: Duration, event: E) -> EventId {
        self.sequence += 1;
        let id = EventId(self.now + delay, self.sequence);
        self.queue.insert(id, event);
        id
    }

    /// Removes a scheduled event. `None` if it was delivered already.
    pub fn cancel(&mut self, id: EventId) -> Option<E> {
        self.queue.remove(&id)
    }

    /// Advances the time to the next event and returns it. `None` if none is scheduled.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator would borrow the scheduler for the whole run"
    )]
    pub fn next(&mut self) -> Option<E> {
        let (EventId(at, _), event) = self.queue.pop_first()?;
        self.now = at;
        self.note(format_args!("{event:?}"));
        Some(event)
    }

    /// Adds a line to the trace, with the time.
    pub fn note(&mut self, line: fmt::Arguments<'_>) {
        let now = self.now.as_nanos();
        // A hash takes everything.
        let _ = writeln!(self.trace, "{now} {line}");
    }

    /// The hash of the trace so far.
    pub fn digest(&self) -> u128 {
        self.trace.hash.digest128()
    }

    /// A random number below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below 0");
        let product = u128::from(self.random.next_u64()) * u128::from(bound);
        (product >> 64) as u64
    }

    /// A random duration from `least` to `most`, with microseconds.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let range = most.saturating_sub(least).as_micros() as u64;
        least + Duration::from_micros(self.below(range + 1))
    }

    /// Whether an event of this probability, in thousandths, happens.
    pub fn happens(&mut self, thousandths: u64) -> bool {
        self.below(1000) < thousandths
    }
}

impl Write for Trace {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.hash.update(text.as_bytes());
        if self.verbose {
            print!("{text}");
        }
        Ok(())
    }
}

impl<E> fmt::Debug for Scheduler<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").field("now", &self.now).field("events", &self.queue.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_ordered_by_time_then_by_insertion() {
        let mut scheduler = Scheduler::new(1);
        let [late, soon] = [20, 10].map(Duration::from_millis);
        scheduler.after(late, "late");
        scheduler.after(soon, "soon");
        let cancelled = scheduler.after(soon, "cancelled");
        scheduler.after(soon, "soon after");
        assert_eq!(scheduler.cancel(cancelled), Some("cancelled"));
        assert_eq!((scheduler.next(), scheduler.now()), (Some("soon"), soon));
        scheduler.after(Duration::ZERO, "at once");
        let rest: Vec<&str> = std::iter::from_fn(|| scheduler.next()).collect();
        assert_eq!((rest, scheduler.now()), (vec!["soon after", "at once", "late"], late));
    }

    #[test]
    fn digest_depends_on_the_seed_alone() {
        let run = |seed| {
            let mut scheduler = Scheduler::new(seed);
            for number in 0..100 {
                let delay = scheduler.between(Duration::ZERO, Duration::from_secs(1));
                scheduler.after(delay, number);
            }
            while scheduler.next().is_some() {}
            scheduler.digest()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }
}
