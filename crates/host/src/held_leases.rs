//! What an agent may read from stores, by the control process's word.
//!
//! A lease holds until [`LEASE`] after the report that it answers was sent. This counts from the
//! agent's own sending, so it needs no common clock, and it ends no later than the control process
//! believes. After that, the agent reads its part of the limit, which the control process reserves
//! for it. An agent with less than that waits a little longer, because others that are cut off at
//! the same time may still hold more.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::policy::{CLUSTER_WORDS, Policy, PolicySource};

/// How long a lease holds, since the report that it answers.
pub const LEASE: Duration = Duration::from_secs(10);

/// An agent or a control process of which nothing was heard for this time is not reached.
pub const SILENT: Duration = Duration::from_secs(3);

/// What an agent may read from a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaseTerms {
    /// The store.
    pub store: String,
    /// Bytes per second, until the lease ends.
    pub bytes_per_second: u64,
    /// Bytes per second after that, for an agent that does not reach the control process.
    pub fallback: u64,
}

/// How much later an agent takes more than it had: when those have let go that were cut off before
/// the control process could know of this one.
const RISE_AFTER: Duration = Duration::from_secs(SILENT.as_secs() + 2);

/// The leases of an agent. Times count from any origin that all calls share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLeases {
    /// By store: bytes per second, and those after the end.
    terms: BTreeMap<String, (u64, u64)>,
    until: Duration,
    /// Nothing rises before this time.
    rises: Duration,
    /// Bytes per second of stores without a lease, by name and pattern.
    first: Policy,
}

impl Default for HeldLeases {
    fn default() -> Self {
        let (terms, until, rises) = Default::default();
        Self { terms, until, rises, first: Policy::new(CLUSTER_WORDS) }
    }
}

impl HeldLeases {
    /// Sets what may be read of stores that the control process does not know yet.
    pub fn set_first_limits(&mut self, limits: &[String]) {
        self.first = Policy::new(CLUSTER_WORDS);
        for limit in limits {
            if let Err(error) = self.first.set_text(limit, PolicySource::Control) {
                tracing::warn!(%error, "a limit of the control process is not in force");
            }
        }
    }

    /// Takes the leases of a grant that answers a report of the time `sent`.
    pub fn take(&mut self, leases: &[LeaseTerms], sent: Duration) {
        let terms = leases.iter().map(|it| (it.store.clone(), (it.bytes_per_second, it.fallback)));
        self.terms = terms.collect();
        self.until = sent + LEASE;
        self.rises = self.until + RISE_AFTER;
    }

    /// Bytes per second at the time `now`. `None`: the control process limits nothing.
    pub fn limit(&self, store: &str, now: Duration) -> Option<u64> {
        let Some((rate, fallback)) = self.terms.get(store).copied() else {
            return self.first.find("limit", store);
        };
        let has_ended = now >= if fallback > rate { self.rises } else { self.until };
        Some(if has_ended { fallback } else { rate })
    }

    /// All of them, as they are at the time `now`. The control process is about to hear that, so
    /// nothing rises until its answer could have come.
    pub fn tell(&mut self, now: Duration) -> Vec<LeaseTerms> {
        let terms = self.in_force(now);
        self.rises = self.rises.max(now + LEASE + RISE_AFTER);
        for it in &terms {
            self.terms.insert(it.store.clone(), (it.bytes_per_second, it.fallback));
        }
        terms
    }

    fn in_force(&self, now: Duration) -> Vec<LeaseTerms> {
        let terms = self.terms.iter().map(|(store, (rate, fallback))| LeaseTerms {
            store: store.clone(),
            bytes_per_second: self.limit(store, now).unwrap_or(*rate),
            fallback: *fallback,
        });
        terms.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    // semantics: CONTROL-3
    fn ended_lease_leaves_the_part_of_the_limit() {
        let mut held = HeldLeases::default();
        assert_eq!(held.limit("s3://a", at(0)), None);
        let lease = |store: &str, bytes_per_second, fallback| LeaseTerms {
            store: store.to_owned(),
            bytes_per_second,
            fallback,
        };
        held.take(&[lease("s3://a", 90, 25), lease("s3://b", 10, 25)], at(100));
        let of = |held: &HeldLeases, now| (held.limit("s3://a", at(now)), held.limit("s3://b", at(now)));
        assert_eq!(of(&held, 109), (Some(90), Some(10)));
        // More is taken when all others have let go.
        assert_eq!(of(&held, 114), (Some(25), Some(10)));
        assert_eq!(of(&held, 115), (Some(25), Some(25)));
        assert_eq!(held.in_force(at(115))[0], lease("s3://a", 25, 25));
        // A rate that was sent does not rise meanwhile.
        let mut sent = held.clone();
        assert_eq!(sent.tell(at(111))[1], lease("s3://b", 10, 25));
        assert_eq!((of(&sent, 125), of(&sent, 126)), ((Some(25), Some(10)), (Some(25), Some(25))));
        held.take(&[lease("s3://b", 7, 25)], at(105));
        assert_eq!(of(&held, 106), (None, Some(7)));
        // A store without a lease is limited by its pattern.
        held.set_first_limits(&["limit@s3://*=3".to_owned()]);
        assert_eq!(of(&held, 106), (Some(3), Some(7)));
    }
}
