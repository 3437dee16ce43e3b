//! The calls of a job to the host of a store: its attachment with its datasets, and its orders. A
//! store makes the same calls for its jobs to the stores of other nodes.
//!
//! A job *attaches* once per connection. The host knows a dataset by the identity of its bytes, its
//! location and the settings that it is read with. So bytes that were read with other credentials
//! are never shared. The host gets the catalog of a dataset that it does not know, in pieces, and
//! opens it itself.
//!
//! Calls are JSON, where unknown fields are ignored, so a newer end may add some. Pieces of
//! catalogs and orders are binary.

mod order;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use self::order::{EpochOrder, OrderPiece};

/// The call by which a job attaches: [`Attach`], answered by [`Attached`].
pub const ATTACH: &str = "attach";
/// The call with a piece of a catalog: a [`Piece`] whose number is that of the dataset.
pub const CATALOG: &str = "catalog";
/// The call with a piece of an order: an [`OrderPiece`].
pub const ORDER: &str = "order-piece";
/// The call that has shards read in blocks while they are absent: [`ReadInBlocks`].
pub const BLOCKS: &str = "blocks";
/// The call that forgets the announced orders of a job.
pub const RESTART: &str = "restart";
/// The call that says how a job gets on: [`JobProgress`], answered by [`JobReads`].
pub const PROGRESS: &str = "progress";
/// The call that has the host fill its memory with a dataset of the job: [`WarmRequest`], answered
/// by [`WarmAnswer`].
pub const WARM: &str = "warm";
/// The call that has the host keep copies of files for programs that are not changed:
/// [`FilesRequest`], answered by [`FilesAnswer`].
pub const FILES: &str = "files";
/// The call for the status of the host, in JSON.
pub const STATUS: &str = "status";
/// The call that changes the policy of the host, as JSON: [`PolicyChanges`].
pub const SET: &str = "set";
/// The call that ends the host.
pub const STOP: &str = "stop";

/// The most bytes of a piece.
pub const PIECE_BYTES: usize = 48 << 10;

/// The request of a run of unchanged programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FilesRequest {
    /// The directories whose files are served, as absolute paths.
    pub roots: Vec<PathBuf>,
    /// When originals are compared with their copies: `auto`, `open` or `never`.
    pub check: String,
}

/// Where the copies are. A run takes over there if the host ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FilesAnswer {
    /// The directory of the disk.
    pub directory: PathBuf,
    /// The most bytes there.
    pub bytes: u64,
    /// The part of them that may be written in a day.
    pub writes_per_day: f64,
    /// The name of the node, if nodes share the directory.
    pub node: Option<String>,
}

/// Changes of the policy of a host. All of them are made, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyChanges {
    /// Each as `KEY=VALUE`. The host knows the keys.
    pub changes: Vec<String>,
}

/// How a job has the shards of a dataset read at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadInBlocks {
    /// The dataset's number among those of the job.
    pub dataset: u32,
    /// The bytes of a shard that one request reads.
    pub bytes: u64,
}

/// A request to fill the memory with a dataset, or a question about that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmRequest {
    /// The dataset's number among those of the job.
    pub dataset: u32,
    /// Whether to begin, unless that has happened.
    pub begin: bool,
    /// The part of the dataset, from 0, and the number of equal parts. 0 parts: all of it.
    #[serde(default)]
    pub part: (u32, u32),
}

/// The kept part of a dataset that a host fills its memory with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WarmAnswer {
    /// Whether samples are being read for it. Otherwise all that fits is there.
    pub is_active: bool,
    /// The samples in memory or on disks.
    pub kept_samples: u64,
    /// The samples in memory.
    pub held_samples: u64,
    /// The bytes that they take.
    pub held_bytes: u64,
    /// The samples on disks. Some may be in memory, too.
    pub disk_samples: u64,
    /// The bytes that they take there.
    pub disk_bytes: u64,
    /// All samples of the dataset.
    pub samples: u64,
}

/// How a job gets on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobProgress {
    /// How long its trainer has waited for samples so far, in seconds.
    pub stalled_seconds: f64,
}

/// The reads from storage for a job so far. Their sums over all jobs are the reads for all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobReads {
    /// Samples.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Requests for them. 0 if the host is of an older version.
    pub requests: u64,
}

/// A job, or one rank of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// Its name in the status.
    pub name: String,
    /// Its process.
    pub process: u32,
    /// The bytes that it requests ahead of their use, which the host keeps for it.
    pub look_ahead: u64,
    /// Whether it will announce its orders.
    pub is_ordered: bool,
    /// Its datasets. Requests number them by their places here.
    pub datasets: Vec<AttachDataset>,
}

