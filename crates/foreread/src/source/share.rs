//! A source for other processes of this machine: this process's workers send requests over a
//! socket.
//!
//! Ready samples are answered on the server's thread. Samples that the engine delivers soon
//! wait on one thread, which drives the engine like any other caller. The others are read directly,
//! at once, within [a part of the look-ahead](super::DIRECT_PART). The price is one more thread
//! while a source is shared.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use foreread_open::error::{Error, ErrorKind, Result};
use foreread_store::{SampleProvider, SampleRequest, Server, ServerSettings, WorkerCall};
use foreread_tier::{ErrorKind as TierErrorKind, TierError};
use foreread_types::SampleId;
use tokio::sync::Semaphore;

use super::Source;
use super::source_state::{Availability, SourceState};

/// How long a wait for the engine lasts. The server's end waits for it.
const ENGINE_POLL: Duration = Duration::from_millis(50);

/// Bytes of reads count in KiB, because a semaphore's permits have 32 bits.
const KIB: u64 = 1024;
const MAX_KIB: u64 = 1 << 28;

impl Source {
    /// Serves other processes of the same user on this machine while the server lives.
    ///
    /// They use a [`Client`](foreread_store::Client). Apart from samples by id, a client may call
    /// `report` and `path`. The first returns this source's [`report`](Self::report) as JSON. The
    /// second returns the path of the sample whose number is the payload, in digits.
    ///
    /// Samples that clients hold count in the look-ahead, of which they take at most a quarter. The
    /// memory of samples is such from now on that forked children do not have it. So this process
    /// gets copies.
    ///
    /// # Errors
    /// If the system has no memory, descriptors or threads left.
    pub fn share(&self, settings: ServerSettings) -> Result<Server> {
        self.inner.shared.store(true, Ordering::Relaxed);
        let held = settings.shared_bytes.min(self.inner.look_ahead / super::HELD_PART);
        let settings = settings.with_shared_bytes(held);
        let room = (self.inner.look_ahead / super::DIRECT_PART).div_ceil(KIB).clamp(1, MAX_KIB);
        let queue = Arc::new(RequestQueue {
            source: self.clone(),
            pending: Mutex::default(),
            arrived: Condvar::new(),
            room: Arc::new(Semaphore::new(room as usize)),
            most: room as u32,
        });
        let at = Arc::clone(&queue);
        let thread = std::thread::Builder::new()
            .name("foreread-stored".to_owned())
            .spawn(move || at.work())
            .map_err(|error| Error::new(ErrorKind::System, format!("no thread to serve workers: {error}")))?;
        let shared = SharedSource { queue, thread: Some(thread) };
        Server::start(Arc::new(shared), Arc::clone(&self.inner.buffers), settings)
            .map_err(|error| Error::new(ErrorKind::System, error.to_string()))
    }
}

/// The source as the server sees it. Dropping it ends the thread.
#[derive(Debug)]
struct SharedSource {
    queue: Arc<RequestQueue>,
    thread: Option<JoinHandle<()>>,
}

/// Requests that wait for the engine.
#[derive(Debug)]
struct RequestQueue {
    source: Source,
    pending: Mutex<PendingAsks>,
    arrived: Condvar,
    /// The memory for direct reads in KiB: the free part and the total.
    room: Arc<Semaphore>,
    most: u32,
}

#[derive(Debug, Default)]
struct PendingAsks {
    sample_requests: Vec<SampleRequest>,
    closed: bool,
}

/// Requests by how their samples can be had.
#[derive(Debug, Default)]
struct SortedAsks {
    ready: Vec<(SampleRequest, Bytes)>,
    soon: Vec<SampleRequest>,
    unannounced: Vec<SampleRequest>,
}

impl SampleProvider for SharedSource {
    fn get(&self, mut sample_requests: Vec<SampleRequest>) {
        let samples = self.queue.source.inner.catalog.len();
        for request in sample_requests.extract_if(.., |request| request.id().0 >= samples) {
            let error = TierError::new(TierErrorKind::Invalid, "source")
                .with_object(format!("sample {}", request.id()))
                .with_detail(format!("the dataset has {samples}"));
            request.answer(Err(error));
        }
        let sorted = self.queue.sort(&mut self.queue.source.inner.lock(), sample_requests);
        let soon = self.queue.answer(sorted);
        if !soon.is_empty() {
            self.queue.lock().sample_requests.extend(soon);
            self.queue.arrived.notify_all();
        }
    }

