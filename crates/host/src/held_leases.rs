//! The leases of an agent: the rates that the control process allows it, per origin.
//!
//! A lease answers a report, and ends [`LEASE`] after the agent has sent that report. The agent's
//! clock alone decides. So no common clock is needed, and a lease ends no later than the control
//! process assumes. After that, the agent reads at its fallback rate, which the control process
//! reserves for it. If the fallback rate is higher than the lease, the agent waits a little longer.
//! Agents that were disconnected at the same time may still use higher leases.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::policy::{CLUSTER_WORDS, Policy, PolicySource};

/// The duration of a lease, from the report that it answers.
pub const LEASE: Duration = Duration::from_secs(10);

/// An agent or a control process without a message for this time counts as unreachable.
pub const SILENT: Duration = Duration::from_secs(3);

/// The rates at which an agent may read from an origin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaseTerms {
    /// The origin.
    pub store: String,
    /// Bytes per second, until the lease ends.
    pub bytes_per_second: u64,
    /// Bytes per second after that, without the control process.
    pub fallback: u64,
}

/// The delay before an agent's rate may rise without the control process. Other agents may be
/// disconnected until the control process detects this agent's absence. Their leases must end
/// first.
const RISE_AFTER: Duration = Duration::from_secs(SILENT.as_secs() + 2);

/// The leases of an agent. Times count from any start that all calls share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLeases {
    /// By origin: bytes per second, and bytes per second after the end.
    terms: BTreeMap<String, (u64, u64)>,
    until: Duration,
    /// No rate rises before this time.
    rises: Duration,
    /// Bytes per second of origins without a lease, by name and pattern.
    first: Policy,
}

impl Default for HeldLeases {
    fn default() -> Self {
        let (terms, until, rises) = Default::default();
        Self { terms, until, rises, first: Policy::new(CLUSTER_WORDS) }
    }
}

impl HeldLeases {
    /// Sets the limits of origins that the control process does not know yet.
    pub fn set_first_limits(&mut self, limits: &[String]) {
        self.first = Policy::new(CLUSTER_WORDS);
        for limit in limits {
            if let Err(error) = self.first.set_text(limit, PolicySource::Control) {
                tracing::warn!(%error, "a limit of the control process is not in force");
            }
        }
    }

    /// Replaces the leases by those of a grant, which answers a report of the time `sent`.
    pub fn take(&mut self, leases: &[LeaseTerms], sent: Duration) {
        let terms = leases.iter().map(|it| (it.store.clone(), (it.bytes_per_second, it.fallback)));
        self.terms = terms.collect();
        self.until = sent + LEASE;
        self.rises = self.until + RISE_AFTER;
    }

    /// Bytes per second at the time `now`. `None`: without a limit of the control process.
    pub fn limit(&self, origin: &str, now: Duration) -> Option<u64> {
        let Some((rate, fallback)) = self.terms.get(origin).copied() else {
            return self.first.find("limit", origin);
        };
        let has_ended = now >= if fallback > rate { self.rises } else { self.until };
        Some(if has_ended { fallback } else { rate })
    }

    /// The leases in force at the time `now`, for a message to the control process. No rate rises
    /// until its answer could have arrived.
    pub fn tell(&mut self, now: Duration) -> Vec<LeaseTerms> {
        let terms = self.in_force(now);
        self.rises = self.rises.max(now + LEASE + RISE_AFTER);
        for it in &terms {
            self.terms.insert(it.store.clone(), (it.bytes_per_second, it.fallback));
        }
        terms
    }

    fn in_force(&self, now: Duration) -> Vec<LeaseTerms> {
        let terms = self.terms.iter().map(|(origin, (rate, fallback))| LeaseTerms {
            store: origin.clone(),
            bytes_per_second: self.limit(origin, now).unwrap_or(*rate),
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
        let lease = |origin: &str, bytes_per_second, fallback| LeaseTerms {
            store: origin.to_owned(),
            bytes_per_second,
            fallback,
        };
        held.take(&[lease("s3://a", 90, 25), lease("s3://b", 10, 25)], at(100));
        let of = |held: &HeldLeases, now| (held.limit("s3://a", at(now)), held.limit("s3://b", at(now)));
        assert_eq!(of(&held, 109), (Some(90), Some(10)));
        // A rate rises when the leases of all other agents have ended.
        assert_eq!(of(&held, 114), (Some(25), Some(10)));
        assert_eq!(of(&held, 115), (Some(25), Some(25)));
        assert_eq!(held.in_force(at(115))[0], lease("s3://a", 25, 25));
        // A rate that was sent does not rise meanwhile.
        let mut sent = held.clone();
        assert_eq!(sent.tell(at(111))[1], lease("s3://b", 10, 25));
        assert_eq!((of(&sent, 125), of(&sent, 126)), ((Some(25), Some(10)), (Some(25), Some(25))));
        held.take(&[lease("s3://b", 7, 25)], at(105));
        assert_eq!(of(&held, 106), (None, Some(7)));
        // An origin without a lease is limited by its pattern.
        held.set_first_limits(&["limit@s3://*=3".to_owned()]);
        assert_eq!(of(&held, 106), (Some(3), Some(7)));
    }
}
