//! Hedges: reads of the origin for samples that another rank was asked for.
//!
//! The core decides which ([`Action::Hedge`](crate::core::Action::Hedge)); this carries them out, cancels those that lost,
//! and measures what reads of the origin take. Hedges are few, so each is a future of its own.

use std::collections::BTreeMap;

use foreread_tier::{Charge, Sample, TierError};
use foreread_types::{SampleKey, Tick};
use futures::StreamExt;
use futures::future::{AbortHandle, Abortable, BoxFuture};
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::core::{Event, OriginPace};
use crate::dataset::Dataset;
use crate::origin_stats::OriginStats;
use crate::ready::ReadySamples;

/// How a hedge ended.
pub(crate) type HedgeResult = (Tick, SampleKey, Result<Sample, TierError>);

/// The hedges under way, and the pace of the origin. Dropping it cancels them.
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

    /// Begins a hedge; `charge` is what its bytes are counted in.
    pub(crate) fn begin(&mut self, dataset: Dataset, tick: Tick, key: SampleKey, charge: Charge) {
        self.read_begins(tick);
        let (abort, aborted) = AbortHandle::new_pair();
        let read = async move {
            let came = dataset.read(key, tick).await.and_then(|bytes| dataset.checked(key, bytes));
            (tick, key, came.map(|bytes| Sample::new(bytes, charge)))
        };
        let read = Abortable::new(read, aborted);
        self.reads.push(Box::pin(async move { read.await.ok() }));
        self.open.insert(tick, abort);
    }

    /// Cancels a hedge.
    pub(crate) fn cancel(&mut self, tick: Tick) {
        self.origin.forget(tick);
        if let Some(abort) = self.open.remove(&tick) {
            abort.abort();
        }
    }

    /// Whether none is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// The next hedge that ends; `None` if it was cancelled.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<HedgeResult> {
        let hedged = self.reads.next().await.flatten()?;
        self.open.remove(&hedged.0).map(|_| hedged)
    }

    /// A read of the origin begins.
    pub(crate) fn read_begins(&mut self, tick: Tick) {
        self.origin.begin(tick, self.began.elapsed());
    }

    /// Takes note of what the core is about to be told.
    pub(crate) fn note(&mut self, event: &Event, ready: &ReadySamples) {
        match event {
            Event::Arrived(tick) | Event::HedgeArrived(tick) => {
                let bytes = ready.get(*tick).map_or(0, |(_, sample)| sample.len() as u64);
                self.origin.end(*tick, bytes, self.began.elapsed());
            }
            Event::Failed(tick)
            | Event::Invalid(tick)
            | Event::Unlocated(tick)
            | Event::HedgeFailed(tick)
            | Event::HedgeUnlocated(tick) => self.origin.forget(*tick),
            _ => {}
        }
    }

    /// What reads of the origin take now.
    pub(crate) fn origin_pace(&self) -> OriginPace {
        self.origin.pace(self.began.elapsed())
    }
}
