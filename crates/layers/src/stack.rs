//! All layers in their order, in one place.
//!
//! The order and its reasons are in the [crate's](crate) own words. What a run's origins share (the user's limit on
//! bandwidth, the places, the numbers) is shared by all tiers that one [`Stack`] wraps; what is a tier's own (how long
//! its reads take) is learnt for each by itself.

use std::sync::Arc;

use foreread_tier::{Buffers, HeapBuffers, OriginTier};

use crate::speed::Speed;
use crate::{
    AdaptivePolicy, DeadlinePolicy, Deadlined, HedgePolicy, Hedged, Limit, Limited, MergePolicy, Merged,
    Meter, Metered, RetryPolicy, Retrying, Throttle, Throttled,
};

/// Which layers origins get. Clones share the throttle, the limit and the meter.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stack {
    /// The rate that all are held to, where the user gave one.
    pub throttle: Option<Throttle>,
    /// How many reads are under way at once: [`Limit::adaptive`] or a fixed [`Limit::new`]; `None`: as many as are
    /// asked for.
    pub limit: Option<Limit>,
    /// How failed reads are tried again.
    pub retry: RetryPolicy,
    /// When a second read is sent for a late one; `None`: never.
    pub hedge: Option<HedgePolicy>,
    /// Whether second reads take places of the limit, too: where it is the user's own bound on all requests.
    pub hedge_within_limit: bool,
    /// When a read without an answer is ended; `None`: never.
    pub deadline: Option<DeadlinePolicy>,
    /// Which ranges of one object are read together; `None`: none. Origins that the kernel caches never merge.
    pub merge: Option<MergePolicy>,
    /// Where the memory for answers out of merged reads comes from.
    pub buffers: Arc<dyn Buffers>,
    /// Where all is counted.
    pub meter: Meter,
    /// Where jitter comes from. Ranks should have different ones.
    pub seed: u64,
}

impl Stack {
    /// The defaults: no throttle, a limit that adapts itself ([`AdaptivePolicy::default`]), retries, hedges,
    /// deadlines and merged ranges, in memory from the program's allocator.
    pub fn new(seed: u64) -> Self {
        Self {
            throttle: None,
            limit: Some(Limit::adaptive(AdaptivePolicy::default())),
            retry: RetryPolicy::default(),
            hedge: Some(HedgePolicy::default()),
            hedge_within_limit: false,
            deadline: Some(DeadlinePolicy::default()),
            merge: Some(MergePolicy::default()),
            buffers: Arc::new(HeapBuffers),
            meter: Meter::new(),
            seed,
        }
    }

    /// The same with another throttle, or none.
    #[must_use]
    pub fn with_throttle(self, throttle: Option<Throttle>) -> Self {
        Self { throttle, ..self }
    }

    /// The same with another limit, or none.
    #[must_use]
    pub fn with_limit(self, limit: Option<Limit>) -> Self {
        Self { limit, ..self }
    }

    /// The same with other retries.
    #[must_use]
    pub fn with_retry(self, retry: RetryPolicy) -> Self {
        Self { retry, ..self }
    }

    /// The same with other hedges, or none.
    #[must_use]
    pub fn with_hedge(self, hedge: Option<HedgePolicy>) -> Self {
        Self { hedge, ..self }
    }

    /// The same, whose second reads take places of the limit, or do not.
    #[must_use]
    pub fn with_hedge_within_limit(self, hedge_within_limit: bool) -> Self {
        Self { hedge_within_limit, ..self }
    }

    /// The same with other deadlines, or none.
    #[must_use]
    pub fn with_deadline(self, deadline: Option<DeadlinePolicy>) -> Self {
        Self { deadline, ..self }
    }

    /// The same with other merging, or none.
    #[must_use]
    pub fn with_merge(self, merge: Option<MergePolicy>) -> Self {
        Self { merge, ..self }
    }

    /// The same with memory from `buffers`.
    #[must_use]
    pub fn with_buffers(self, buffers: Arc<dyn Buffers>) -> Self {
        Self { buffers, ..self }
    }

    /// The same, counted in `meter`.
    #[must_use]
    pub fn with_meter(self, meter: Meter) -> Self {
        Self { meter, ..self }
    }

    /// `origin` in its layers.
    pub fn wrap(&self, origin: Arc<dyn OriginTier>) -> Arc<dyn OriginTier> {
        let merge = self.merge.filter(|_| !origin.profile().kernel_cached);
        let speed = Speed::default();
        let mut tier = origin;
        if let Some(policy) = self.deadline {
            tier = Arc::new(Deadlined::new(tier, policy));
        }
        let metered = Metered::with_meter(tier, self.meter.clone());
        tier = Arc::new(if merge.is_some() { metered.with_speed(speed.clone()) } else { metered });
        if let Some(throttle) = &self.throttle {
            tier = Arc::new(Throttled::with_throttle(tier, throttle.clone()));
        }
        let limited = self.limit.as_ref().map(|limit| limit.origin(tier.name()));
        if let Some(policy) = self.hedge {
            let mut hedged = Hedged::new(tier, policy).with_meter(&self.meter);
            if let Some(origin) = &limited {
                hedged = hedged.telling(origin.clone());
            }
            let limit = self.limit.as_ref().filter(|_| self.hedge_within_limit);
            tier = Arc::new(match limit {
                Some(limit) => hedged.within(limit.clone()),
                None => hedged,
            });
        }
        if let Some(origin) = limited {
            tier = Arc::new(Limited::as_origin(tier, origin));
        }
        if let Some(policy) = merge {
            let merged = Merged::new(tier, policy).with_buffers(Arc::clone(&self.buffers));
            tier = Arc::new(merged.with_speed(speed));
        }
        Arc::new(Retrying::new(tier, self.retry, self.seed).with_meter(&self.meter))
    }
}
