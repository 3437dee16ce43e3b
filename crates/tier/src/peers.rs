//! What ranks do for each other: ask for samples, and answer.
//!
//! Whoever asks sees a [`Tier`] for each store of the cluster, so that limits, retries and breakers are layers there as
//! everywhere. Whoever answers is the engine, through [`Serve`]: it alone knows what it keeps, what it is reading and
//! what it has to read for others. An answer that must come from the origin first says so at once
//! ([`Served::Reading`]): that an owner is slow and that it is gone look alike from outside, and only the second is a
//! reason to read the sample oneself. The price is a few bytes on the wire for each sample that is not there yet.
//!
//! How long a sample is worth waiting for, only the asker's engine knows: a sample that is needed in a minute may take its
//! time on a slow link, and the same link must not hold up a trainer. So the engine reads late samples from the origin as
//! well and cancels the request that lost ([`Peers::cancel`]).

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use foreread_types::{Rank, SampleKey, StoreId, Tick};
use futures::stream::BoxStream;

use crate::{Sample, Tier, TierError};

/// A sample that another rank asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Unique within the batch; the answer carries it back.
    pub tag: u32,
    /// The sample.
    pub key: SampleKey,
    /// When the asker's trainer needs it, on the asker's clock of uses: a smaller tick is more urgent.
    pub due: Tick,
}

/// What is said of a sample that was asked for.
#[derive(Clone, Debug)]
pub enum Served {
    /// It is not here yet and is being read: worth waiting for. Comes before the answer, at most once.
    Reading {
        /// Which.
        tag: u32,
    },
    /// The answer: the bytes, or why there are none.
    Done {
        /// Which.
        tag: u32,
        /// The answer.
        result: Result<Bytes, TierError>,
    },
    /// The answer, where the sample is at hand and stays: its checksum is computed once, however often it is asked for.
    Kept {
        /// Which.
        tag: u32,
        /// The sample.
        sample: Sample,
    },
}

impl Served {
    /// The tag and the answer, if it is one.
    pub fn answer(self) -> Option<(u32, Result<Bytes, TierError>)> {
        match self {
            Self::Reading { .. } => None,
            Self::Done { tag, result } => Some((tag, result)),
            Self::Kept { tag, sample } => Some((tag, Ok(sample.bytes()))),
        }
    }
}

/// The answers to a batch: one for each tag ([`Served::answer`]), in any order, then the end. Dropping it cancels what nobody
/// else waits for.
pub type Serving = BoxStream<'static, Served>;

/// What a rank does for others.
pub trait Serve: Debug + Send + Sync + 'static {
    /// Starts to answer a batch and returns at once. What is not this rank's to serve is
    /// [`ErrorKind::Absent`](crate::ErrorKind::Absent).
    fn serve(&self, from: Rank, asked: Vec<Asked>) -> Serving;
}

/// The other ranks of a run, as one rank sees them.
pub trait Peers: Debug + Send + Sync + 'static {
    /// This rank.
    fn rank(&self) -> Rank;

    /// How many there are.
    fn world_size(&self) -> u32;

    /// What `store` holds, read by asking a rank that uses it; `None` for this rank's own store and for one that
    /// nobody uses. Requests need their key, and nothing of the object but its length.
    fn tier(&self, store: StoreId) -> Option<Arc<dyn Tier>>;

    /// The sample that `store` was asked for is no longer wanted. If its request is still open, it fails with
    /// [`ErrorKind::Transient`](crate::ErrorKind::Transient) and is cancelled at the owner. Returns at once.
    fn cancel(&self, store: StoreId, key: SampleKey);

    /// Answers what others ask from now on. Until then their questions wait; when `source` is gone, they are told that nothing
    /// is held.
    fn serve(&self, source: Weak<dyn Serve>);
}