    fn call(&self, call: WorkerCall) {
        match call.name() {
            "report" => {
                let report = serde_json::to_vec(&self.queue.source.report()).map(Bytes::from);
                call.answer(report.map_err(|error| {
                    TierError::new(TierErrorKind::Other, "source").with_detail(error.to_string())
                }));
            }
            "path" => {
                let path = self.queue.path(call.payload()).map(Bytes::from);
                call.answer(path);
            }
            name => {
                let error = TierError::new(TierErrorKind::Unsupported, "source").with_object(name);
                call.answer(Err(error.with_detail("unknown call")));
            }
        }
    }
}

impl RequestQueue {
    /// The path of a sample whose number comes as text.
    fn path(&self, number: &[u8]) -> Result<String, TierError> {
        let invalid = |what: String| TierError::new(TierErrorKind::Invalid, "source").with_detail(what);
        let text = String::from_utf8_lossy(number);
        let catalog = &self.source.inner.catalog;
        let id = text.parse().ok().filter(|id| *id < catalog.len());
        let id =
            id.ok_or_else(|| invalid(format!("'{text}': expected a sample number below {}", catalog.len())))?;
        catalog.path(SampleId(id)).map(|path| path.to_string()).map_err(|error| invalid(error.to_string()))
    }

    fn lock(&self) -> MutexGuard<'_, PendingAsks> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sort(&self, state: &mut SourceState, sample_requests: Vec<SampleRequest>) -> SortedAsks {
        let mean = self.source.inner.mean();
        let mut sorted = SortedAsks::default();
        for request in sample_requests {
            match state.availability(self.source.inner.number(request.id().0), mean) {
                Availability::Ready(bytes) => sorted.ready.push((request, bytes)),
                Availability::Soon => sorted.soon.push(request),
                Availability::Unannounced => sorted.unannounced.push(request),
            }
        }
        sorted
    }

    /// Answers ready samples, reads those the engine will not deliver, and returns the requests
    /// that must wait.
    fn answer(&self, sorted: SortedAsks) -> Vec<SampleRequest> {
        if !sorted.ready.is_empty() {
            drop(self.source.inner.wait_time.begin());
        }
        for (request, bytes) in sorted.ready {
            request.answer(Ok(bytes));
        }
        for request in sorted.unannounced {
            let inner = Arc::clone(&self.source.inner);
            let waiting = inner.wait_time.begin();
            let number = inner.number(request.id().0);
            let kib = inner.bytes(number).div_ceil(KIB).clamp(1, u64::from(self.most)) as u32;
            let room = Arc::clone(&self.room);
            let read = async move {
                let _waiting = waiting;
                // Until the answer. The semaphore is never closed.
                let _room = room.acquire_many(kib).await;
                let sample = inner.read_direct(SampleId(number)).await;
                request.answer(sample);
            };
            self.source.inner.workers.handle().spawn(read);
        }
        sorted.soon
    }

    /// Drives the engine while requests wait for it.
    fn work(&self) {
        let mut waiting: Vec<SampleRequest> = Vec::new();
        let mut since = None;
        loop {
            let mut pending = self.lock();
            if waiting.is_empty() && pending.sample_requests.is_empty() {
                since = None;
            }
            while waiting.is_empty() && pending.sample_requests.is_empty() && !pending.closed {
                pending = self.arrived.wait(pending).unwrap_or_else(PoisonError::into_inner);
            }
            if pending.closed {
                return;
            }
            waiting.append(&mut pending.sample_requests);
            drop(pending);
            since.get_or_insert_with(|| self.source.inner.wait_time.begin());
            waiting.retain(SampleRequest::is_wanted);
            let mut state = self.source.inner.lock();
            let sorted = self.sort(&mut state, waiting);
            if sorted.ready.is_empty() && sorted.unannounced.is_empty() {
                waiting = sorted.soon;
                if !waiting.is_empty() {
                    self.source.inner.pull(state, ENGINE_POLL);
                }
            } else {
                drop(state);
                waiting = self.answer(sorted);
            }
        }
    }
}

impl Drop for SharedSource {
    fn drop(&mut self) {
        self.queue.lock().closed = true;
        self.queue.arrived.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}
