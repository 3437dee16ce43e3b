//! A source for other processes of this machine: workers of this process ask its engine, over a socket.
//!
//! What is on the shelf is answered on the thread that serves them; what the engine brings soon waits with one thread, which
//! keeps the engine going as any other asker would; the rest is read at once, each sample for itself, as far as what is under
//! way is [a part of the look-ahead](super::DIRECT). The price is one more thread while a source is shared.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use foreread_share::{Ask, Call, Samples, Server, Settings};
use foreread_tier::{ErrorKind as TierErrorKind, TierError};
use foreread_types::SampleId;
use tokio::sync::Semaphore;

use super::{Due, Source, State};
use crate::error::{Error, ErrorKind, Result};

/// How long the engine is waited for at a time: the end of sharing waits for that.
const GLANCE: Duration = Duration::from_millis(50);

/// Bytes of reads are counted in KiB, because a semaphore's permits are 32 bits, and no more than these.
const KIB: u64 = 1024;
const MOST_KIB: u64 = 1 << 28;

impl Source {
    /// Lets other processes of the same user on this machine ask this source, for as long as the server lives.
    ///
    /// They use a [`Client`](foreread_share::Client). Beside samples by their ids, it may call `report` (this source's
    /// [`report`](Self::report), as JSON) and `path` (of the sample whose number is the payload, in digits).
    ///
    /// # Errors
    /// Where the system has no memory, no descriptors or no threads for it.
    pub fn share(&self, settings: Settings) -> Result<Server> {
        let room = (self.inner.look_ahead / super::DIRECT).div_ceil(KIB).clamp(1, MOST_KIB);
        let desk = Arc::new(Desk {
            source: self.clone(),
            queue: Mutex::default(),
            came: Condvar::new(),
            room: Arc::new(Semaphore::new(room as usize)),
            most: room as u32,
        });
        let at = Arc::clone(&desk);
        let thread =
            std::thread::Builder::new().name("foreread-asked".to_owned()).spawn(move || at.work()).map_err(
                |error| Error::new(ErrorKind::System, format!("no thread to serve workers from: {error}")),
            )?;
        let shared = Shared { desk, thread: Some(thread) };
        Server::start(Arc::new(shared), settings)
            .map_err(|error| Error::new(ErrorKind::System, error.to_string()))
    }
}

/// What the server asks. Dropping it ends the thread.
#[derive(Debug)]
struct Shared {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

/// Where requests wait for the engine.
#[derive(Debug)]
struct Desk {
    source: Source,
    queue: Mutex<Queue>,
    came: Condvar,
    /// What reads that no engine brings may hold, in KiB, and all of it.
    room: Arc<Semaphore>,
    most: u32,
}

#[derive(Debug, Default)]
struct Queue {
    asks: Vec<Ask>,
    closed: bool,
}

/// Requests by where their samples are to be had.
#[derive(Debug, Default)]
struct Sorted {
    here: Vec<(Ask, Bytes)>,
    soon: Vec<Ask>,
    unforeseen: Vec<Ask>,
}

impl Samples for Shared {
    fn get(&self, mut asks: Vec<Ask>) {
        let samples = self.desk.source.inner.catalog.len();
        for ask in asks.extract_if(.., |ask| ask.id().0 >= samples) {
            let error = TierError::new(TierErrorKind::Invalid, "source")
                .with_object(format!("sample {}", ask.id()))
                .with_detail(format!("the dataset has {samples}"));
            ask.answer(Err(error));
        }
        let sorted = self.desk.sort(&mut self.desk.source.inner.lock(), asks);
        let soon = self.desk.answer(sorted);
        if !soon.is_empty() {
            self.desk.lock().asks.extend(soon);
            self.desk.came.notify_all();
        }
    }

    fn call(&self, call: Call) {
        match call.name() {
            "report" => {
                let report = serde_json::to_vec(&self.desk.source.report()).map(Bytes::from);
                call.answer(report.map_err(|error| {
                    TierError::new(TierErrorKind::Other, "source").with_detail(error.to_string())
                }));
            }
            "path" => {
                let path = self.desk.path(call.payload()).map(Bytes::from);
                call.answer(path);
            }
            name => {
                let error = TierError::new(TierErrorKind::Unsupported, "source").with_object(name);
                call.answer(Err(error.with_detail("a source answers no such call")));
            }
        }
    }
}

impl Desk {
    /// The path of a sample whose number comes as text.
    fn path(&self, number: &[u8]) -> Result<String, TierError> {
        let invalid = |what: String| TierError::new(TierErrorKind::Invalid, "source").with_detail(what);
        let text = String::from_utf8_lossy(number);
        let catalog = &self.source.inner.catalog;
        let id = text.parse().ok().filter(|id| *id < catalog.len());
        let id =
            id.ok_or_else(|| invalid(format!("'{text}' is no number of one of {} samples", catalog.len())))?;
        catalog.path(SampleId(id)).map(|path| path.to_string()).map_err(|error| invalid(error.to_string()))
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sort(&self, state: &mut State, asks: Vec<Ask>) -> Sorted {
        let mean = self.source.inner.mean();
        let mut sorted = Sorted::default();
        for ask in asks {
            match state.due(ask.id().0, mean) {
                Due::Here(bytes) => sorted.here.push((ask, bytes)),
                Due::Soon => sorted.soon.push(ask),
                Due::Unforeseen => sorted.unforeseen.push(ask),
            }
        }
        sorted
    }

    /// Answers what is there, has read what will not come, and gives back what is to be waited for.
    fn answer(&self, sorted: Sorted) -> Vec<Ask> {
        if !sorted.here.is_empty() {
            drop(self.source.inner.waits.begin());
        }
        for (ask, bytes) in sorted.here {
            ask.answer(Ok(bytes));
        }
        for ask in sorted.unforeseen {
            let inner = Arc::clone(&self.source.inner);
            let waiting = inner.waits.begin();
            let kib = inner.bytes(ask.id().0).div_ceil(KIB).clamp(1, u64::from(self.most)) as u32;
            let room = Arc::clone(&self.room);
            let read = async move {
                let _waiting = waiting;
                // Until it is answered. It is never closed.
                let _room = room.acquire_many(kib).await;
                let came = inner.read_alone(ask.id()).await;
                ask.answer(came);
            };
            self.source.inner.workers.handle().spawn(read);
        }
        sorted.soon
    }

    /// Keeps the engine going while somebody waits for it.
    fn work(&self) {
        let mut waiting: Vec<Ask> = Vec::new();
        let mut since = None;
        loop {
            let mut queue = self.lock();
            if waiting.is_empty() && queue.asks.is_empty() {
                since = None;
            }
            while waiting.is_empty() && queue.asks.is_empty() && !queue.closed {
                queue = self.came.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            if queue.closed {
                return;
            }
            waiting.append(&mut queue.asks);
            drop(queue);
            since.get_or_insert_with(|| self.source.inner.waits.begin());
            waiting.retain(Ask::is_wanted);
            let mut state = self.source.inner.lock();
            let sorted = self.sort(&mut state, waiting);
            if sorted.here.is_empty() && sorted.unforeseen.is_empty() {
                waiting = sorted.soon;
                if !waiting.is_empty() {
                    self.source.inner.pull(state, GLANCE);
                }
            } else {
                drop(state);
                waiting = self.answer(sorted);
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.desk.lock().closed = true;
        self.desk.came.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was told already when it happened.
            let _ = thread.join();
        }
    }
}
