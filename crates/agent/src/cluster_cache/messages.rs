//! What two agents say to each other, besides samples.
//!
//! An agent dials each other one and says which jobs it has. For each job, the other end answers
//! which datasets it keeps, and by which numbers their samples are requested. Then the orders of
//! the job follow, each with the samples of that owner alone.
//!
//! Messages are JSON, where unknown fields are ignored. Catalogs and orders are binary.

use foreread_store::attach::{Attach, DatasetAnswer, Piece};
use serde::{Deserialize, Serialize};

/// From the agent that dials: [`Open`], [`JobBegins`], a [`CatalogPiece`], an
/// [`OrderPiece`](super::orders::OrderPiece), a [`JobName`] whose orders are void, a [`JobName`]
/// that has ended, a sign of life, and [`JobBlocks`].
pub(super) const OPEN: u32 = 32;
pub(super) const JOB: u32 = 33;
pub(super) const CATALOG: u32 = 34;
pub(super) const ORDER: u32 = 35;
pub(super) const RESTART: u32 = 36;
pub(super) const END: u32 = 37;
pub(super) const PING: u32 = 38;
pub(super) const BLOCKS: u32 = 39;
/// From the other end: [`Open`], [`JobAnswer`], and a sign of life.
pub(super) const OPENED: u32 = 40;
pub(super) const ANSWER: u32 = 41;
pub(super) const PONG: u32 = 42;

/// The versions of these messages that this program speaks.
pub(super) const VERSIONS: (u32, u32) = (1, 1);

/// The most bytes of a message.
pub(super) const MAX_MESSAGE: usize = 16 << 20;

/// The first message of both ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Open {
    pub(super) versions: (u32, u32),
    pub(super) node: String,
    /// What no other agent is called.
    pub(super) instance: String,
}

/// A job, by a number of this connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobBegins {
    pub(super) job: u32,
    pub(super) attach: Attach,
}

/// The answer to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct JobAnswer {
    pub(super) job: u32,
    /// For each dataset. Empty if the job is refused.
    pub(super) datasets: Vec<DatasetAnswer>,
    /// Requests for samples have this number and that of the dataset together.
    pub(super) first: u32,
    /// Why the job is refused.
    pub(super) refused: Option<String>,
}

/// A job, by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobName {
    pub(super) job: u32,
}

/// A dataset of a job whose shards are read in blocks at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobBlocks {
    pub(super) job: u32,
    pub(super) dataset: u32,
}

/// A piece of the catalog of a job's dataset.
pub(super) struct CatalogPiece<'a> {
    pub(super) job: u32,
    pub(super) piece: Piece<'a>,
}

impl<'a> CatalogPiece<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = self.job.to_le_bytes().to_vec();
        to.extend(self.piece.encode());
        to
    }

    pub(super) fn decode(payload: &'a [u8]) -> Option<Self> {
        let (job, rest) = payload.split_first_chunk()?;
        Some(Self { job: u32::from_le_bytes(*job), piece: Piece::decode(rest)? })
    }
}
