//! Stored units that many samples share: compressed pages of tables, chunks of many rows.
//!
//! A unit is read and decoded as a whole, at the first use of any of its samples. Uses that come
//! until then share the read. Afterwards its other samples are [kept](crate::kept_parts) in the
//! order of their next use. [`UnitContents`] knows them and the run's order.
//!
//! # Decision and price
//!
//! The units are here and not in a cache of the plan. Only a read of the origin brings more samples
//! than the requested one. So caches, other ranks and the trainer see ordinary samples. The price
//! is that a unit is read again where memory does not hold its samples until their next use.
//! `foreread plan` says how often.
//!
//! Units in flight have a part of the memory. While it is used up, further units wait in the order
//! of their requests. A read unit needs no other one, so none waits for ever. A unit that is larger
//! than that part is read alone. So memory is bounded by the limit, or by the largest unit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};
use std::thread::available_parallelism;

use bytes::Bytes;
use foreread_tier::{StoredPart, TierError, lock};
use foreread_types::{DatasetId, SampleKey, Tick};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::kept_parts::{KeptParts, OVERHEAD, PartKey};

/// The part of the memory that units in flight may take, unless one unit alone takes more.
const IN_FLIGHT: u64 = 4;

/// The unit of permits in bytes.
const PERMIT: u64 = 1024;

/// The memory of units without a setting, in bytes.
const DEFAULT: u64 = 64 << 20;

/// A part of another sample in the same unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The sample.
    pub key: SampleKey,
    /// The number of its part.
    pub part: u32,
    /// The bytes of the decoded unit that the part delivers.
    pub delivered: Range<u64>,
}

/// The facts of stored units in a run.
pub trait UnitContents: Debug + Send + Sync {
    /// The parts of other samples in the unit that part `part` of sample `key` is made of. May take
    /// a microsecond per sample. Runs on a blocking thread.
    fn neighbours(&self, key: SampleKey, part: u32) -> Vec<Neighbour>;

    /// The next use of a sample after `after` that will read the origin. `None` if there is none
    /// soon. May compute the order of an epoch.
    fn next_use(&self, key: SampleKey, after: Tick) -> Option<Tick>;
}

/// The stored units of all origins of a run: those in flight, and the samples of earlier ones.
/// Clones are the same units.
#[derive(Clone, Debug)]
pub struct Units(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Decodes at once, of all origins.
    threads: Arc<Semaphore>,
}

#[derive(Debug)]
struct State {
    /// The most bytes of kept parts.
    limit: u64,
    kept: KeptParts,
    reads: HashMap<UnitKey, UnitRead>,
    /// Numbers reads.
    next: u64,
    places: Arc<Semaphore>,
    /// The permits of `places`.
    permits: u32,
    contents: Option<Arc<dyn UnitContents>>,
    /// Numbers runs, whose ticks have nothing to do with each other.
    run: u64,
    /// The uses of this run that are being read, with their number.
    due: BTreeMap<Tick, usize>,
    counts: UnitCounts,
}

/// Counts of units since the beginning of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitCounts {
    /// Units that were read and decoded.
    pub read: u64,
    /// Parts of samples that an earlier read had brought.
    pub kept: u64,
}

/// Identifies a unit: its object, its stored bytes and how they are decoded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct UnitKey {
    dataset: DatasetId,
    object: Arc<str>,
    part: StoredPart,
}

impl UnitKey {
    fn of(key: SampleKey, object: &Arc<str>, part: &StoredPart) -> Self {
        // The same for all samples of the unit.
        let part = StoredPart { delivered: 0..part.recipe.length(), ..part.clone() };
        Self { dataset: key.dataset, object: Arc::clone(object), part }
    }
}

/// A read in flight.
#[derive(Debug)]
struct UnitRead {
    number: u64,
    future: WeakShared<UnitFuture>,
    /// The parts that will be cut out of it by their own reads.
    waiting: HashSet<PartKey>,
}

type UnitFuture = BoxFuture<'static, Result<Arc<DecodedUnit>, TierError>>;

/// A decoded unit. It counts as in flight until all reads have cut out their parts.
#[derive(Debug)]
pub(crate) struct DecodedUnit {
    pub(crate) bytes: Bytes,
    _place: Option<OwnedSemaphorePermit>,
}

/// The bytes of a part, or the unit that has them.
pub(crate) enum UnitPart {
    Kept(Bytes),
    Unit(Shared<UnitFuture>),
}

/// The unit that is to be read.
#[derive(Clone, Debug)]
pub(crate) struct UnitUse {
    pub(crate) object: Arc<str>,
    pub(crate) key: SampleKey,
    /// The number of the part, and the part.
    pub(crate) number: u32,
    pub(crate) part: StoredPart,
    pub(crate) due: Tick,
}

/// The permission to have a unit in flight.
pub(crate) enum UnitPlace {
    Granted(Option<OwnedSemaphorePermit>),
    Queued { places: Arc<Semaphore>, permits: u32 },
}

