//! What stands between a limit and the controller that sets it: the clock, the numbers for reports, the metrics.
//!
//! The decisions themselves are in the [`Controller`]. Nothing here has a task or a timer: a limit can only be wrong
//! while requests come and go, so it is looked at when one does. The price is one reading of the clock for each.

use metrics::{Counter, Gauge};
use tokio::time::Instant;

use crate::controller::{AdaptivePolicy, Controller, Why};

/// What a [`Limit`](crate::Limit) was and is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decisions {
    /// The limit now.
    pub limit: usize,
    /// The highest that it was.
    pub highest: usize,
    /// The lowest that it was.
    pub lowest: usize,
    /// How often it was changed.
    pub changes: u64,
    /// Why it was last changed.
    pub why: Why,
    /// Requests a second that a store lets us ask for, as far as its complaints tell: of several origins the
    /// lowest; `None` where none complains.
    pub rate: Option<u64>,
    /// Requests under way now.
    pub in_flight: usize,
    /// The most requests that were under way at once.
    pub peak_in_flight: usize,
}

impl Decisions {
    pub(crate) fn fixed(limit: usize) -> Self {
        Self { limit, highest: limit, lowest: limit, ..Self::default() }
    }
}

/// A controller on tokio's clock.
pub(crate) struct Adaptive {
    began: Option<Instant>,
    controller: Controller,
    decisions: Decisions,
}

impl Adaptive {
    pub(crate) fn new(policy: AdaptivePolicy) -> Self {
        let controller = Controller::new(policy);
        let decisions = Decisions::fixed(controller.limit());
        Self { began: None, controller, decisions }
    }

    pub(crate) fn limit(&self) -> usize {
        self.decisions.limit
    }

    pub(crate) fn decisions(&self) -> Decisions {
        self.decisions
    }

    pub(crate) fn load(&mut self, now: Instant, in_flight: usize, waiting: usize) {
        let began = *self.began.get_or_insert(now);
        self.controller.load(now.saturating_duration_since(began), in_flight, waiting);
    }

    /// A store has complained, and a rate has become lower for it.
    pub(crate) fn slowed(&mut self) {
        tracing::trace!("a rate has become lower");
        self.decisions.changes += 1;
        self.decisions.why = Why::Throttled;
    }

    pub(crate) fn answered(&mut self, now: Instant, started: Instant, is_answered: bool) {
        let began = *self.began.get_or_insert(started);
        let at = |instant: Instant| instant.saturating_duration_since(began);
        self.controller.finished(at(now), at(started), is_answered);
        let limit = self.controller.limit();
        let decisions = &mut self.decisions;
        if limit != decisions.limit {
            tracing::trace!(limit, why = self.controller.why().as_str(), "the limit has changed");
            decisions.changes += 1;
            decisions.limit = limit;
            decisions.why = self.controller.why();
            decisions.highest = decisions.highest.max(limit);
            decisions.lowest = decisions.lowest.min(limit);
        }
    }
}

/// A limit's metrics.
pub(crate) struct Gauges {
    tier: String,
    pub(crate) limit: Gauge,
    pub(crate) rate: Gauge,
    pub(crate) in_flight: Gauge,
}

impl Gauges {
    pub(crate) fn of(tier: &str) -> Self {
        let tier = tier.to_owned();
        Self {
            limit: metrics::gauge!("foreread_tier_limit", "tier" => tier.clone()),
            rate: metrics::gauge!("foreread_tier_rate_limit", "tier" => tier.clone()),
            in_flight: metrics::gauge!("foreread_tier_in_flight", "tier" => tier.clone()),
            tier,
        }
    }

    /// Rare enough (once a round trip) for a look-up by name.
    #[cold]
    pub(crate) fn changed(&self, limit: usize, rate: Option<f64>, why: Why) {
        self.limit.set(limit as f64);
        self.rate.set(rate.unwrap_or(0.0));
        self.changes(why).increment(1);
    }

    fn changes(&self, why: Why) -> Counter {
        let labels = [("tier", self.tier.clone()), ("why", why.as_str().to_owned())];
        metrics::counter!("foreread_tier_limit_changes_total", &labels)
    }
}
