//! Reads under way: their answers reach the driver as one stream.
//!
//! What grows with bytes, and what may block, is done elsewhere, so that the task which decides does neither. What an origin
//! over a network sends is received, checked and copied by a task for each batch of reads, on whichever of the runtime's
//! threads is free; so is whatever has a checksum. The price is a hop between threads, well below a microsecond a sample
//! where many come together. Samples of caches and of the kernel's page cache come without it: their own threads have read
//! them, and the hop would be a part of what they take.
//!
//! Before it is read, a sample must be found: a catalog file has the names of files, and a file server may take long to
//! answer, or for ever. Such look-ups are made on blocking threads, a batch at a time and on [`LOCATING`] threads at most.
//! The price is a hop for each batch. What is ready is handed out meanwhile, and reads of other datasets go on.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use foreread_tier::Tier;
use futures::future::BoxFuture;
use futures::stream::{ReadyChunks, SelectAll};
use futures::{FutureExt, Stream, StreamExt};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use crate::answers::{Answer, Answers, Located, Pending};
use crate::driver::Dataset;

/// How many answers of one tier are taken at once: a stream that is one of many costs an allocation each time it is asked.
pub(crate) const CHUNK: usize = 64;

/// How many threads of a run look up where samples lie, at most. More would not help a server that hangs.
pub(crate) const LOCATING: usize = 4;

/// A task that works on bytes lets others have its thread after so many: a wake-up of the driver may wait behind it.
const TURN: u64 = 256 << 10;

/// The answers of all tiers, those of each in chunks of what is there.
pub(crate) type Reads = SelectAll<ReadyChunks<Reading>>;

/// Who works on answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// The driver's own task.
    Here,
    /// A task of their own.
    Aside,
}

impl Where {
    pub(crate) fn of_origin(origin: &dyn Tier) -> Self {
        if origin.profile().kernel_cached { Self::Here } else { Self::Aside }
    }
}

/// The answers to one batch of reads. Dropping it ends the reads.
pub(crate) enum Reading {
    /// Its samples are being looked up.
    Locating {
        located: BoxFuture<'static, Located>,
        tier: Arc<dyn Tier>,
    },
    Here(Answers),
    Aside {
        answers: UnboundedReceiver<Answer>,
        _task: AbortOnDrop,
    },
}

impl Reading {
    /// Begins reads of `datasets`. Within a runtime.
    pub(crate) fn of(
        tier: Arc<dyn Tier>,
        datasets: &Arc<[Dataset]>,
        threads: &Arc<Semaphore>,
        pending: Vec<Pending>,
        at: Where,
    ) -> Self {
        let is_checked = pending.iter().any(|pending| pending.check.is_some());
        let at = if is_checked { Where::Aside } else { at };
        let reads_files =
            pending.iter().any(|pending| datasets[pending.key.dataset.0 as usize].catalog.reads_entries());
        let datasets = Arc::clone(datasets);
        let locate = move || Located::of(pending, |key| datasets[key.dataset.0 as usize].locate(key));
        if !reads_files && at == Where::Here {
            return Self::Here(Answers::of(&*tier, locate()));
        }
        let threads = Arc::clone(threads);
        let located = async move {
            if !reads_files {
                return locate();
            }
            // Never closed. A runtime that is shut down ends the driver as well.
            let _turn = threads.acquire_owned().await;
            tokio::task::spawn_blocking(locate).await.unwrap_or_default()
        };
        Self::begin(tier, located.boxed(), at)
    }

    fn begin(tier: Arc<dyn Tier>, located: BoxFuture<'static, Located>, at: Where) -> Self {
        match at {
            Where::Here => Self::Locating { located, tier },
            Where::Aside => Self::aside(|answers| async move {
                let (mut reads, mut worked) = (Answers::of(&*tier, located.await), Worked::default());
                while let Some(answer) = reads.next().await {
                    let bytes = answer.result.as_ref().map_or(0, |sample| sample.len() as u64);
                    if answers.send(answer).is_err() {
                        return;
                    }
                    worked.on(bytes).await;
                }
            }),
        }
    }

