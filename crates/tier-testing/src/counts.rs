//! The counts of a fake tier.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foreread_tier::TierError;
use foreread_types::SampleKey;

/// The requests and answers up to a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Requests that have started.
    pub requests: u64,
    /// Bytes in the answers.
    pub bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Requests that were dropped after their start and before the answer.
    pub cancelled: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// The most requests in flight at once.
    pub peak_in_flight: u64,
}

#[derive(Debug, Default)]
struct CountsState {
    tally: ReadCounts,
    order: Vec<SampleKey>,
}

/// A shared [`ReadCounts`] and the order in which requests started. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ReadCounter(Arc<Mutex<CountsState>>);

impl ReadCounter {
    fn lock(&self) -> MutexGuard<'_, CountsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current counts.
    pub fn tally(&self) -> ReadCounts {
        self.lock().tally.clone()
    }

    /// The requested samples, in the order in which the requests started.
    pub fn order(&self) -> Vec<SampleKey> {
        self.lock().order.clone()
    }

    /// Resets everything except the requests in flight.
    pub fn reset(&self) {
        let mut state = self.lock();
        let in_flight = state.tally.in_flight;
        *state = CountsState {
            tally: ReadCounts { in_flight, peak_in_flight: in_flight, ..ReadCounts::default() },
            order: vec![],
        };
    }

    /// One request starts. It ends with [`CountedRead::end`], or is cancelled when the result is
    /// dropped.
    pub(crate) fn start(&self, key: SampleKey) -> CountedRead {
        let mut state = self.lock();
        state.order.push(key);
        let tally = &mut state.tally;
        tally.requests += 1;
        tally.in_flight += 1;
        tally.peak_in_flight = tally.peak_in_flight.max(tally.in_flight);
        CountedRead { counts: self.clone(), ended: false }
    }
}

/// One request in flight.
#[derive(Debug)]
pub(crate) struct CountedRead {
    counts: ReadCounter,
    ended: bool,
}

impl CountedRead {
    pub(crate) fn end(mut self, result: &Result<bytes::Bytes, TierError>) {
        self.ended = true;
        let tally = &mut self.counts.lock().tally;
        match result {
            Ok(bytes) => tally.bytes += bytes.len() as u64,
            Err(_) => tally.errors += 1,
        }
    }
}

impl Drop for CountedRead {
    fn drop(&mut self) {
        let tally = &mut self.counts.lock().tally;
        tally.in_flight -= 1;
        if !self.ended {
            tally.cancelled += 1;
        }
    }
}
