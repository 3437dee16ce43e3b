//! All layers around an origin, as one future per read.
//!
//! The order and its reasons are in the [crate's](crate) documentation. All tiers that one
//! [`Stack`] wraps share the user's bandwidth limit, the concurrency limit and the meter. Latencies
//! are learnt for each tier separately.
//!
//! A read starts when it is requested, as far as it can without waiting. It takes its slot and is
//! queued at the origin, or it joins the queue for a slot. So reads leave in the order of the
//! requests, whichever future is polled first.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;

use bytes::Bytes;
use foreread_tier::{
    Buffers, ErrorKind, HeapBuffers, LayoutsFuture, Object, OriginTier, ReadFuture, ReadRequest, Span, Tier,
    TierError, TierProfile,
};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tokio::time::{Instant, sleep_until};

use crate::deadline::Deadline;
use crate::hedge::{Hedge, SecondRead};
use crate::joined::{JoinLayer, JoinedRead};
use crate::limit::{Gate, Permit, QueuedRequest};
use crate::made::{MadeLayer, StoredBytes};
use crate::meter::{MeteredRead, Metrics};
use crate::retry::{Failures, Retry};
use crate::speed::Speed;
use crate::units::Units;
use crate::{AdaptivePolicy, Bandwidth, DeadlinePolicy, HedgePolicy, Limit, MergePolicy, Meter, RetryPolicy};

/// Failures after which a joined read is read part by part, unless the origin throttles.
const JOINED_ATTEMPTS: u32 = 3;

/// The configuration of the layers. Clones share the bandwidth, the limit and the meter.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stack {
    /// The user's bandwidth limit for all origins together.
    pub bandwidth: Option<Bandwidth>,
    /// The concurrency limit: [`Limit::adaptive`] or a fixed [`Limit::new`]. `None`: unlimited.
    pub limit: Option<Limit>,
    /// The queue of reads that only the bandwidth limits: one for all origins.
    pub(crate) unbounded: Limit,
    /// How failed reads are retried.
    pub retry: RetryPolicy,
    /// When a late read is hedged. `None`: never.
    pub hedge: Option<HedgePolicy>,
    /// Whether hedges take slots of the limit, as for a user's own bound on all requests.
    pub hedge_within_limit: bool,
    /// When a read without an answer is ended. `None`: never.
    pub deadline: Option<DeadlinePolicy>,
    /// Which ranges of one object are joined. `None`: none. For origins that the kernel caches,
    /// only blocks are joined.
    pub merge: Option<MergePolicy>,
    /// Memory for the parts of joined reads.
    pub buffers: Arc<dyn Buffers>,
    /// The stored units that samples share, of all origins.
    pub units: Units,
    /// Counts all requests.
    pub meter: Meter,
    /// Seed of the jitter. Ranks should have different seeds.
    pub seed: u64,
}

impl Stack {
    /// The defaults: no bandwidth limit, an adaptive concurrency limit
    /// ([`AdaptivePolicy::default`]), retries, hedges, deadlines and joined ranges, with memory
    /// from the program's allocator.
    pub fn new(seed: u64) -> Self {
        Self {
            limit: Some(Limit::adaptive(AdaptivePolicy::default())),
            retry: RetryPolicy::default(),
            hedge: Some(HedgePolicy::default()),
            deadline: Some(DeadlinePolicy::default()),
            merge: Some(MergePolicy::default()),
            seed,
            ..Self::bare()
        }
    }

    /// Only the meter: every read is tried once, and at once.
    pub fn bare() -> Self {
        Self {
            bandwidth: None,
            limit: None,
            unbounded: Limit::new(NonZeroUsize::MAX),
            retry: RetryPolicy::default().with_attempts(NonZeroU32::MIN),
            hedge: None,
            hedge_within_limit: false,
            deadline: None,
            merge: None,
            buffers: Arc::new(HeapBuffers),
            units: Units::default(),
            meter: Meter::new(),
            seed: 0,
        }
    }
}

setters! { Stack:
    /// The same with another bandwidth limit, or none.
    with_bandwidth(bandwidth: Option<Bandwidth>);
    /// The same with another concurrency limit, or none.
    with_limit(limit: Option<Limit>);
    /// The same with other retries.
    with_retry(retry: RetryPolicy);
    /// The same with other hedges, or none.
    with_hedge(hedge: Option<HedgePolicy>);
    /// The same, where hedges take slots of the limit, or do not.
    with_hedge_within_limit(hedge_within_limit: bool);
    /// The same with other deadlines, or none.
    with_deadline(deadline: Option<DeadlinePolicy>);
    /// The same with other joining, or none.
    with_merge(merge: Option<MergePolicy>);
    /// The same with memory from `buffers`.
    with_buffers(buffers: Arc<dyn Buffers>);
    /// The same with other stored units.
    with_units(units: Units);
    /// The same, counted in `meter`.
    with_meter(meter: Meter);
}