    /// The answers that a task of its own sends.
    pub(crate) fn aside<F>(work: impl FnOnce(UnboundedSender<Answer>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // What waits in it is bounded: its bytes are charged to the look-ahead.
        let (sender, answers) = unbounded_channel();
        let task = tokio::spawn(work(sender));
        Self::Aside { answers, _task: AbortOnDrop(task.abort_handle()) }
    }
}

impl Stream for Reading {
    type Item = Answer;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        loop {
            match &mut *self {
                Self::Locating { located, tier } => {
                    let located = ready!(located.poll_unpin(context));
                    let answers = Answers::of(&**tier, located);
                    *self = Self::Here(answers);
                }
                Self::Here(answers) => return answers.poll_next_unpin(context),
                Self::Aside { answers, .. } => return answers.poll_recv(context),
            }
        }
    }
}

/// Counts what a task has worked on.
#[derive(Debug, Default)]
pub(crate) struct Worked(u64);

impl Worked {
    /// After work on so many bytes: lets other tasks have the thread once in a while.
    pub(crate) async fn on(&mut self, bytes: u64) {
        self.0 += bytes;
        if self.0 >= TURN {
            self.0 = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Ends a task when dropped.
pub(crate) struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use foreread_tier::{Budget, Completions, Object, ReadRequest, Span, TierProfile};
    use foreread_tier_testing::FakeOrigin;
    use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A fake that counts what it is asked.
    #[derive(Debug)]
    struct Asked(FakeOrigin, AtomicU64);

    impl Tier for Asked {
        fn name(&self) -> &str {
            "asked"
        }

        fn profile(&self) -> &TierProfile {
            self.0.profile()
        }

        fn read(&self, batch: Vec<ReadRequest>) -> Completions {
            self.1.fetch_add(batch.len() as u64, Ordering::Relaxed);
            self.0.read(batch)
        }
    }

    /// A catalog on a file server that hangs once stopped the whole engine.
    #[tokio::test(start_paused = true)]
    async fn stuck_catalog_holds_up_no_other_reads() {
        let fake = FakeOrigin::uniform(4, 100);
        let asked = Arc::new(Asked(fake.clone(), AtomicU64::new(0)));
        let budget = Budget::new(1000);
        let key = |id| SampleKey::new(DatasetId(0), SampleId(id));
        let pending = |id| vec![Pending::new(Tick(id), key(id), 100, budget.charge(100))];
        let object = |key: SampleKey| -> Result<(Object, Span), _> { Ok((fake.object(key.id), Span::Whole)) };
        for at in [Where::Here, Where::Aside] {
            asked.1.store(0, Ordering::Relaxed);
            let (server, answer) = tokio::sync::oneshot::channel();
            let late = pending(0);
            let fake = fake.clone();
            let stuck = async move {
                let _: Result<(), _> = answer.await;
                Located::of(late, |key| Ok((fake.object(key.id), Span::Whole)))
            };
            let mut reads = Reads::new();
            reads.push(Reading::begin(asked.clone(), stuck.boxed(), at).ready_chunks(CHUNK));
            for id in 1..4 {
                let located = Located::of(pending(id), object);
                let reading = Reading::begin(asked.clone(), std::future::ready(located).boxed(), at);
                reads.push(reading.ready_chunks(CHUNK));
            }
            let mut ticks = Vec::new();
            while ticks.len() < 3 {
                ticks.extend(reads.next().await.unwrap().iter().map(|answer| answer.tick.0));
            }
            ticks.sort_unstable();
            assert_eq!((ticks, asked.1.load(Ordering::Relaxed)), (vec![1, 2, 3], 3));
            // Not lost either.
            server.send(()).unwrap();
            assert_eq!(reads.next().await.unwrap()[0].tick, Tick(0));
            assert!(reads.next().await.is_none());
        }
        assert_eq!(budget.used(), 0);
    }
}
