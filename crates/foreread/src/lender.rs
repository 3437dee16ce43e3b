//! Batches of a loader for worker processes: they decode the samples where the engine has read
//! them.
//!
//! The loader's process takes batches from the engine and lends them by number. A worker requests a
//! batch by its number, also before it is lent, and waits. It gets the ids, and then the samples,
//! which lie in memory that both processes map. Batches may be requested in any order.
//!
//! Decision: the engine knows nothing of workers. A lent batch counts in the look-ahead, as any
//! batch that a trainer holds, until it is taken back. The price: two requests for a batch, and the
//! server's thread.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use foreread_loader::Batch;
use foreread_open::error::{Error, ErrorKind, Result};
use foreread_store::{
    Client, SampleProvider, SampleRequest, Server, ServerSettings, SharedBytes, StoreError, WorkerCall,
};
use foreread_tier::{ErrorKind as TierErrorKind, TierError};
use foreread_types::SampleId;

use crate::loader::Loader;

/// The call for the epoch and the ids of a batch.
const BATCH: &str = "batch";

/// The bits of a sample's number that are its index in the batch. The others are the batch's.
const INDEX_BITS: u32 = 24;

impl Loader {
    /// Lends batches to other processes of the same user on this machine while the lender lives.
    ///
    /// Samples that were read before are copied, unless the run was built [for
    /// it](crate::Builder::lend_batches). Forked children do not have the memory of the others.
    ///
    /// # Errors
    /// If the system has no memory, descriptors or threads left.
    pub fn lend_batches(&self, settings: ServerSettings) -> Result<BatchLender> {
        let lent = Arc::new(Lent::default());
        let provider: Arc<dyn SampleProvider> = Arc::clone(&lent) as Arc<dyn SampleProvider>;
        let server = Server::start(provider, self.assembly.buffers(), settings)
            .map_err(|error| Error::new(ErrorKind::System, error.to_string()))?;
        Ok(BatchLender { server, lent })
    }
}

/// Lends batches to worker processes: see [`Loader::lend_batches`]. Dropping it takes all back, and
/// fails the requests of workers.
///
/// ```
/// use foreread::Loader;
/// use foreread::share::{Client, LentBatch, ServerSettings};
/// # let directory = tempfile::tempdir()?;
/// # for name in ["a", "b", "c"] { std::fs::write(directory.path().join(name), name)?; }
/// # let path = directory.path().to_str().expect("a path of ASCII");
/// let loader = Loader::builder(path).batch_size(2).epochs(1).lend_batches().start()?;
/// let lender = loader.lend_batches(ServerSettings::default())?;
///
/// // In a worker process, which may request a batch before it is lent:
/// let client = Client::connect(&lender.address())?;
/// let request = |number| {
///     let client = client.clone();
///     std::thread::spawn(move || LentBatch::of(&client, number, &mut || false))
/// };
/// let (first, second) = (request(0), request(1));
///
/// let batch = loader.batches().next().expect("a batch")?;
/// let ids: Vec<_> = batch.iter().map(|(id, _)| id).collect();
/// lender.lend(0, batch);
/// let first = first.join().expect("no panic")?;
/// assert_eq!(first.samples.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
/// // An iteration that ends early refuses the requests of its workers.
/// lender.refuse_below(2);
/// assert!(second.join().expect("no panic").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct BatchLender {
    server: Server,
    lent: Arc<Lent>,
}

impl BatchLender {
    /// The address for [`Client::connect`], with a secret.
    pub fn address(&self) -> String {
        self.server.address()
    }

    /// Lends a batch under a number, until it is taken back.
    pub fn lend(&self, number: u64, batch: Batch) {
        let mut state = self.lent.lock();
        let waiting = state.waiting.remove(&number).unwrap_or_default();
        let facts = facts(&batch);
        state.batches.insert(number, batch);
        drop(state);
        for call in waiting {
            call.answer(Ok(facts.clone()));
        }
    }

    /// Takes a batch back. A worker may still hold samples of it.
    pub fn take_back(&self, number: u64) {
        let batch = self.lent.lock().batches.remove(&number);
        drop(batch);
    }