impl Stack {
    /// Wraps `origin` in its layers.
    pub fn wrap(&self, origin: Arc<dyn OriginTier>) -> Arc<dyn OriginTier> {
        let speed = self.merge.filter(|_| !origin.profile().kernel_cached).map(|_| Speed::default());
        let (tier, meter) = (origin.name().to_owned(), &self.meter);
        let mut profile = origin.profile().clone();
        if let Some(limit) = &self.limit {
            profile.parallelism = profile.parallelism.min(limit.most());
        }
        // A bandwidth limit needs the queue, without a limit on slots.
        let unbounded = || self.bandwidth.as_ref().map(|_| self.unbounded.clone());
        let limit = self.limit.clone().or_else(unbounded);
        let layers = Arc::new(Layers {
            gate: limit.map(|limit| limit.origin(&tier, self.bandwidth.clone())),
            is_hedge_limited: self.hedge_within_limit,
            bandwidth: self.bandwidth.clone(),
            retry: Retry::new(&tier, self.retry, self.seed, meter.clone()),
            hedge: self.hedge.map(|policy| Hedge::new(&tier, policy, meter.clone())),
            deadline: self.deadline.map(|policy| Deadline::new(&tier, policy)),
            metrics: Arc::new(Metrics::new(&tier, meter.clone(), speed.clone())),
            origin,
        });
        let joins = self.merge.map(|policy| {
            Arc::new(JoinLayer::new(Arc::clone(&layers), policy, speed, Arc::clone(&self.buffers)))
        });
        let stored = Arc::new(StoredReads { layers, joins });
        let made = MadeLayer::new(&tier, Arc::clone(&self.buffers), self.units.clone(), stored.clone());
        Arc::new(LayeredOrigin { stored, made, profile })
    }
}

/// An origin in its layers.
struct LayeredOrigin {
    stored: Arc<StoredReads>,
    made: MadeLayer,
    profile: TierProfile,
}

/// Reads bytes as the origin has them.
struct StoredReads {
    layers: Arc<Layers>,
    joins: Option<Arc<JoinLayer>>,
}

impl StoredBytes for StoredReads {
    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        match self.joins.as_ref().filter(|joins| joins.takes(&request)) {
            Some(joins) => joins.read(request),
            None => self.layers.read(request),
        }
    }
}

impl std::fmt::Debug for LayeredOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LayeredOrigin").field("origin", &self.stored.layers.origin).finish_non_exhaustive()
    }
}

impl Tier for LayeredOrigin {
    fn name(&self) -> &str {
        self.stored.layers.tier()
    }

    /// The origin's profile, with the parallelism bounded by the limit.
    fn profile(&self) -> &TierProfile {
        &self.profile
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        // Names the samples that are read repeatedly. Retries and hedges log their own lines.
        let (key, object, span) = (request.key, &*request.object.path, &request.span);
        tracing::trace!(%key, object, ?span, "reading from storage");
        match &request.span {
            Span::Made(parts) => self.made.read(&request, parts),
            _ => self.stored.read(request),
        }
    }

    fn submit(&self) {
        match &self.stored.joins {
            Some(joins) => joins.submit(),
            None => self.stored.layers.submit(),
        }
    }
}

impl OriginTier for LayeredOrigin {
    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        self.stored.layers.origin.list(prefix, after)
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        self.stored.layers.origin.stat(path)
    }

    fn directories(&self) -> BoxFuture<'static, Result<Vec<String>, TierError>> {
        self.stored.layers.origin.directories()
    }

    fn place(&self) -> &str {
        self.stored.layers.origin.place()
    }

    fn layouts(&self, paths: Vec<Arc<str>>) -> Option<LayoutsFuture> {
        self.stored.layers.origin.layouts(paths)
    }
}

/// The layers of one origin, except joining.
pub(crate) struct Layers {
    origin: Arc<dyn OriginTier>,
    gate: Option<Gate>,
    is_hedge_limited: bool,
    bandwidth: Option<Bandwidth>,
    retry: Retry,
    hedge: Option<Hedge>,
    deadline: Option<Deadline>,
    metrics: Arc<Metrics>,
}

/// The start of an attempt, as far as it goes without waiting.
enum AttemptStart {
    /// It waits for a slot.
    Waiting(QueuedRequest),
    Reading(StartedRead),
}

/// A request at the origin, with its slot.
struct StartedRead {
    permit: Option<Permit>,
    flight: MeteredRead,
    answer: ReadFuture,
}

