//! Samples that are made from stored bytes: the outermost layer of an origin.
//!
//! Each stored part is an ordinary read of a range. So it is joined, limited, retried and counted
//! by the other layers, and a failed part alone is repeated. The decoded bytes go to the caller,
//! and caches and other ranks never see stored bytes.
//!
//! # Decision and price
//!
//! Decoding keeps a processor busy for longer than anything else that a read does. So it runs on
//! the runtime's blocking threads, on as many at once as the machine has processors. A few
//! kilobytes are decoded by the reading task, because handing them to a thread takes as long. The
//! decoded bytes are copied into memory of the run's [`Buffers`] once. The copy is short against
//! decoding. Budgets count delivered bytes. The stored bytes of reads in flight come on top, and
//! the decoded bytes of as many samples as there are processors.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::Duration;

use bytes::Bytes;
use foreread_formats::decode::decode;
use foreread_tier::{Buffers, ErrorKind, ReadFuture, ReadRequest, Span, StoredPart, TierError};
use futures::future::try_join_all;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long decoding waits for a thread. Other users of a runtime may hold all its blocking threads
/// and wait for these very samples. Then the reading task decodes.
const START: Duration = Duration::from_millis(100);

/// Samples of at most so many decoded bytes are decoded by the task that reads them.
const SHORT: u64 = 4 << 10;

/// Decodes samples.
#[derive(Clone, Debug)]
pub(crate) struct MadeLayer {
    tier: Arc<str>,
    buffers: Arc<dyn Buffers>,
    threads: Arc<Semaphore>,
}

impl MadeLayer {
    pub(crate) fn new(tier: &str, buffers: Arc<dyn Buffers>) -> Self {
        let threads = available_parallelism().map_or(1, usize::from);
        Self { tier: tier.into(), buffers, threads: Arc::new(Semaphore::new(threads)) }
    }

    /// Reads `parts` by `read`, all at once and before this returns, and decodes them.
    pub(crate) fn read(
        &self,
        request: &ReadRequest,
        parts: &Arc<[StoredPart]>,
        read: impl Fn(Arc<ReadRequest>) -> ReadFuture,
    ) -> ReadFuture {
        let object = &*request.object.path;
        for part in &**parts {
            if let Err(why) = part.check(request.object.size) {
                let error = TierError::invalid(&self.tier, object, why);
                return Box::pin(std::future::ready(Err(error)));
            }
        }
        let stored = |part: &StoredPart| {
            let span = Span::Range(part.stored.clone());
            read(Arc::new(ReadRequest { span, block: None, ..request.clone() }))
        };
        let reads: Vec<ReadFuture> = parts.iter().map(stored).collect();
        let (layer, parts) = (self.clone(), Arc::clone(parts));
        let decoding = Decoding { object: Arc::clone(&request.object.path), length: request.len() };
        Box::pin(async move { layer.decode(decoding, parts, try_join_all(reads).await?).await })
    }

    async fn decode(
        self,
        decoding: Decoding,
        parts: Arc<[StoredPart]>,
        stored: Vec<Bytes>,
    ) -> Result<Bytes, TierError> {
        let decoded = parts.iter().map(|part| part.recipe.length()).fold(0, u64::saturating_add);
        let runtime = Handle::try_current().ok().filter(|_| decoded > SHORT);
        let Some(runtime) = runtime else { return decoding.run(&self, &parts, &stored) };
        // The semaphore is never closed. The thread holds its place, because the caller may be
        // dropped before decoding ends.
        let place = Arc::clone(&self.threads).acquire_owned().await;
        let tier = Arc::clone(&self.tier);
        let work = move || {
            let _place = place;
            decoding.run(&self, &parts, &stored)
        };
        let ended = |why: &dyn std::fmt::Display| {
            let detail = format!("decoding a sample has ended early: {why}");
            Err(TierError::new(ErrorKind::Other, &*tier).with_detail(detail))
        };
        let work = Arc::new(Mutex::new(Some(work)));
        let of_thread = Arc::clone(&work);
        let mut thread = runtime.spawn_blocking(move || take(&of_thread).map(|work| work()));
        let decoded = match timeout(START, &mut thread).await {
            Ok(decoded) => decoded,
            Err(_) => match take(&work) {
                Some(work) => return work(),
                None => thread.await,
            },
        };
        match decoded {
            Ok(Some(decoded)) => decoded,
            Ok(None) => ended(&"its work was taken"),
            Err(error) => ended(&error),
        }
    }
}

/// The work, unless another task or thread has begun it.
fn take<T>(work: &Mutex<Option<T>>) -> Option<T> {
    work.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// A sample that is being decoded.
struct Decoding {
    object: Arc<str>,
    /// The number of delivered bytes.
    length: u64,
}

impl Decoding {
    fn run(&self, layer: &MadeLayer, parts: &[StoredPart], stored: &[Bytes]) -> Result<Bytes, TierError> {
        let error = |kind, detail: String| {
            TierError::new(kind, &*layer.tier).with_object(&*self.object).with_detail(detail)
        };
        let length = usize::try_from(self.length).ok();
        let buffer = length.and_then(|length| layer.buffers.allocate(length, 1));
        let Some(mut buffer) = buffer else {
            return Err(error(ErrorKind::Full, format!("no memory for its {} bytes", self.length)));
        };
        for (part, stored) in parts.iter().zip(stored) {
            let damaged = |why: &dyn std::fmt::Display| {
                let range = &part.stored;
                let detail = format!("the bytes {}..{} cannot be decoded: {why}", range.start, range.end);
                error(ErrorKind::Corrupt, detail)
            };
            let decoded = decode(&part.recipe, stored).map_err(|error| damaged(&error))?;
            let range = part.delivered.start as usize..part.delivered.end as usize;
            let delivered = decoded.get(range).ok_or_else(|| damaged(&"too few bytes"))?;
            buffer.extend(delivered);
        }
        Ok(buffer.freeze())
    }
}
