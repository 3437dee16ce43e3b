//! A bounded queue of reads of an origin that the driver polls itself.
//!
//! Such an origin answers from the kernel's memory within microseconds. Each read in flight has a
//! future, a buffer and entries in the tables of its tier. If the whole look-ahead were in flight,
//! these would leave the processor's caches between two steps of a read. With 2,600 reads of 100 KB
//! in flight an epoch takes 8 % longer than with 128, and with samples of 2 KB 30 %. So the queue
//! starts [`READS_PER_SLOT`] times the tier's parallelism, and starts more when half of them are
//! done. The price: the tier sees only that many reads in advance.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use foreread_tier::Tier;
use futures::{Stream, StreamExt};

use crate::read_results::{LocatedRead, ReadResult, ReadsInFlight, begin};

/// Reads in flight for each that the tier runs at once.
const READS_PER_SLOT: usize = 4;

/// Reads of one origin: in flight, and waiting in the order of their uses.
pub(crate) struct ReadQueue {
    tier: Arc<dyn Tier>,
    waiting: VecDeque<LocatedRead>,
    answers: ReadsInFlight,
    max_in_flight: usize,
}

impl ReadQueue {
    pub(crate) fn new(tier: Arc<dyn Tier>) -> Self {
        let profile = tier.profile();
        let most = profile.parallelism.saturating_mul(READS_PER_SLOT);
        let max_in_flight = if profile.in_process { usize::MAX } else { most };
        Self { tier, waiting: VecDeque::new(), answers: ReadsInFlight::new(), max_in_flight }
    }

    /// Adds reads and starts as many as allowed.
    pub(crate) fn extend(&mut self, locate_reads: impl IntoIterator<Item = LocatedRead>) {
        for read in locate_reads {
            let due = read.0.tick;
            match self.waiting.back() {
                // A repeated read, or a late look-up.
                Some(last) if due < last.0.tick => {
                    let at = self.waiting.partition_point(|waiting| waiting.0.tick <= due);
                    self.waiting.insert(at, read);
                }
                _ => self.waiting.push_back(read),
            }
        }
        self.begin();
    }

    fn begin(&mut self) {
        if self.answers.len() <= self.max_in_flight / 2 && !self.waiting.is_empty() {
            let count = (self.max_in_flight - self.answers.len()).clamp(1, self.waiting.len());
            begin(&*self.tier, self.waiting.drain(..count), &mut self.answers);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.waiting.is_empty()
    }
}

impl Stream for ReadQueue {
    type Item = ReadResult;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ReadResult>> {
        // First, because started reads must be polled before the task sleeps.
        self.begin();
        self.answers.poll_next_unpin(context)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;

    use bytes::Bytes;
    use foreread_tier::{Budget, ErrorKind, Object, ReadFuture, ReadRequest, Span, TierError, TierProfile};
    use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
    use futures::FutureExt;
    use futures::channel::oneshot;

    use super::*;
    use crate::read_results::{PendingRead, locate_reads};

    const PROFILE: TierProfile = TierProfile::new(2);

    /// Answers when the test allows it.
    #[derive(Debug, Default)]
    struct Slow(Mutex<HashMap<u64, oneshot::Sender<()>>>);

    impl Slow {
        /// The unanswered requests, in order.
        fn under_way(&self) -> Vec<u64> {
            let mut ticks: Vec<u64> = self.0.lock().unwrap().keys().copied().collect();
            ticks.sort_unstable();
            ticks
        }

        fn answer(&self, tick: u64) {
            self.0.lock().unwrap().remove(&tick).unwrap().send(()).unwrap();
        }
    }

    impl Tier for Slow {
        fn name(&self) -> &str {
            "slow"
        }

        fn profile(&self) -> &TierProfile {
            &PROFILE
        }

        fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
            let (send, receive) = oneshot::channel();
            self.0.lock().unwrap().insert(request.due.0, send);
            receive.map(|_| Ok(Bytes::from_static(b"ab"))).boxed()
        }

        fn submit(&self) {}
    }

