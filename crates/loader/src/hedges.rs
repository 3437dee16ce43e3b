//! Hedged reads: reads of the origin for samples whose owner is slow to answer.
//!
//! The core decides which samples are hedged ([`Action::Hedge`](crate::core::CoreAction::Hedge)).
//! This module runs the reads, cancels the losers and measures the origin. Hedges are few, so each
//! is a boxed future.

use std::collections::BTreeMap;

use foreread_tier::{Charge, Lifetime, Sample, TierError};
use foreread_types::{SampleKey, Tick};
use futures::StreamExt;
use futures::future::{AbortHandle, Abortable, BoxFuture};
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::blocks::BlockId;
use crate::core::{CoreEvent, OriginPace};
use crate::dataset::Dataset;
use crate::origin_stats::{MeasuredRead, OriginStats};
use crate::ready::ReadySamples;

/// The result of a hedge.
pub(crate) type HedgeResult = (Tick, SampleKey, Result<Sample, TierError>);

/// The hedges in flight, and the origin's pace. Dropping it cancels them.
pub(crate) struct Hedges {
    began: Instant,
    origin: OriginStats,
    reads: FuturesUnordered<BoxFuture<'static, Option<HedgeResult>>>,
    open: BTreeMap<Tick, AbortHandle>,
}

impl Hedges {
    pub(crate) fn new() -> Self {
        let (origin, reads) = (OriginStats::default(), FuturesUnordered::new());
        Self { began: Instant::now(), origin, reads, open: BTreeMap::new() }
    }

    /// Starts a hedge, whose bytes are counted by `charge`.
    pub(crate) fn begin(
        &mut self,
        dataset: Dataset,
        tick: Tick,
        (key, lifetime): (SampleKey, Lifetime),
        charge: Charge,
    ) {
        tracing::debug!(%key, "hedging a read whose owner is slow");
        self.read_begins(tick);
        let (abort, aborted) = AbortHandle::new_pair();
        let read = async move {
            let received = dataset.read(key, tick, lifetime).await;
            let received = received.and_then(|bytes| dataset.checked(key, bytes));
            (tick, key, received.map(|bytes| Sample::new(bytes, charge)))
        };
        let read = Abortable::new(read, aborted);
        self.reads.push(Box::pin(async move { read.await.ok() }));
        self.open.insert(tick, abort);
    }

    /// Cancels a hedge.
    pub(crate) fn cancel(&mut self, tick: Tick) {
        self.origin.forget(MeasuredRead::Use(tick));
        if let Some(abort) = self.open.remove(&tick) {
            abort.abort();
        }
    }

    /// Whether no hedge is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// The next hedge that ends. `None` if it was cancelled.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<HedgeResult> {
        let hedged = self.reads.next().await.flatten()?;
        self.open.remove(&hedged.0).map(|_| hedged)
    }

    /// Records the start of a read of the origin.
    pub(crate) fn read_begins(&mut self, tick: Tick) {
        self.origin.begin(MeasuredRead::Use(tick), self.began.elapsed());
    }

    /// Records the start of the read of a block.
    pub(crate) fn block_begins(&mut self, id: BlockId) {
        self.origin.begin(MeasuredRead::Block(id), self.began.elapsed());
    }

    /// Records the end of the read of a block.
    pub(crate) fn block_ends(&mut self, id: BlockId) {
        self.origin.end(MeasuredRead::Block(id), 0, self.began.elapsed());
    }

    /// Records the ends of reads from the core's events.
    pub(crate) fn note(&mut self, event: &CoreEvent, ready: &ReadySamples) {
        match event {
            CoreEvent::Arrived(tick) | CoreEvent::HedgeArrived(tick) => {
                let bytes = ready.get(*tick).map_or(0, |(_, sample)| sample.len() as u64);
                self.origin.end(MeasuredRead::Use(*tick), bytes, self.began.elapsed());
            }
            CoreEvent::Failed(tick)
            | CoreEvent::GivenUp(tick)
            | CoreEvent::Invalid(tick)
            | CoreEvent::Unlocated(tick)
            | CoreEvent::HedgeFailed(tick)
            | CoreEvent::HedgeUnlocated(tick) => self.origin.forget(MeasuredRead::Use(*tick)),
            _ => {}
        }
    }

    /// The current pace of the origin.
    pub(crate) fn origin_pace(&self) -> OriginPace {
        self.origin.pace(self.began.elapsed())
    }
}
