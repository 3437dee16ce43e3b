//! Reads between ranks: requests, replies, and the service of an owner.
//!
//! A client sees a [`Tier`] for each store of the cluster, so limits, retries and breakers are
//! layers there as everywhere. The engine answers, through [`PeerService`]: it alone knows which
//! samples it holds, reads, or has to read for others. A reply that needs the origin first is
//! announced at once ([`PeerReply::Reading`]). From outside, a slow owner and a dead owner look
//! alike. Only a dead one is a reason to read the sample from the origin. The price is a few bytes
//! on the wire for each sample that is not ready.
//!
//! Only the client's engine knows how long a sample is worth waiting for. A sample needed in a
//! minute may take its time on a slow link, and the same link must not delay a trainer. So the
//! engine reads late samples from the origin as well, and cancels the request that lost
//! ([`Peers::cancel`]).

use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use foreread_types::{Rank, SampleKey, StoreId, Tick};
use futures::stream::BoxStream;

use crate::{Sample, Tier, TierError};

/// How often an owner repeats that it still reads a sample, where it does.
pub const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(10);

/// A request of another rank for a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRequest {
    /// Unique within the batch. The reply carries it back.
    pub tag: u32,
    /// The sample.
    pub key: SampleKey,
    /// When the client's trainer needs it, in the client's ticks: a smaller tick is more urgent.
    pub due: Tick,
}

/// A reply to a request for a sample.
#[derive(Clone, Debug)]
pub enum PeerReply {
    /// The sample is being read, so waiting is worthwhile. Precedes the answer. Repeated every
    /// [`ANNOUNCE_INTERVAL`] while an owner waits for a silent file server, which a second reader
    /// would wait for, too.
    Reading {
        /// The tag of the request.
        tag: u32,
    },
    /// The answer: the bytes, or why there are none.
    Done {
        /// The tag of the request.
        tag: u32,
        /// The answer.
        result: Result<Bytes, TierError>,
    },
    /// The answer from a cached sample, whose checksum is computed only once.
    Kept {
        /// The tag of the request.
        tag: u32,
        /// The sample.
        sample: Sample,
    },
}

impl PeerReply {
    /// The tag and the answer, if it is one.
    pub fn answer(self) -> Option<(u32, Result<Bytes, TierError>)> {
        match self {
            Self::Reading { .. } => None,
            Self::Done { tag, result } => Some((tag, result)),
            Self::Kept { tag, sample } => Some((tag, Ok(sample.bytes()))),
        }
    }
}

/// The replies to a batch: one answer per tag ([`PeerReply::answer`]), in any order, then the end.
/// Dropping the stream cancels the reads that no other caller waits for.
pub type PeerReplies = BoxStream<'static, PeerReply>;

/// The service of a rank for other ranks.
pub trait PeerService: Debug + Send + Sync + 'static {
    /// Starts to answer a batch and returns at once. A sample that this rank does not own is
    /// [`ErrorKind::Absent`](crate::ErrorKind::Absent).
    fn serve(&self, from: Rank, requested: Vec<PeerRequest>) -> PeerReplies;
}

/// The other ranks of a run, as seen by one rank.
pub trait Peers: Debug + Send + Sync + 'static {
    /// This rank.
    fn rank(&self) -> Rank;

    /// The number of ranks.
    fn world_size(&self) -> u32;

    /// The samples in `store`, read through a rank that uses it. `None` for this rank's own store
    /// and for a store without ranks. Requests need the key and the object's length only.
    fn tier(&self, store: StoreId) -> Option<Arc<dyn Tier>>;

    /// Cancels a request for a sample of `store`. If it is still open, it fails with
    /// [`ErrorKind::Transient`](crate::ErrorKind::Transient) and is cancelled at the owner. Returns
    /// at once.
    fn cancel(&self, store: StoreId, key: SampleKey);

    /// Starts to answer requests of other ranks, which wait until then. Once `source` is dropped,
    /// the answer is [`ErrorKind::Absent`](crate::ErrorKind::Absent).
    fn serve(&self, source: Weak<dyn PeerService>);
}
