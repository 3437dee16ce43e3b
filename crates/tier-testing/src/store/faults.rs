//! Injected faults of the test store.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use foreread_types::mix;

use super::counters::Kind;
use crate::content::unit;

/// The fault of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The answer is delayed.
    Late(Duration),
    /// `500 InternalError`.
    Internal,
    /// `503 SlowDown`, optionally with `Retry-After` in seconds.
    SlowDown(Option<u64>),
    /// `403 ExpiredToken`.
    Expired,
    /// The connection is closed instead of an answer.
    Close,
    /// The connection is closed in the middle of the body, before `Content-Length`.
    CloseInBody,
    /// The body and `Content-Length` have half the object's length.
    Half,
    /// As if the object had just been replaced: `412` to `If-Match`, otherwise other bytes under
    /// another tag.
    Replaced,
    /// The headers are delayed.
    StallHeaders(Duration),
    /// The body pauses in its middle.
    StallBody(Duration),
}

/// Which requests get a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// All.
    Always,
    /// The first requests.
    First(u64),
    /// Each with this probability, decided by the seed and the number of the request.
    Chance(f64),
    /// This request and all later ones.
    From(u64),
    /// The last `length` of every `of` requests, but at most three of each object. Otherwise a
    /// burst would be an outage for a client with few requests in flight.
    Burst {
        /// The length of the burst.
        length: u64,
        /// The length of the period.
        of: u64,
    },
}

/// The most faults that bursts of one rule cause for one object.
const EACH: u64 = 3;

impl When {
    fn fits(self, number: u64, seed: u64) -> bool {
        match self {
            Self::Always => true,
            Self::First(count) => number < count,
            Self::From(first) => number >= first,
            Self::Chance(probability) => unit(seed ^ mix(number)) < probability,
            Self::Burst { length, of } => number % of >= of.saturating_sub(length),
        }
    }
}

/// A rule: the kind of requests, the condition, and the fault.
#[derive(Debug)]
struct FaultRule {
    kind: Kind,
    when: When,
    fault: Fault,
    /// Requests of that kind since the rule was added.
    seen: u64,
    /// The faults of each object that bursts have caused.
    of_objects: BTreeMap<String, u64>,
}

impl FaultRule {
    /// Counts a request. Returns its fault.
    fn judge(&mut self, object: &str, seed: u64) -> Option<Fault> {
        let number = self.seen;
        // Each rule counts, even after an earlier match.
        self.seen += 1;
        if !self.when.fits(number, seed) {
            return None;
        }
        if matches!(self.when, When::Burst { .. }) {
            let caused = self.of_objects.entry(object.to_owned()).or_default();
            *caused += 1;
            if *caused > EACH {
                return None;
            }
        }
        Some(self.fault)
    }
}

/// The rules. The first match applies.
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
        let rule = FaultRule { kind, when, fault, seen: 0, of_objects: BTreeMap::new() };
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).push(rule);
    }

    pub(super) fn clear(&self) {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(super) fn judge(&self, kind: Kind, object: &str) -> Option<Fault> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = None;
        for (index, rule) in (0..).zip(rules.iter_mut().filter(|rule| rule.kind == kind)) {
            let fault = rule.judge(object, mix(self.seed ^ index));
            found = found.or(fault);
        }
        found
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
        assert_eq!(faults.judge(Kind::List, "a"), None);
        let drawn: Vec<_> = (0..8).map(|_| faults.judge(Kind::Get, "a")).collect();
        let (internal, close) = (Some(Fault::Internal), Some(Fault::Close));
        assert_eq!(drawn, [internal, internal, None, close, None, None, None, close]);
        faults.clear();
        faults.add(Kind::Get, When::Chance(0.5), Fault::Half);
        let half = (0..1000).filter(|_| faults.judge(Kind::Get, "a").is_some()).count();
        assert!((400..600).contains(&half), "{half} of 1000");
    }

    /// Guards against this fault: requests of a slow client were all in one burst, which was an
    /// outage for its few samples.
    #[test]
    fn burst_has_few_faults_for_each_object() {
        let faults = Faults::new(1);
        faults.add(Kind::Get, When::Burst { length: 10, of: 10 }, Fault::Close);
        for object in ["a", "b"] {
            let drawn = (0..10).filter(|_| faults.judge(Kind::Get, object).is_some()).count();
            assert_eq!(drawn as u64, EACH);
        }
    }
}