impl UnitPlace {
    /// Waits for the permission.
    pub(crate) async fn wait(self) -> Option<OwnedSemaphorePermit> {
        match self {
            Self::Granted(permit) => permit,
            // The semaphore is never closed.
            Self::Queued { places, permits } => places.acquire_many_owned(permits).await.ok(),
        }
    }
}

impl Default for Units {
    fn default() -> Self {
        Self::new(DEFAULT)
    }
}

impl Units {
    /// The memory of a kept part beyond its bytes.
    pub const OVERHEAD: u64 = OVERHEAD;

    /// The most bytes of kept parts, with their overhead, in `bytes` bytes of memory.
    pub fn kept_of(bytes: u64) -> u64 {
        shares(bytes).0
    }

    /// No units so far, in at most `bytes` bytes of memory.
    pub fn new(bytes: u64) -> Self {
        let threads = Arc::new(Semaphore::new(available_parallelism().map_or(1, usize::from)));
        let (limit, permits) = shares(bytes);
        let state = State {
            limit,
            kept: KeptParts::default(),
            reads: HashMap::new(),
            next: 0,
            places: Arc::new(Semaphore::new(permits as usize)),
            permits,
            contents: None,
            run: 0,
            due: BTreeMap::new(),
            counts: UnitCounts::default(),
        };
        Self(Arc::new(Inner { state: Mutex::new(state), threads }))
    }

    /// Sets the memory in bytes. Units in flight keep theirs.
    pub fn set_limit(&self, bytes: u64) {
        let mut state = lock(&self.0.state);
        let (limit, permits) = shares(bytes);
        (state.limit, state.permits) = (limit, permits);
        state.places = Arc::new(Semaphore::new(permits as usize));
    }

    /// Begins a run, whose ticks are others. Nothing is kept from the previous one.
    pub fn begin_run(&self, contents: Arc<dyn UnitContents>) {
        let mut state = lock(&self.0.state);
        state.contents = Some(contents);
        state.run += 1;
        state.kept.clear();
        state.due.clear();
        state.counts = UnitCounts::default();
    }

    /// The counts of this run.
    pub fn counts(&self) -> UnitCounts {
        lock(&self.0.state).counts
    }

    /// The bytes of kept parts, with their overhead.
    pub fn kept_bytes(&self) -> u64 {
        lock(&self.0.state).kept.charged()
    }

    /// The units that are being read or decoded.
    pub fn in_flight(&self) -> usize {
        lock(&self.0.state).reads.len()
    }

    /// Places for decoding, as many as processors.
    pub(crate) fn threads(&self) -> Arc<Semaphore> {
        Arc::clone(&self.0.threads)
    }

    /// Notes that samples due at `due` are being read, until the guard is dropped.
    pub(crate) fn reading(&self, due: Tick) -> DueGuard {
        let mut state = lock(&self.0.state);
        *state.due.entry(due).or_default() += 1;
        DueGuard { units: Arc::downgrade(&self.0), run: state.run, due }
    }

    /// The unit of a part. If it is neither kept nor in flight, `read` begins to read it in the
    /// given place. Its future must end with [`keep`](Self::keep).
    pub(crate) fn get(
        &self,
        wanted: &UnitUse,
        read: impl FnOnce(UnitPlace, ReadNumber) -> UnitFuture,
    ) -> UnitPart {
        let key = UnitKey::of(wanted.key, &wanted.object, &wanted.part);
        let mut state = lock(&self.0.state);
        let part = (wanted.key, wanted.number);
        if let Some(bytes) = state.kept.take(part) {
            state.counts.kept += 1;
            return UnitPart::Kept(bytes);
        }
        if let Some(reading) = state.reads.get_mut(&key)
            && let Some(future) = reading.future.upgrade()
        {
            reading.waiting.insert(part);
            return UnitPart::Unit(future);
        }
        state.next += 1;
        state.counts.read += 1;
        let number = state.next;
        let stored = wanted.part.stored.end - wanted.part.stored.start;
        let bytes = stored.saturating_add(wanted.part.recipe.length());
        let permits = u32::try_from(bytes.div_ceil(PERMIT)).unwrap_or(u32::MAX).min(state.permits);
        let places = Arc::clone(&state.places);
        let place = match Arc::clone(&places).try_acquire_many_owned(permits) {
            Ok(permit) => UnitPlace::Granted(Some(permit)),
            Err(_) => UnitPlace::Queued { places, permits },
        };
        // Begun under the lock, so that a unit is not read twice. No layer below knows units.
        let ended = ReadNumber { key: key.clone(), number, run: state.run };
        let future = read(place, ended).shared();
        if let Some(weak) = future.downgrade() {
            state.reads.insert(key, UnitRead { number, future: weak, waiting: HashSet::from([part]) });
        }
        UnitPart::Unit(future)
    }