impl Layers {
    /// The origin's name.
    pub(crate) fn tier(&self) -> &str {
        self.origin.name()
    }

    pub(crate) fn submit(&self) {
        self.origin.submit();
    }

    /// Reads through all layers.
    pub(crate) fn read(self: &Arc<Self>, request: Arc<ReadRequest>) -> ReadFuture {
        let layers = Arc::clone(self);
        match self.begin(&request) {
            AttemptStart::Reading(reading) if self.hedge.is_none() && self.deadline.is_none() => {
                Box::pin(layers.first_attempt(request, reading))
            }
            start => Box::pin(layers.attempts(request, start, Failures::default())),
        }
    }

    /// Reads a range that has already failed as a part of a joined read.
    pub(crate) fn read_after(self: &Arc<Self>, request: Arc<ReadRequest>, failures: Failures) -> ReadFuture {
        let start = self.begin(&request);
        Box::pin(Arc::clone(self).attempts(request, start, failures))
    }

    async fn attempts(
        self: Arc<Self>,
        request: Arc<ReadRequest>,
        start: AttemptStart,
        failures: Failures,
    ) -> Result<Bytes, TierError> {
        // A read that is not joined is always answered.
        let answer = self.repeat(&request, start, failures, false).await;
        answer.unwrap_or_else(|_| Err(TierError::new(ErrorKind::Other, self.tier())))
    }

    /// Reads a joined range. Returns its failures if its parts are to be read separately.
    pub(crate) fn read_joined(self: &Arc<Self>, request: Arc<ReadRequest>) -> BoxFuture<'static, JoinedRead> {
        let (layers, start) = (Arc::clone(self), self.begin(&request));
        Box::pin(async move { layers.repeat(&request, start, Failures::default(), true).await })
    }

    /// The first attempt of a read without hedges and deadlines, and the others if it fails. It is
    /// a separate future: such reads take microseconds, and thousands of these futures are to stay
    /// in the processor's cache.
    async fn first_attempt(
        self: Arc<Self>,
        request: Arc<ReadRequest>,
        StartedRead { permit, flight, answer }: StartedRead,
    ) -> Result<Bytes, TierError> {
        let result = answer.await;
        flight.answered(&result);
        if let Some(permit) = permit {
            permit.answered(&result);
        }
        match result {
            Ok(bytes) => Ok(bytes),
            Err(error) => Box::pin(self.again(request, error)).await,
        }
    }

    /// The attempts after a failed first one.
    #[cold]
    async fn again(self: Arc<Self>, request: Arc<ReadRequest>, error: TierError) -> Result<Bytes, TierError> {
        let mut failures = Failures::default();
        self.wait(&request, &mut failures, error).await?;
        let start = self.begin(&request);
        self.attempts(request, start, failures).await
    }

    /// Repeats attempts until one succeeds or the policy ends them. A read that `is_joined` and
    /// keeps failing ends with its failures.
    async fn repeat(
        &self,
        request: &Arc<ReadRequest>,
        mut start: AttemptStart,
        mut failures: Failures,
        is_joined: bool,
    ) -> JoinedRead {
        loop {
            let reading = self.under_way(request, start).await;
            // Boxed, so that a read that waits for its slot is short: many do.
            let error = match Box::pin(self.attempt(request, reading)).await {
                Err(error) => error,
                answer => return Ok(answer),
            };
            let is_throttled = error.kind() == ErrorKind::Throttled;
            if let Err(error) = self.wait(request, &mut failures, error).await {
                return Ok(Err(error));
            }
            // The joined read itself may be the cause: a body too long for a proxy, one bad part of
            // it.
            if is_joined && !is_throttled && failures.count() >= JOINED_ATTEMPTS {
                return Err(failures);
            }
            start = self.begin(request);
        }
    }

    /// Waits until a failed read may be retried.
    async fn wait(
        &self,
        request: &ReadRequest,
        failures: &mut Failures,
        error: TierError,
    ) -> Result<(), TierError> {
        sleep_until(self.retry.failed(request, failures, error)?).await;
        self.retry.count();
        Ok(())
    }

    /// Starts an attempt, as far as it goes without waiting.
    fn begin(&self, request: &Arc<ReadRequest>) -> AttemptStart {
        debug_assert!(!matches!(request.span, Span::Made(_)), "the outermost layer reads stored bytes");
        let Some(gate) = &self.gate else { return AttemptStart::Reading(self.start(request, None)) };
        match gate.enter(request.due, request.len()) {
            Ok(permit) => AttemptStart::Reading(self.start(request, Some(permit))),
            Err(queued) => AttemptStart::Waiting(queued),
        }
    }

    /// Waits for a slot, if the attempt has none yet.
    async fn under_way(&self, request: &Arc<ReadRequest>, start: AttemptStart) -> StartedRead {
        match start {
            AttemptStart::Waiting(queued) => {
                let permit = queued.await;
                self.start(request, Some(permit))
            }
            AttemptStart::Reading(reading) => reading,
        }
    }

    fn start(&self, request: &Arc<ReadRequest>, permit: Option<Permit>) -> StartedRead {
        let flight = self.metrics.start();
        StartedRead { permit, flight, answer: self.origin.read(Arc::clone(request)) }
    }

    /// The rest of an attempt: the answer, or that of a hedge if it is late.
    async fn attempt(&self, request: &Arc<ReadRequest>, reading: StartedRead) -> Result<Bytes, TierError> {
        let StartedRead { permit, flight, answer } = reading;
        let started = flight.started;
        let first = self.answer(request, flight, answer);
        let result = match &self.hedge {
            None => first.await,
            Some(hedge) => {
                let second = || self.second(request);
                let withheld = |error: &TierError| self.withheld(started, error);
                hedge.race(request, started, first, second, withheld).await
            }
        };
        if let Some(permit) = permit {
            permit.answered(&result);
        }
        result
    }

    /// The answer of a read in flight.
    async fn answer(
        &self,
        request: &ReadRequest,
        flight: MeteredRead,
        answer: ReadFuture,
    ) -> Result<Bytes, TierError> {
        let result = match &self.deadline {
            Some(deadline) => deadline.within(request, flight.started, answer).await,
            None => answer.await,
        };
        flight.answered(&result);
        result
    }

    /// A hedge.
    #[expect(
        clippy::async_yields_async,
        reason = "the outer future waits for a slot, the inner one is the read"
    )]
    fn second<'a>(&'a self, request: &'a Arc<ReadRequest>) -> SecondRead<'a> {
        Box::pin(async move {
            let gate = self.gate.as_ref().filter(|_| self.is_hedge_limited);
            let permit = match gate.map(|gate| gate.enter(request.due, request.len())) {
                Some(Ok(permit)) => Some(permit),
                Some(Err(queued)) => Some(queued.await),
                None => None,
            };
            let read: BoxFuture<'a, Result<Bytes, TierError>> = Box::pin(async move {
                // Its bytes count as bandwidth. It does not wait for the link, but later requests
                // do.
                if let (None, Some(bandwidth)) = (&permit, &self.bandwidth) {
                    bandwidth.take(Instant::now(), request.len());
                }
                let StartedRead { permit, flight, answer } = self.start(request, permit);
                let started = flight.started;
                let result = self.answer(request, flight, answer).await;
                match (permit, &result) {
                    (Some(permit), _) => permit.answered(&result),
                    (None, Err(error)) => self.withheld(started, error),
                    (None, Ok(_)) => {}
                }
                result
            });
            read
        })
    }

    /// Reports the failure of a read that left at `started` or later, if the other read has
    /// answered.
    fn withheld(&self, started: Instant, error: &TierError) {
        if let (Some(gate), ErrorKind::Throttled) = (&self.gate, error.kind()) {
            gate.other_refused(started);
        }
    }
}

