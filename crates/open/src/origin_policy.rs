//! The reads of the origins of a run: the layers around each, and their shared state.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use foreread_layers::{
    AdaptivePolicy, Bandwidth, DeadlinePolicy, HedgePolicy, Limit, Meter, RetryPolicy, Stack, Units,
};
use foreread_tier::{OpenContext, OpenOptions, OriginTier, TierProfile};

use crate::calibration::Calibration;
use crate::storage::StorageOptions;

/// The settings of a run that its origins need.
#[derive(Clone, Debug)]
pub struct OriginSettings {
    /// The number of parallel reads that the limit begins at, where no calibration says better:
    /// usually a batch.
    pub first_reads: u64,
    /// The measured speeds.
    pub calibration: Option<Arc<Calibration>>,
    /// The most parallel reads, if the user has set a number.
    pub parallelism: Option<usize>,
    /// The most bytes per second.
    pub limit: Option<u64>,
    /// How failed reads are retried.
    pub retry: RetryPolicy,
    /// How long a silent server of a network file system is waited for. `None`: as the backend
    /// does.
    pub patience: Option<Duration>,
    /// The timeout of reads.
    pub deadline: Option<DeadlinePolicy>,
    /// When a slow read is hedged.
    pub hedge: Option<HedgePolicy>,
    /// The seed of the jitter of retries. Ranks that fail at the same time must not retry at the
    /// same time, so it differs between ranks.
    pub seed: u64,
}

/// Reads of storage that no rank of a node counts, because its store makes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherReads {
    /// The requests for ranks of other nodes.
    pub requests: u64,
    /// The bytes of their samples.
    pub bytes: u64,
    /// Requests that were made again after an error, for any rank.
    pub retried: u64,
    /// Requests that were made again because the answer was late, for any rank.
    pub hedged: u64,
}

/// The limits and policies that all origins of a run share.
#[derive(Clone, Debug)]
pub struct OriginPolicy {
    /// Counts the reads.
    pub meter: Meter,
    stack: Stack,
    /// The most parallel reads, if the user has set a number.
    parallelism: Option<usize>,
    /// The user's number, for directories.
    fixed: Option<Limit>,
    patience: Option<Duration>,
}

impl OriginPolicy {
    /// The layers for these settings, with the memory of `context`.
    pub fn new(settings: &OriginSettings, context: &OpenContext) -> Self {
        // The first limit is a batch: the samples of the trainer's first batch are requested at
        // once.
        let first = NonZeroUsize::new(settings.first_reads.min(256) as usize).unwrap_or(NonZeroUsize::MIN);
        // A measured number is better: the one with the highest throughput.
        let measured = settings.calibration.as_ref().and_then(|known| known.origin.as_ref()?.best());
        let measured = measured.and_then(|best| NonZeroUsize::new(best.parallelism as usize));
        let first = measured.unwrap_or(first);
        let most = settings.parallelism.and_then(NonZeroUsize::new);
        let policy = most.map_or_else(AdaptivePolicy::default, AdaptivePolicy::up_to).beginning_at(first);
        let meter = Meter::new();
        let stack = Stack::new(settings.seed)
            .with_bandwidth(settings.limit.and_then(NonZeroU64::new).map(Bandwidth::new))
            .with_limit(Some(Limit::adaptive(policy)))
            .with_retry(settings.retry)
            .with_deadline(settings.deadline)
            .with_hedge(settings.hedge)
            .with_hedge_within_limit(most.is_some())
            .with_buffers(Arc::clone(&context.buffers))
            .with_meter(meter.clone());
        let fixed = most.map(Limit::new);
        Self { meter, stack, parallelism: settings.parallelism, fixed, patience: settings.patience }
    }

    /// The same with another meter.
    pub fn with_meter(self, meter: Meter) -> Self {
        Self { stack: self.stack.with_meter(meter.clone()), meter, ..self }
    }

    /// The same with another limit in bytes per second.
    pub fn with_bandwidth(self, bandwidth: Bandwidth) -> Self {
        Self { stack: self.stack.with_bandwidth(Some(bandwidth)), ..self }
    }

    /// The stored units that samples share.
    pub fn units(&self) -> &Units {
        &self.stack.units
    }

    /// Gives this memory to the samples of stored units.
    pub fn set_unit_memory(&self, bytes: u64) {
        self.stack.units.set_limit(bytes);
    }

    /// A policy without adaptation and retries, within the user's limits. For measurements of an
    /// origin.
    pub fn raw(settings: &OriginSettings, context: &OpenContext) -> Self {
        let raw = Self::new(settings, context);
        let stack = raw.stack.with_limit(None).with_merge(None).with_hedge(None).with_deadline(None);
        Self { stack, ..raw }
    }

    /// The options that a backend opens a dataset with.
    pub fn options(&self, storage: &StorageOptions) -> OpenOptions {
        let mut options = OpenOptions::default();
        options.parallelism = self.parallelism;
        options.patience = self.patience;
        options.settings = storage.to_settings();
        options
    }

    /// Wraps `origin` in its layers. `foreread_layers` documents their order and the reasons. Also
    /// returns the limit on parallel reads.
    ///
    /// Directories find their own parallelism, because their threads report waits. One in the page
    /// cache does not answer late, and is read at memory's speed. One on a network file system
    /// waits for its servers itself.
    pub fn wrap(&self, origin: Arc<dyn OriginTier>) -> (Arc<dyn OriginTier>, Option<Limit>) {
        let TierProfile { kernel_cached, patience, .. } = *origin.profile();
        if !kernel_cached && patience.is_none() {
            return (self.stack.wrap(origin), self.stack.limit.clone());
        }
        let stack = self.guarded(origin.profile()).with_limit(self.fixed.clone());
        (stack.wrap(origin), self.fixed.clone())
    }

    /// The layers without the layers that a directory must not have.
    fn guarded(&self, profile: &TierProfile) -> Stack {
        let stack = self.stack.clone();
        if !profile.kernel_cached && profile.patience.is_none() {
            return stack;
        }
        let retry = match profile.patience {
            Some(patience) => {
                let patience = patience.max(stack.retry.patience);
                stack.retry.with_patience(patience).with_attempts(NonZeroU32::MAX)
            }
            None => stack.retry,
        };
        stack.with_hedge(None).with_deadline(None).with_retry(retry)
    }

    /// Wraps `origin` for reading the headers in shards. It tolerates failures of the store and
    /// obeys the user's bandwidth limit. Its reads do not count as the run's.
    pub fn for_index(&self, origin: &Arc<dyn OriginTier>) -> Arc<dyn OriginTier> {
        let stack = self.guarded(origin.profile());
        stack.with_meter(Meter::new()).with_limit(None).wrap(Arc::clone(origin))
    }
}