    /// Ends the read of a unit: keeps those of its samples that are used next, and forgets the
    /// read. `copy` makes the bytes of a part. Runs on a blocking thread.
    pub(crate) fn keep(
        &self,
        read: &ReadNumber,
        wanted: &UnitUse,
        unit: Bytes,
        place: Option<OwnedSemaphorePermit>,
        copy: impl Fn(&[u8]) -> Option<Bytes>,
    ) -> Arc<DecodedUnit> {
        let contents = lock(&self.0.state).contents.clone();
        let neighbours = contents.iter().flat_map(|of| of.neighbours(wanted.key, wanted.number));
        let next = |key| contents.as_ref().and_then(|of| of.next_use(key, wanted.due));
        let mut used: Vec<(Tick, Neighbour)> =
            neighbours.filter_map(|part| Some((next(part.key)?, part))).collect();
        used.sort_unstable_by_key(|(tick, part)| (*tick, part.key, part.part));
        {
            let mut state = lock(&self.0.state);
            if let Some((&oldest, _)) = state.due.first_key_value() {
                state.kept.forget_before(oldest);
            }
        }
        // Copies are made without the lock, one after another: memory has one too many at most.
        for (tick, Neighbour { key, part, delivered }) in used {
            let part = (key, part);
            let length = delivered.end.saturating_sub(delivered.start);
            if !lock(&self.0.state).takes(read, part, tick, length) {
                continue;
            }
            let range = usize::try_from(delivered.start).ok().zip(usize::try_from(delivered.end).ok());
            let bytes = range.and_then(|(start, end)| unit.get(start..end)).and_then(&copy);
            let Some(bytes) = bytes else { break };
            let mut state = lock(&self.0.state);
            if state.takes(read, part, tick, length) {
                let limit = state.limit;
                state.kept.insert(part, tick, bytes, limit);
            }
        }
        let ended = lock(&self.0.state).end(read);
        drop(ended);
        Arc::new(DecodedUnit { bytes: unit, _place: place })
    }

    /// Forgets units that were kept for uses before `tick`, which were delivered.
    pub fn delivered(&self, tick: Tick) {
        lock(&self.0.state).kept.forget_before(tick);
    }

    /// Offers a sample of one part that no cache took, for its next use after `after`.
    pub fn offer(&self, key: SampleKey, bytes: Bytes, after: Tick) {
        let contents = lock(&self.0.state).contents.clone();
        let Some(next) = contents.and_then(|contents| contents.next_use(key, after)) else { return };
        let mut state = lock(&self.0.state);
        let limit = state.limit;
        state.kept.insert((key, 0), next, bytes, limit);
    }

    /// Forgets a read at its end, whatever it is.
    pub(crate) fn guard(&self, read: ReadNumber) -> ReadGuard {
        ReadGuard { units: self.clone(), read }
    }
}

impl State {
    /// Whether a part of a read unit is kept until its use at `next`: not where a read of it waits
    /// for the unit, or another run has begun.
    fn takes(&self, read: &ReadNumber, part: PartKey, next: Tick, length: u64) -> bool {
        let reading = self.reads.get(&read.key).filter(|reading| reading.number == read.number);
        let waits = reading.is_some_and(|reading| reading.waiting.contains(&part));
        self.run == read.run && !waits && self.kept.takes(next, length, self.limit)
    }

    /// Removes a read.
    fn end(&mut self, read: &ReadNumber) -> Option<UnitRead> {
        let is_it = self.reads.get(&read.key).is_some_and(|reading| reading.number == read.number);
        if is_it { self.reads.remove(&read.key) } else { None }
    }
}

/// The bytes for kept parts, and the permits of units in flight.
fn shares(bytes: u64) -> (u64, u32) {
    let in_flight = bytes / IN_FLIGHT;
    let permits = (in_flight / PERMIT).clamp(1, (Semaphore::MAX_PERMITS as u64).min(u64::from(u32::MAX)));
    (bytes - in_flight, permits as u32)
}

/// A read of a unit.
#[derive(Clone, Debug)]
pub(crate) struct ReadNumber {
    key: UnitKey,
    number: u64,
    /// The run that began it.
    run: u64,
}

/// Forgets a read when it is dropped: the read has failed, or no use waits for it any more.
#[derive(Debug)]
pub(crate) struct ReadGuard {
    units: Units,
    read: ReadNumber,
}

impl Drop for ReadGuard {
    fn drop(&mut self) {
        drop(lock(&self.units.0.state).end(&self.read));
    }
}

/// Uses that are being read, until it is dropped.
#[derive(Debug)]
pub(crate) struct DueGuard {
    units: Weak<Inner>,
    run: u64,
    due: Tick,
}

impl Drop for DueGuard {
    fn drop(&mut self) {
        let Some(inner) = self.units.upgrade() else { return };
        let mut state = lock(&inner.state);
        if state.run != self.run {
            return;
        }
        if let Some(uses) = state.due.get_mut(&self.due) {
            *uses = uses.saturating_sub(1);
            if *uses == 0 {
                state.due.remove(&self.due);
            }
        }
    }
}