#[cfg(test)]
mod tests {
    use foreread_tier_testing::FakeOrigin;
    use foreread_types::{SampleId, Tick};

    use super::*;

    /// A longer future missed the allocator's small size classes, and reading a cached directory
    /// took a quarter longer.
    #[test]
    fn future_of_a_read_without_guards_is_short() {
        let origin = FakeOrigin::uniform(1, 1);
        let request = Arc::new(origin.request(SampleId(0), Tick(0)));
        let metrics = Arc::new(Metrics::new("test", Meter::new(), None));
        let retry = Retry::new("test", RetryPolicy::default(), 0, Meter::new());
        let origin: Arc<dyn OriginTier> = Arc::new(origin);
        let (gate, hedge, deadline, is_hedge_limited, bandwidth) = (None, None, None, false, None);
        let layers = Layers { origin, gate, is_hedge_limited, bandwidth, retry, hedge, deadline, metrics };
        let layers = Arc::new(layers);
        let reading = layers.start(&request, None);
        let future = Arc::clone(&layers).first_attempt(Arc::clone(&request), reading);
        let bytes = size_of_val(&future);
        assert!(bytes <= 256, "{bytes} bytes");
        // It is not counted beyond the look-ahead's allowance per read, and a hundred thousand may
        // wait for their slots.
        let start = layers.begin(&request);
        let bytes = size_of_val(&layers.repeat(&request, start, Failures::default(), false));
        assert!(bytes <= 512, "{bytes} bytes with guards");
    }
}