    /// Takes all batches back, and refuses requests for batches below a number from now on.
    pub fn refuse_below(&self, number: u64) {
        let mut state = self.lent.lock();
        state.least = state.least.max(number);
        let batches = std::mem::take(&mut state.batches);
        let waiting: Vec<WorkerCall> =
            state.waiting.extract_if(|wanted, _| *wanted < number).flat_map(|(_, calls)| calls).collect();
        drop(state);
        drop(batches);
        for call in waiting {
            call.answer(Err(withdrawn()));
        }
    }
}

/// A batch in a worker process.
#[derive(Debug)]
pub struct LentBatch {
    /// Its epoch, from 0.
    pub epoch: u64,
    /// Its samples, in order.
    pub samples: Vec<(SampleId, SharedBytes)>,
}

impl LentBatch {
    /// The batch of a number, as soon as it is lent. `stop` is called from time to time, and ends
    /// the wait if it returns true.
    ///
    /// # Errors
    /// If the batch was taken back, the lender is gone, or `stop` ended the wait.
    pub fn of(
        client: &Client,
        number: u64,
        stop: &mut dyn FnMut() -> bool,
    ) -> std::result::Result<Self, StoreError> {
        let facts = client.call_with(BATCH, &number.to_le_bytes(), stop)?;
        let mut words = facts.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let epoch = words.next().unwrap_or_default();
        let ids: Vec<SampleId> = words.map(SampleId).collect();
        let first = number << INDEX_BITS;
        let wanted: Vec<SampleId> = (first..).take(ids.len()).map(SampleId).collect();
        let samples = ids.into_iter().zip(client.get_with(&wanted, stop));
        let samples = samples.map(|(id, sample)| sample.map(|sample| (id, sample)));
        Ok(Self { epoch, samples: samples.collect::<std::result::Result<_, _>>()? })
    }
}

/// The epoch and the ids of a batch, as little-endian numbers.
fn facts(batch: &Batch) -> Bytes {
    let words = std::iter::once(batch.epoch()).chain(batch.iter().map(|(id, _)| id.0));
    words.flat_map(u64::to_le_bytes).collect()
}

fn withdrawn() -> TierError {
    TierError::new(TierErrorKind::Other, "loader").with_detail("the batch is not wanted any more")
}

/// The lent batches as the server sees them.
#[derive(Debug, Default)]
struct Lent(Mutex<LentState>);

#[derive(Debug, Default)]
struct LentState {
    batches: HashMap<u64, Batch>,
    /// Calls for batches that are not lent yet.
    waiting: HashMap<u64, Vec<WorkerCall>>,
    /// Batches below this number are never lent again.
    least: u64,
}

impl Lent {
    /// Every change is complete before the lock is released.
    fn lock(&self) -> MutexGuard<'_, LentState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sample(&self, number: u64) -> Option<Bytes> {
        let (batch, index) = (number >> INDEX_BITS, number & ((1 << INDEX_BITS) - 1));
        let state = self.lock();
        let sample = state.batches.get(&batch)?.samples().nth(usize::try_from(index).ok()?)?;
        Some(sample.bytes())
    }
}

impl SampleProvider for Lent {
    fn get(&self, requests: Vec<SampleRequest>) {
        for request in requests {
            let sample = self.sample(request.id().0).ok_or_else(withdrawn);
            request.answer(sample);
        }
    }

    fn call(&self, call: WorkerCall) {
        let number = call.payload().as_ref().try_into().map(u64::from_le_bytes);
        let (BATCH, Ok(number)) = (call.name(), number) else {
            let error = TierError::new(TierErrorKind::Unsupported, "loader").with_object(call.name());
            return call.answer(Err(error.with_detail("unknown call")));
        };
        let mut state = self.lock();
        let answer = match state.batches.get(&number) {
            Some(batch) => Ok(facts(batch)),
            None if number < state.least => Err(withdrawn()),
            None => return state.waiting.entry(number).or_default().push(call),
        };
        drop(state);
        call.answer(answer);
    }
}
