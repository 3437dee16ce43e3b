//! What goes wrong, and when.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use foreread_types::mix;

use super::tally::Kind;
use crate::content::unit;

/// What goes wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The answer comes this much later.
    Late(Duration),
    /// `500 InternalError`.
    Internal,
    /// `503 SlowDown`, with `Retry-After` in seconds where given.
    SlowDown(Option<u64>),
    /// `403 ExpiredToken`.
    Expired,
    /// The connection is closed instead of an answer.
    Close,
    /// The connection is closed in the middle of the body, before what `Content-Length` says.
    CloseInBody,
    /// The body is half as long as the object, and `Content-Length` says so.
    Half,
    /// As if the object had just been replaced: `412` to `If-Match`, else other bytes under another tag.
    Replaced,
    /// No answer for so long.
    StallHeaders(Duration),
    /// The body stops in its middle for so long.
    StallBody(Duration),
}

/// Which requests go wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// All.
    Always,
    /// The first so many.
    First(u64),
    /// Each with this probability, decided by the seed and the number of the request.
    Chance(f64),
    /// In every `of` requests, the last `length` in a row.
    Burst {
        /// How many in a row.
        length: u64,
        /// Of how many.
        of: u64,
    },
}

impl When {
    fn fits(self, number: u64, seed: u64) -> bool {
        match self {
            Self::Always => true,
            Self::First(count) => number < count,
            Self::Chance(probability) => unit(seed ^ mix(number)) < probability,
            Self::Burst { length, of } => number % of >= of.saturating_sub(length),
        }
    }
}

/// A rule: requests of one kind, when, and what.
#[derive(Debug)]
struct FaultRule {
    kind: Kind,
    when: When,
    fault: Fault,
    /// Requests of that kind since the rule is there.
    seen: AtomicU64,
}

/// The rules in force; the first that fits counts.
#[derive(Debug)]
pub(super) struct Faults {
    seed: u64,
    rules: Mutex<Vec<FaultRule>>,
}

impl Faults {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, rules: Mutex::default() }
    }

    pub(super) fn add(&self, kind: Kind, when: When, fault: Fault) {
        let rule = FaultRule { kind, when, fault, seen: AtomicU64::new(0) };
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).push(rule);
    }

    pub(super) fn clear(&self) {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(super) fn judge(&self, kind: Kind) -> Option<Fault> {
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = None;
        for (index, rule) in (0..).zip(rules.iter().filter(|rule| rule.kind == kind)) {
            // Each rule draws for itself, also where one before it has decided.
            let number = rule.seen.fetch_add(1, Relaxed);
            if found.is_none() && rule.when.fits(number, mix(self.seed ^ index)) {
                found = Some(rule.fault);
            }
        }
        found
    }
}

/// A ceiling on requests a second: above it, they are refused. A twentieth of a second's worth may come at once.
#[derive(Debug)]
pub(super) struct RequestCeiling {
    rate: f64,
    state: Mutex<(Instant, f64)>,
}

impl RequestCeiling {
    pub(super) fn new(rate: f64) -> Self {
        Self { rate, state: Mutex::new((Instant::now(), Self::burst(rate))) }
    }

    fn burst(rate: f64) -> f64 {
        (rate / 20.0).max(1.0)
    }

    pub(super) fn admits(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let (last, tokens) = *state;
        let tokens =
            (tokens + now.duration_since(last).as_secs_f64() * self.rate).min(Self::burst(self.rate));
        let admits = tokens >= 1.0;
        *state = (now, if admits { tokens - 1.0 } else { tokens });
        admits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_count_their_own_kind_and_the_first_that_fits_counts() {
        let faults = Faults::new(1);
        faults.add(Kind::Get, When::First(2), Fault::Internal);
        faults.add(Kind::Get, When::Burst { length: 1, of: 4 }, Fault::Close);
        assert_eq!(faults.judge(Kind::List), None);
        let drawn: Vec<_> = (0..8).map(|_| faults.judge(Kind::Get)).collect();
        let (internal, close) = (Some(Fault::Internal), Some(Fault::Close));
        assert_eq!(drawn, [internal, internal, None, close, None, None, None, close]);
        faults.clear();
        faults.add(Kind::Get, When::Chance(0.5), Fault::Half);
        let half = (0..1000).filter(|_| faults.judge(Kind::Get).is_some()).count();
        assert!((400..600).contains(&half), "{half} of 1000");
    }

    #[test]
    fn request_ceiling_admits_one_burst() {
        let ceiling = RequestCeiling::new(0.001);
        assert!(ceiling.admits());
        assert!(!ceiling.admits());
    }
}
