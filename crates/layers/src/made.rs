//! Samples that are made from stored bytes: the outermost layer of an origin.
//!
//! Each stored part is an ordinary read of a range. So it is joined, limited, retried and counted
//! by the other layers, and a failed part alone is repeated. The decoded bytes go to the caller,
//! and caches and other ranks never see stored bytes. Parts of a decoded unit that other samples
//! may share go through [`Units`]. Bytes that cannot be decoded are read once more, because they
//! may have been damaged on their way.
//!
//! # Decision and price
//!
//! Decoding keeps a processor busy for longer than anything else that a read does. So it runs on
//! the runtime's blocking threads, on as many at once as the machine has processors. A few
//! kilobytes are decoded by the reading task, because handing them to a thread takes as long. The
//! decoded bytes are copied into memory of the run's [`Buffers`] once. The copy is short against
//! decoding. Budgets count delivered bytes. The stored bytes of reads in flight come on top, and
//! the decoded bytes of as many samples as there are processors. A sample of parts of several units
//! has each part copied as soon as its unit is decoded. So its bytes are in memory twice for a
//! moment, but no read holds a unit while it waits for another one.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use foreread_formats::decode::decode;
use foreread_tier::{
    Buffer, Buffers, ErrorKind, Lifetime, ReadFuture, ReadRequest, Span, StoredPart, TierError, lock,
};
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::units::{DecodedUnit, ReadNumber, UnitPart, UnitPlace, UnitUse, Units};

/// How long decoding waits for a thread. Other users of a runtime may hold all its blocking threads
/// and wait for these very samples. Then the reading task decodes.
const START: Duration = Duration::from_millis(100);

/// At most so many decoded bytes are decoded by the task that reads them.
const SHORT: u64 = 4 << 10;

/// Reads stored bytes through the other layers.
pub(crate) trait StoredBytes: Send + Sync + 'static {
    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture;
}

/// Decodes samples.
#[derive(Clone)]
pub(crate) struct MadeLayer {
    tier: Arc<str>,
    buffers: Arc<dyn Buffers>,
    units: Units,
    stored: Arc<dyn StoredBytes>,
}

/// The bytes of one part, as far as they were read.
enum Piece {
    /// As they are delivered.
    Ready(Bytes),
    /// Stored bytes of this part alone.
    Stored(Bytes),
    /// A decoded unit that has them.
    Unit(Arc<DecodedUnit>),
}

impl MadeLayer {
    pub(crate) fn new(
        tier: &str,
        buffers: Arc<dyn Buffers>,
        units: Units,
        stored: Arc<dyn StoredBytes>,
    ) -> Self {
        Self { tier: tier.into(), buffers, units, stored }
    }

