//! Samples that somebody has asked for and waits for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foreread_tier::{ErrorKind, TierError};
use foreread_types::{SampleId, SampleKey};
use tokio::task::JoinSet;

use super::waits::Waiting;
use super::{DATASET, Due, Inner, State};

/// How long the engine is waited for at a time while reads are under way that it knows nothing of.
const GLANCE: Duration = Duration::from_millis(2);

type Came = (usize, Result<Bytes, TierError>);

fn blocking(id: u64) -> TierError {
    TierError::new(ErrorKind::Unsupported, "source").with_object(format!("sample {id}")).with_detail(
        "waiting for it would block the runtime that reads it: ask on another thread, or leave out `runtime(..)`",
    )
}

/// Samples that were [asked for](super::Source::ask): they come in any order. Dropping it gives up those that have not come.
#[derive(Debug)]
pub struct Asked {
    inner: Arc<Inner>,
    /// Those that the engine will bring, with their places in what was asked for.
    waiting: Vec<(usize, u64)>,
    here: VecDeque<Came>,
    /// Reads of their own, and how many of them have not come.
    reads: JoinSet<()>,
    reading: usize,
    tell: Sender<Came>,
    told: Receiver<Came>,
    _waits: Waiting,
}

impl Asked {
    pub(super) fn new(inner: Arc<Inner>, ids: &[u64]) -> Self {
        let (tell, told) = channel();
        let reads = JoinSet::new();
        let ids = ids.iter().copied().enumerate();
        if inner.workers.may_block().is_err() {
            // Waiting would block the runtime that reads them.
            let here = ids.map(|(at, id)| (at, Err(blocking(id)))).collect();
            return Self {
                _waits: inner.waits.begin(),
                inner,
                waiting: Vec::new(),
                here,
                reads,
                reading: 0,
                tell,
                told,
            };
        }
        let waiting = ids.collect();
        let mut asked = Self {
            _waits: inner.waits.begin(),
            inner,
            waiting,
            here: VecDeque::new(),
            reads,
            reading: 0,
            tell,
            told,
        };
        let unforeseen = asked.sort(&mut asked.inner.clone().lock());
        asked.read(unforeseen);
        asked
    }

    /// How many have not come yet.
    pub fn remaining(&self) -> usize {
        self.waiting.len() + self.here.len() + self.reading
    }

    /// The next sample that is there: its place among those that were asked for, and its bytes; `None` when `timeout` has
    /// passed, or when all have come. Blocks the thread.
    ///
    /// A sample that cannot be read is an error that names it; the others come all the same.
    pub fn wait(&mut self, timeout: Duration) -> Option<Came> {
        // A time beyond the clock's end is waited for without a bound.
        let until = Instant::now().checked_add(timeout);
        loop {
            if let Some(came) = self.here.pop_front() {
                return Some(came);
            }
            if let Ok(came) = self.told.try_recv() {
                self.reading -= 1;
                return Some(came);
            }
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() || self.remaining() == 0 {
                return None;
            }
            if self.waiting.is_empty() {
                match self.told.recv_timeout(left) {
                    Ok(came) => {
                        self.reading -= 1;
                        return Some(came);
                    }
                    // The other end is here.
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
                }
            }
            let glance = if self.reading > 0 { left.min(GLANCE) } else { left };
            let inner = Arc::clone(&self.inner);
            let mut state = inner.lock();
            let unforeseen = self.sort(&mut state);
            if unforeseen.is_empty() && self.here.is_empty() {
                inner.pull(state, glance);
            } else {
                drop(state);
                self.read(unforeseen);
            }
        }
    }

    /// Takes what is there of what is waited for; returns what the engine will not bring.
    fn sort(&mut self, state: &mut State) -> Vec<(usize, u64)> {
        let mut unforeseen = Vec::new();
        let (here, mean) = (&mut self.here, self.inner.mean());
        self.waiting.retain(|&(at, id)| match state.due(id, mean) {
            Due::Soon => true,
            Due::Here(bytes) => {
                here.push_back((at, Ok(bytes)));
                false
            }
            Due::Unforeseen => {
                unforeseen.push((at, id));
                false
            }
        });
        unforeseen
    }

    fn read(&mut self, unforeseen: Vec<(usize, u64)>) {
        for (at, id) in unforeseen {
            self.reading += 1;
            let (inner, tell) = (Arc::clone(&self.inner), self.tell.clone());
            let read = async move {
                let came = inner.read_alone(SampleId(id)).await;
                // Nobody waits any longer if this fails.
                let _ = tell.send((at, came));
            };
            self.reads.spawn_on(read, self.inner.workers.handle());
        }
    }
}

impl Inner {
    /// Reads a sample that the engine will not bring. It is kept where nothing is announced.
    pub(super) async fn read_alone(&self, id: SampleId) -> Result<Bytes, TierError> {
        let keep = self.lock().run.is_none();
        let (sample, from) = self.direct.read(SampleKey::new(DATASET, id), keep).await?;
        self.lock().direct.add(from, sample.len() as u64);
        Ok(sample.data().clone())
    }
}
