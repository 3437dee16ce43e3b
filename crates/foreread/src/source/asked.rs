//! Samples that somebody has asked for and waits for.
//!
//! What nobody announced is read by requests of their own. What they hold is counted until it is taken, and all of them
//! together hold [no more](super::DIRECT) than a part of the look-ahead: ten thousand ids in one call are not as many samples
//! in memory. One read is always allowed for each [`Asked`], so that one which is never waited for holds up no other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foreread_tier::{Charge, ErrorKind, TierError};
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
    /// What is to be read by requests of its own, as the budget allows.
    unforeseen: VecDeque<(usize, u64)>,
    /// Reads of their own, and how many of them have not come.
    reads: JoinSet<()>,
    reading: usize,
    tell: Sender<(Came, Charge)>,
    told: Receiver<(Came, Charge)>,
    _waits: Waiting,
}

impl Asked {
    pub(super) fn new(inner: Arc<Inner>, ids: &[u64]) -> Self {
        let (tell, told) = channel();
        let mut asked = Self {
            _waits: inner.waits.begin(),
            inner,
            waiting: Vec::new(),
            here: VecDeque::new(),
            unforeseen: VecDeque::new(),
            reads: JoinSet::new(),
            reading: 0,
            tell,
            told,
        };
        let ids = ids.iter().copied().enumerate();
        if asked.inner.workers.may_block().is_err() {
            // Waiting would block the runtime that reads them.
            asked.here = ids.map(|(at, id)| (at, Err(blocking(id)))).collect();
            return asked;
        }
        asked.waiting = ids.collect();
        asked.sort(&mut asked.inner.clone().lock());
        asked.read();
        asked
    }

    /// How many have not come yet.
    pub fn remaining(&self) -> usize {
        self.waiting.len() + self.here.len() + self.unforeseen.len() + self.reading
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
                return Some(self.take(came));
            }
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() || self.remaining() == 0 {
                return None;
            }
            if self.waiting.is_empty() {
                match self.told.recv_timeout(left) {
                    Ok(came) => return Some(self.take(came)),
                    // The other end is here.
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
                }
            }
            let glance = if self.reading > 0 { left.min(GLANCE) } else { left };
            let inner = Arc::clone(&self.inner);
            let mut state = inner.lock();
            let before = self.waiting.len();
            self.sort(&mut state);
            if self.waiting.len() == before {
                inner.pull(state, glance);
            } else {
                drop(state);
                self.read();
            }
        }
    }

    /// Takes what is there of what is waited for, and notes what the engine will not bring.
    fn sort(&mut self, state: &mut State) {
        let (here, unforeseen, mean) = (&mut self.here, &mut self.unforeseen, self.inner.mean());
        self.waiting.retain(|&(at, id)| match state.due(id, mean) {
            Due::Soon => true,
            Due::Here(bytes) => {
                here.push_back((at, Ok(bytes)));
                false
            }
            Due::Unforeseen => {
                unforeseen.push_back((at, id));
                false
            }
        });
    }

    /// Takes a read's answer, which makes room for the next.
    fn take(&mut self, (came, charge): (Came, Charge)) -> Came {
        self.reading -= 1;
        while self.reads.try_join_next().is_some() {}
        drop(charge);
        self.read();
        came
    }

    /// Begins reads as the budget allows, and one at least.
    fn read(&mut self) {
        while let Some(&(at, id)) = self.unforeseen.front() {
            let bytes = self.inner.bytes(id);
            let charge = match self.inner.asking.try_charge(bytes) {
                Some(charge) => charge,
                None if self.reading == 0 => self.inner.asking.charge(bytes),
                None => return,
            };
            self.unforeseen.pop_front();
            self.reading += 1;
            let (inner, tell) = (Arc::clone(&self.inner), self.tell.clone());
            let read = async move {
                let came = inner.read_alone(SampleId(id)).await;
                // Nobody waits any longer if this fails.
                let _ = tell.send(((at, came), charge));
            };
            self.reads.spawn_on(read, self.inner.workers.handle());
        }
    }
}

impl Inner {
    /// How long a sample is; nothing if there is none of this number, which its read will say.
    pub(super) fn bytes(&self, id: u64) -> u64 {
        if id < self.catalog.len() { self.catalog.sizes().bytes(SampleId(id)) } else { 0 }
    }

    /// Reads a sample that the engine will not bring. It is kept where nothing is announced.
    pub(super) async fn read_alone(&self, id: SampleId) -> Result<Bytes, TierError> {
        let keep = self.lock().run.is_none();
        let (sample, from) = self.direct.read(SampleKey::new(DATASET, id), keep).await?;
        self.lock().direct.add(from, sample.len() as u64);
        Ok(sample.bytes())
    }
}