    /// Reads `parts`, all at once and before this returns as far as they need not wait for memory,
    /// and decodes them.
    pub(crate) fn read(&self, request: &Arc<ReadRequest>, parts: &Arc<[StoredPart]>) -> ReadFuture {
        for part in &**parts {
            if let Err(why) = part.check(request.object.size) {
                let error = TierError::invalid(&self.tier, &request.object.path, why);
                return Box::pin(std::future::ready(Err(error)));
            }
        }
        let due = parts.iter().any(StoredPart::is_shared).then(|| self.units.reading(request.due));
        let pieces = self.pieces(request, parts);
        let (layer, request, parts) = (self.clone(), Arc::clone(request), Arc::clone(parts));
        Box::pin(async move {
            let _due = due;
            let first = layer.clone().made(&request, &parts, pieces).await;
            match first {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let key = request.key;
                    tracing::debug!(%key, %error, "a sample cannot be decoded, reading it once more");
                    let pieces = layer.pieces(&request, &parts);
                    layer.made(&request, &parts, pieces).await
                }
                result => result,
            }
        })
    }

    /// Begins to read all parts.
    fn pieces(
        &self,
        request: &Arc<ReadRequest>,
        parts: &Arc<[StoredPart]>,
    ) -> Vec<BoxFuture<'static, Result<Piece, TierError>>> {
        let piece = |(number, part): (u32, &StoredPart)| {
            if part.is_shared() {
                return self.unit(request, number, part, parts.len() == 1);
            }
            let is_ready = part.recipe.decoders().is_empty();
            // Other bytes are copied once more.
            let is_sample = is_ready && parts.len() == 1;
            let lifetime = if is_sample { request.lifetime } else { Lifetime::Block };
            let read = self.stored.read(Arc::new(of_part(request, part, lifetime)));
            read.map(move |bytes| bytes.map(if is_ready { Piece::Ready } else { Piece::Stored })).boxed()
        };
        (0..).zip(&**parts).map(piece).collect()
    }

    /// Begins to read a part of a unit, unless it is kept. `is_alone`: the sample has no other.
    fn unit(
        &self,
        request: &Arc<ReadRequest>,
        number: u32,
        part: &StoredPart,
        is_alone: bool,
    ) -> BoxFuture<'static, Result<Piece, TierError>> {
        let wanted = UnitUse {
            object: Arc::clone(&request.object.path),
            key: request.key,
            number,
            part: part.clone(),
            due: request.due,
        };
        let begin = |place: UnitPlace, number: ReadNumber| {
            let (layer, wanted, lifetime) = (self.clone(), wanted.clone(), request.lifetime);
            let request = of_part(request, part, Lifetime::Block);
            // The read is queued now if the unit has its place.
            let early = match &place {
                UnitPlace::Granted(_) => Some(layer.stored.read(Arc::new(request.clone()))),
                UnitPlace::Queued { .. } => None,
            };
            let guard = self.units.guard(number.clone());
            let reading = async move {
                let _guard = guard;
                let place = place.wait().await;
                let stored = match early {
                    Some(early) => early.await,
                    None => layer.stored.read(Arc::new(request)).await,
                };
                layer.decoded_unit((wanted, lifetime), stored?, place, number).await
            };
            reading.boxed()
        };
        match self.units.get(&wanted, begin) {
            UnitPart::Kept(bytes) => std::future::ready(Ok(Piece::Ready(bytes))).boxed(),
            UnitPart::Unit(unit) if is_alone => unit.map(|unit| unit.map(Piece::Unit)).boxed(),
            // It must not hold this unit while it waits for others.
            UnitPart::Unit(unit) => {
                let layer = self.clone();
                unit.map(move |unit| layer.part_of(&wanted, &unit?.bytes).map(Piece::Ready)).boxed()
            }
        }
    }

    /// A copy of a part of a decoded unit.
    fn part_of(&self, wanted: &UnitUse, unit: &Bytes) -> Result<Bytes, TierError> {
        let delivered = self.delivered(&wanted.object, &wanted.part, unit)?;
        let mut buffer = self.buffer(Lifetime::Block, &wanted.object, delivered.len() as u64)?;
        buffer.extend(delivered);
        Ok(buffer.freeze())
    }

    /// Decodes a unit and keeps the samples that are used next.
    async fn decoded_unit(
        self,
        (wanted, lifetime): (UnitUse, Lifetime),
        stored: Bytes,
        place: Option<OwnedSemaphorePermit>,
        number: ReadNumber,
    ) -> Result<Arc<DecodedUnit>, TierError> {
        let (layer, object) = (self.clone(), Arc::clone(&wanted.object));
        let work = move || {
            let decoded = layer.decoded(&object, &wanted.part, &stored)?;
            let copy = |bytes: &[u8]| {
                let mut buffer = layer.buffers.allocate_for(lifetime, bytes.len(), 1)?;
                buffer.extend(bytes);
                Some(buffer.freeze())
            };
            Ok(layer.units.keep(&number, &wanted, decoded, place, copy))
        };
        self.on_thread(work).await
    }

    /// The sample, out of its pieces.
    async fn made(
        self,
        request: &Arc<ReadRequest>,
        parts: &Arc<[StoredPart]>,
        pieces: Vec<BoxFuture<'static, Result<Piece, TierError>>>,
    ) -> Result<Bytes, TierError> {
        let pieces = try_join_all(pieces).await?;
        if let [Piece::Ready(bytes)] = &pieces[..] {
            return Ok(bytes.clone());
        }
        let decoded = parts.iter().zip(&pieces).map(|(part, piece)| match piece {
            Piece::Stored(_) => part.recipe.length(),
            Piece::Ready(_) | Piece::Unit(_) => 0,
        });
        let is_short = decoded.fold(0, u64::saturating_add) <= SHORT;
        let (layer, request, parts) = (self.clone(), Arc::clone(request), Arc::clone(parts));
        let work = move || layer.joined(&request, &parts, &pieces);
        if is_short { work() } else { self.on_thread(work).await }
    }

    /// Copies the pieces of a sample into one buffer, after decoding the stored pieces.
    fn joined(
        &self,
        request: &ReadRequest,
        parts: &[StoredPart],
        pieces: &[Piece],
    ) -> Result<Bytes, TierError> {
        let object = &request.object.path;
        let mut buffer = self.buffer(request.lifetime, object, request.len())?;
        for (part, piece) in parts.iter().zip(pieces) {
            let decoded = match piece {
                Piece::Ready(bytes) => {
                    buffer.extend(bytes);
                    continue;
                }
                Piece::Stored(stored) => &self.decoded(object, part, stored)?,
                Piece::Unit(unit) => &unit.bytes,
            };
            buffer.extend(self.delivered(object, part, decoded)?);
        }
        Ok(buffer.freeze())
    }

    /// Memory for a part or for all of a sample.
    fn buffer(&self, lifetime: Lifetime, object: &Arc<str>, length: u64) -> Result<Buffer, TierError> {
        let memory = |length| self.buffers.allocate_for(lifetime, length, 1);
        let buffer = usize::try_from(length).ok().and_then(memory);
        buffer.ok_or_else(|| self.error(ErrorKind::Full, object, format!("no memory for its {length} bytes")))
    }

    /// The bytes that a part delivers.
    fn delivered<'a>(
        &self,
        object: &Arc<str>,
        part: &StoredPart,
        decoded: &'a Bytes,
    ) -> Result<&'a [u8], TierError> {
        let range = part.delivered.start as usize..part.delivered.end as usize;
        decoded.get(range).ok_or_else(|| self.damaged(object, part, &"too few bytes"))
    }

    fn decoded(&self, object: &Arc<str>, part: &StoredPart, stored: &Bytes) -> Result<Bytes, TierError> {
        let decoded = decode(&part.recipe, stored).map_err(|error| self.damaged(object, part, &error))?;
        Ok(match decoded {
            Cow::Borrowed(bytes) => stored.slice_ref(bytes),
            Cow::Owned(bytes) => bytes.into(),
        })
    }

    fn damaged(&self, object: &Arc<str>, part: &StoredPart, why: &dyn std::fmt::Display) -> TierError {
        let range = &part.stored;
        let detail = format!("the bytes {}..{} cannot be decoded: {why}", range.start, range.end);
        self.error(ErrorKind::Corrupt, object, detail)
    }

    fn error(&self, kind: ErrorKind, object: &Arc<str>, detail: String) -> TierError {
        TierError::new(kind, &*self.tier).with_object(&**object).with_detail(detail)
    }

    /// Runs `work` on a blocking thread, or in the calling task if none comes.
    async fn on_thread<T: Send + 'static>(
        self,
        work: impl FnOnce() -> Result<T, TierError> + Send + 'static,
    ) -> Result<T, TierError> {
        let Ok(runtime) = Handle::try_current() else { return work() };
        // The semaphore is never closed. The thread holds its place, because the caller may be
        // dropped before decoding ends.
        let place = self.units.threads().acquire_owned().await;
        let work = move || {
            let _place = place;
            work()
        };
        let work = Arc::new(Mutex::new(Some(work)));
        let of_thread = Arc::clone(&work);
        // Work that no read waits for any more must not keep its place until a thread comes.
        let _cancel = Cancel(Arc::clone(&work));
        let mut thread = runtime.spawn_blocking(move || take(&of_thread).map(|work| work()));
        let done = match timeout(START, &mut thread).await {
            Ok(done) => done,
            Err(_) => match take(&work) {
                Some(work) => return work(),
                None => thread.await,
            },
        };
        let ended = |why: &dyn std::fmt::Display| {
            let detail = format!("decoding a sample has ended early: {why}");
            Err(TierError::new(ErrorKind::Other, &*self.tier).with_detail(detail))
        };
        match done {
            Ok(Some(done)) => done,
            Ok(None) => ended(&"its work was taken"),
            Err(error) => ended(&error),
        }
    }
}

/// The read of a part's stored bytes. All of another object are read as such, so that another
/// length is noticed.
fn of_part(request: &ReadRequest, part: &StoredPart, lifetime: Lifetime) -> ReadRequest {
    let whole = part.object.as_ref().filter(|object| part.stored == (0..object.size));
    let span = if whole.is_some() { Span::Whole } else { Span::Range(part.stored.clone()) };
    let object = part.object.as_ref().unwrap_or(&request.object).clone();
    ReadRequest { object, span, block: None, lifetime, ..request.clone() }
}

/// Takes back work that has not begun, when it is dropped.
struct Cancel<T>(Arc<Mutex<Option<T>>>);

impl<T> Drop for Cancel<T> {
    fn drop(&mut self) {
        drop(take(&self.0));
    }
}

/// The work, unless another task or thread has begun it.
fn take<T>(work: &Mutex<Option<T>>) -> Option<T> {
    lock(work).take()
}
