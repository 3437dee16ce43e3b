//! Requests for samples, and the callers that wait for them.
//!
//! Samples outside of the announced order are read one by one. Their bytes count until the caller
//! takes them, and all together are limited to [a part](super::DIRECT_PART) of the look-ahead. So a
//! call with ten thousand ids does not hold as many samples in memory. One read is always allowed
//! per call, so that an abandoned call delays no other.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foreread_tier::{Charge, ErrorKind, TierError};
use foreread_types::{SampleId, SampleKey};
use futures::Stream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::SourceInner;
use super::source_state::{Availability, DATASET, SourceState};
use super::wait_time::WaitGuard;

/// The duration of one wait for the engine while direct reads are in flight. The engine does not
/// track direct reads.
const ENGINE_POLL: Duration = Duration::from_millis(2);

/// How often a stream's thread checks whether the stream was dropped.
const DROP_POLL: Duration = Duration::from_millis(100);

/// A position in the requested ids, and the sample.
type Answer = (usize, Result<Bytes, TierError>);

fn blocking(id: u64) -> TierError {
    TierError::new(ErrorKind::Unsupported, "source").with_object(format!("sample {id}")).with_detail(
        "waiting for it would block the runtime that reads it: use another thread or `request_async`, or \
         leave out `runtime(..)`",
    )
}

/// Samples that were [requested](super::Source::request), in any order.
///
/// Each item is a position in the requested ids, with the sample's bytes or an error that names it.
/// The iterator blocks the thread until the next sample is there. It ends after the last one.
/// Dropping it cancels the rest.
#[derive(Debug)]
pub struct SampleRequests {
    source: Arc<SourceInner>,
    /// Samples that the engine will deliver: positions and ids.
    announced: Vec<(usize, u64)>,
    ready: VecDeque<Answer>,
    /// Samples that need a direct read, when the budget allows it.
    unannounced: VecDeque<(usize, u64)>,
    /// Direct reads, and how many of them have no answer yet.
    reads: JoinSet<()>,
    reading: usize,
    sender: Sender<(Answer, Charge)>,
    answers: Receiver<(Answer, Charge)>,
    _waiting: WaitGuard,
}

impl SampleRequests {
    pub(super) fn new(source: Arc<SourceInner>, ids: &[u64]) -> Self {
        // Waiting would block the runtime that reads the samples.
        let may_block = source.workers.may_block().is_ok();
        let mut requests = Self::begin(source, if may_block { ids } else { &[] });
        if !may_block {
            requests.ready = ids.iter().map(|id| Err(blocking(*id))).enumerate().collect();
        }
        requests
    }

    fn begin(source: Arc<SourceInner>, ids: &[u64]) -> Self {
        let (sender, answers) = channel();
        let mut requests = Self {
            _waiting: source.wait_time.begin(),
            source,
            announced: ids.iter().copied().enumerate().collect(),
            ready: VecDeque::new(),
            unannounced: VecDeque::new(),
            reads: JoinSet::new(),
            reading: 0,
            sender,
            answers,
        };
        requests.sort(&mut requests.source.clone().lock());
        requests.read();
        requests
    }

    /// How many samples have not been returned yet.
    pub fn remaining(&self) -> usize {
        self.announced.len() + self.ready.len() + self.unannounced.len() + self.reading
    }

    /// [`next`](Iterator::next) with a bound: `None` also after `timeout`, and then some are
    /// [remaining](Self::remaining).
    pub fn wait(&mut self, timeout: Duration) -> Option<Answer> {
        // A time beyond the clock's end means no bound.
        let until = Instant::now().checked_add(timeout);
        loop {
            if let Some(answer) = self.ready.pop_front() {
                return Some(answer);
            }
            if let Ok(answer) = self.answers.try_recv() {
                return Some(self.take(answer));
            }
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() || self.remaining() == 0 {
                return None;
            }
            if self.announced.is_empty() {
                match self.answers.recv_timeout(left) {
                    Ok(answer) => return Some(self.take(answer)),
                    // `self` holds a sender.
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
                }
            }
            let poll = if self.reading > 0 { left.min(ENGINE_POLL) } else { left };
            let source = Arc::clone(&self.source);
            let mut state = source.lock();
            let before = self.announced.len();
            self.sort(&mut state);
            if self.announced.len() == before {
                source.pull(state, poll);
            } else {
                drop(state);
                self.read();
            }
        }
    }