/// A dataset of a job.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachDataset {
    /// The identity of its bytes, as text.
    pub identity: String,
    /// Where it is read from.
    pub url: String,
    /// The settings of the storage backend. They may contain secrets.
    pub settings: BTreeMap<String, String>,
    /// Proof of the environment that the backend reads its credentials from.
    pub environment: String,
    /// The number of samples.
    pub samples: u64,
    /// The length of the catalog's file in bytes.
    pub catalog_bytes: u64,
}

impl std::fmt::Debug for AttachDataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttachDataset").field("identity", &self.identity).field("url", &self.url).finish()
    }
}

/// The host's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// The bytes of memory that the host has for samples, of all jobs together.
    pub capacity: u64,
    /// The bytes of its disks.
    #[serde(default)]
    pub disk_capacity: u64,
    /// The name that no other host has. Empty if it is of an older version.
    #[serde(default)]
    pub host: String,
    /// For each dataset of the job.
    pub datasets: Vec<DatasetAnswer>,
    /// The number that requests of another store have for the job's first dataset. The others
    /// follow. 0 for a job of the node.
    #[serde(default)]
    pub first_dataset: u32,
    /// For each dataset, the path of its catalog in memory that the job can share. Empty if it is
    /// of an older version.
    #[serde(default)]
    pub catalogs: Vec<Option<PathBuf>>,
}

/// The answer of the host for a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DatasetAnswer {
    /// It reads and keeps its samples.
    Kept,
    /// It needs the catalog, and will then answer the same call by something else.
    CatalogNeeded,
    /// It does not read the dataset, for this reason. The job reads it by itself.
    Refused(String),
}

/// A piece of something that is longer than a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The number of the catalog or order that it is a piece of.
    pub number: u32,
    /// The length of the whole, in bytes.
    pub total: u64,
    /// Where this piece begins.
    pub at: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    const HEAD: usize = 20;

    /// The pieces of `bytes`.
    pub fn all(number: u32, bytes: &'a [u8]) -> impl Iterator<Item = Self> {
        let total = bytes.len() as u64;
        let starts = (0..bytes.len().max(1)).step_by(PIECE_BYTES);
        starts.map(move |at| {
            let end = bytes.len().min(at + PIECE_BYTES);
            Self { number, total, at: at as u64, bytes: &bytes[at..end] }
        })
    }

    /// The payload of the call.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(Self::HEAD + self.bytes.len());
        to.extend(self.number.to_le_bytes());
        to.extend(self.total.to_le_bytes());
        to.extend(self.at.to_le_bytes());
        to.extend(self.bytes);
        to
    }

    /// Parses a payload. `None` if it is none.
    pub fn decode(payload: &'a [u8]) -> Option<Self> {
        let (number, rest) = payload.split_first_chunk()?;
        let (total, rest) = rest.split_first_chunk()?;
        let (at, bytes) = rest.split_first_chunk()?;
        let (total, at) = (u64::from_le_bytes(*total), u64::from_le_bytes(*at));
        let is_inside = at.checked_add(bytes.len() as u64)? <= total;
        is_inside.then_some(Self { number: u32::from_le_bytes(*number), total, at, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_round_trip() {
        for length in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 7] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut read: Vec<u8> = Vec::new();
            for piece in Piece::all(3, &bytes) {
                assert_eq!(Piece::decode(&piece.encode()), Some(piece));
                assert_eq!((piece.total, piece.at), (length as u64, read.len() as u64));
                read.extend(piece.bytes);
            }
            assert_eq!(read, bytes);
        }
        assert_eq!(Piece::decode(&[0; 19]), None);
        let beyond = Piece { number: 0, total: 3, at: 2, bytes: b"ab" };
        assert_eq!(Piece::decode(&beyond.encode()), None);
    }

    #[test]
    // semantics: AGENT-1
    fn unknown_fields_are_ignored_and_secrets_are_not_shown() {
        let text = r#"{"capacity": 5, "datasets": ["kept", {"refused": "x"}], "newer": [1]}"#;
        let attached: Attached = serde_json::from_str(text).unwrap();
        assert_eq!(attached.datasets, [DatasetAnswer::Kept, DatasetAnswer::Refused("x".to_owned())]);
        let settings = [("secret_access_key".to_owned(), "hush".to_owned())].into();
        let dataset = AttachDataset { settings, ..AttachDataset::default() };
        assert!(!format!("{dataset:?}").contains("hush"));
    }
}
