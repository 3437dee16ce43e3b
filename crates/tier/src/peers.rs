//! Reads between the stores of nodes: requests, replies, and the service of an owner.
//!
//! Each node has one store. A store that needs a sample of another owner requests it there, with a
//! client that is a [`Tier`](crate::Tier). So limits and retries are layers there as everywhere.
//! The owner answers, through [`PeerService`]: it alone knows which samples it holds, reads, or has
//! to read for others. A reply that needs the origin first is announced at once
//! ([`PeerReply::Reading`]). From outside, a slow owner and a dead owner look alike. Only a dead
//! one is a reason to read the sample from the origin. The price is a few bytes on the wire for
//! each sample that is not ready.
//!
//! Only the requesting store knows how long a sample is worth waiting for. A sample needed in a
//! minute may take its time on a slow link, and the same link must not delay a trainer. So the
//! store drops the read of a late sample, and reads the sample from the origin. A dropped read is
//! cancelled at the owner.

use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;
use foreread_types::{Rank, SampleKey, Tick};
use futures::stream::BoxStream;

use crate::TierError;

/// How often an owner repeats that it still reads a sample, where it does.
pub const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(10);

/// A request of another store for a sample.
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
}

/// The replies to a batch: one answer per tag ([`PeerReply::Done`]), in any order, then the end.
/// Dropping the stream cancels the reads that no other caller waits for.
pub type PeerReplies = BoxStream<'static, PeerReply>;

/// The service of a store for other stores, which are named by the ranks that host them.
pub trait PeerService: Debug + Send + Sync + 'static {
    /// Starts to answer a batch and returns at once. A sample that this store does not own is
    /// [`ErrorKind::Absent`](crate::ErrorKind::Absent).
    fn serve(&self, from: Rank, requested: Vec<PeerRequest>) -> PeerReplies;
}