    /// Takes ready samples, and finds samples that the engine will not deliver.
    fn sort(&mut self, state: &mut SourceState) {
        let (ready, unannounced, source) = (&mut self.ready, &mut self.unannounced, &self.source);
        let mean = source.mean();
        self.announced.retain(|&(at, id)| match state.availability(id, mean) {
            Availability::Soon => true,
            Availability::Ready(bytes) => {
                ready.push_back((at, Ok(source.for_own_process(bytes))));
                false
            }
            Availability::Unannounced => {
                unannounced.push_back((at, id));
                false
            }
        });
    }

    /// Takes a read's answer, which makes room for the next read.
    fn take(&mut self, (answer, charge): (Answer, Charge)) -> Answer {
        self.reading -= 1;
        while self.reads.try_join_next().is_some() {}
        drop(charge);
        self.read();
        (answer.0, answer.1.map(|bytes| self.source.for_own_process(bytes)))
    }

    /// Starts reads as the budget allows, and at least one.
    fn read(&mut self) {
        while let Some(&(at, id)) = self.unannounced.front() {
            let bytes = self.source.bytes(id);
            let charge = match self.source.direct_budget.try_charge(bytes) {
                Some(charge) => charge,
                None if self.reading == 0 => self.source.direct_budget.charge(bytes),
                None => return,
            };
            self.unannounced.pop_front();
            self.reading += 1;
            let (source, sender) = (Arc::clone(&self.source), self.sender.clone());
            let read = async move {
                let sample = source.read_direct(SampleId(id)).await;
                // It fails if the requests were dropped.
                let _ = sender.send(((at, sample), charge));
            };
            self.reads.spawn_on(read, self.source.workers.handle());
        }
    }
}

impl Iterator for SampleRequests {
    type Item = Answer;

    fn next(&mut self) -> Option<Answer> {
        self.wait(Duration::MAX)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining(), Some(self.remaining()))
    }
}

/// Samples that were [requested](super::Source::request_async) by async code, in any order.
///
/// Each item is a position in the requested ids, with the sample's bytes or an error that names it.
/// The stream ends after the last sample, or when the given [runtime](crate::Builder::runtime) is
/// shut down.
#[derive(Debug)]
pub struct SampleStream(mpsc::Receiver<Answer>);

impl SampleStream {
    pub(super) fn new(source: Arc<SourceInner>, ids: &[u64]) -> Self {
        // One: samples that the caller has not taken must not pile up here.
        let (sender, answers) = mpsc::channel(1);
        let (runtime, ids) = (source.workers.handle().clone(), ids.to_vec());
        runtime.spawn_blocking(move || {
            let mut requests = SampleRequests::begin(source, &ids);
            while requests.remaining() > 0 && !sender.is_closed() {
                if let Some(answer) = requests.wait(DROP_POLL)
                    && sender.blocking_send(answer).is_err()
                {
                    return;
                }
            }
        });
        Self(answers)
    }
}

impl Stream for SampleStream {
    type Item = Answer;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        self.0.poll_recv(context)
    }
}

impl SourceInner {
    /// A sample's length. 0 for an id that does not exist, which its read reports.
    pub(super) fn bytes(&self, id: u64) -> u64 {
        if id < self.whole.len() { self.whole.sizes().bytes(SampleId(id)) } else { 0 }
    }

    /// Reads a sample that the engine will not deliver. It is cached if no order is announced.
    pub(super) async fn read_direct(&self, id: SampleId) -> Result<Bytes, TierError> {
        let key = SampleKey::new(DATASET, id);
        let (keep, due) = {
            let state = self.lock();
            (state.run.is_none(), state.due(key))
        };
        let (sample, from) = self.direct.read(key, due, keep).await?;
        self.lock().direct.add(from, sample.len() as u64);
        Ok(sample.bytes())
    }
}