    fn reads(ticks: std::ops::Range<u64>, budget: &Budget) -> Vec<LocatedRead> {
        let pending = ticks.map(|tick| {
            let key = SampleKey::new(DatasetId(0), SampleId(tick));
            PendingRead::new(Tick(tick), key, 2, budget.charge(2))
        });
        let whole = || (Object { path: "x".into(), size: 2, version: None }, Span::Whole);
        locate_reads(pending, |key| match key.id.0 {
            13 => Err(TierError::new(ErrorKind::Invalid, "catalog")),
            _ => Ok(whole()),
        })
        .collect()
    }

    fn next(queue: &mut ReadQueue) -> Option<u64> {
        queue.next().now_or_never().map(|answer| answer.unwrap().tick.0)
    }

    /// The whole look-ahead was in flight at once, which cost a tenth to a third of an epoch.
    #[test]
    // semantics: FAIL-6
    fn hanging_read_delays_no_other_and_few_are_in_flight() {
        let slow = Arc::new(Slow::default());
        let budget = Budget::new(1000);
        let mut queue = ReadQueue::new(slow.clone());
        queue.extend(reads(0..12, &budget));
        queue.extend(reads(12..30, &budget));
        assert_eq!(slow.under_way(), (0..8).collect::<Vec<_>>());
        assert_eq!(next(&mut queue), None);
        // The first hangs.
        let mut received = Vec::new();
        while received.len() < 29 {
            for tick in slow.under_way().into_iter().filter(|tick| *tick > 0) {
                slow.answer(tick);
            }
            assert!(slow.under_way().len() <= 8);
            received.extend(std::iter::from_fn(|| next(&mut queue)));
        }
        received.sort_unstable();
        assert_eq!(received, (1..30).collect::<Vec<_>>());
        assert_eq!((slow.under_way(), queue.is_empty()), (vec![0], false));
        slow.answer(0);
        assert_eq!(next(&mut queue), Some(0));
        assert!(queue.is_empty());
        assert_eq!(queue.next().now_or_never().map(|answer| answer.is_none()), Some(true));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn earliest_needed_read_starts_first() {
        let slow = Arc::new(Slow::default());
        let budget = Budget::new(1000);
        let mut queue = ReadQueue::new(slow.clone());
        queue.extend(reads(20..40, &budget));
        queue.extend(reads(10..12, &budget));
        queue.extend(reads(15..16, &budget));
        let mut began = Vec::new();
        while !queue.is_empty() {
            let under_way = slow.under_way();
            under_way.iter().for_each(|tick| slow.answer(*tick));
            began.extend(under_way);
            while !queue.is_empty() && next(&mut queue).is_some() {}
        }
        let order = (20..28).chain(10..12).chain(15..16).chain(28..40);
        assert_eq!(began, order.collect::<Vec<_>>());
    }

    /// Reads that were started and not polled would not wake the task.
    #[tokio::test]
    // semantics: FAIL-6
    async fn later_started_read_wakes_its_task() {
        let slow = Arc::new(Slow::default());
        let budget = Budget::new(1000);
        let mut queue = ReadQueue::new(slow.clone());
        queue.extend(reads(20..80, &budget));
        let task = tokio::spawn(async move { while queue.next().await.is_some() {} });
        while !task.is_finished() {
            if let Some(last) = slow.under_way().pop() {
                slow.answer(last);
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn dropped_queue_ends_its_reads() {
        let slow = Arc::new(Slow::default());
        let budget = Budget::new(1000);
        let mut queue = ReadQueue::new(slow.clone());
        queue.extend(reads(20..80, &budget));
        assert_eq!(budget.used(), 120);
        drop(queue);
        assert_eq!(budget.used(), 0);
        assert!(slow.0.lock().unwrap().values().all(oneshot::Sender::is_canceled));
    }
}
