//! A job that reads through an agent: its orders, catalogs and settings, and its attachment.
//!
//! It attaches at its start, and again after the agent has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use foreread_store::attach::{ATTACH, Attach, Attached, CATALOG, DatasetAnswer, EpochOrder, Piece};
use foreread_store::{Client, LocalClient, StoreError};
use foreread_tier::CacheTier;
use foreread_types::Tick;

use crate::connection::Connection;
use crate::watch::attach_silence;

/// The orders of a job.
pub trait JobOrders: Send + Sync + 'static {
    /// The datasets whose shards are read in blocks at first, each with the bytes of a block.
    fn blocks(&self) -> Vec<(u32, u64)> {
        Vec::new()
    }

    /// The first position of an epoch, and the number of its positions. `None` after the last one.
    fn pass(&self, index: usize) -> Option<(Tick, u64)>;

    /// The order of an epoch. It may take some time. `None` if it cannot be computed.
    fn order(&self, index: usize) -> Option<EpochOrder>;
}

/// The catalogs of a job's datasets, in the order of the datasets.
pub trait JobCatalogs: Send + Sync + 'static {
    /// The content of a catalog's file. `None` if it cannot be had.
    fn catalog(&self, dataset: usize) -> Option<Bytes>;
}

/// How long a trainer has waited for batches so far.
pub type StallTime = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Makes an empty cache.
pub type CacheMaker = Box<dyn Fn() -> Arc<dyn CacheTier> + Send + Sync>;

/// Where a job reaches the agent.
#[derive(Clone, Debug)]
pub enum AgentPlace {
    /// The path of its socket, or the address of a server without one.
    At(String),
    /// In this process, where one job uses it.
    Here(Arc<LocalClient>),
}

/// The data that a job needs to attach, at its start and after the agent has ended.
pub struct AgentJob {
    /// Where the agent is.
    pub place: AgentPlace,
    /// Its name in messages, such as "the node's agent".
    pub called: &'static str,
    /// Whether another agent may serve there after this one. Otherwise the job does not connect
    /// again, because any process may get the address then.
    pub comes_back: bool,
    /// Whether the address may be used now: another user may have created a directory in `/tmp`.
    pub may_use: fn(&str) -> bool,
    /// Makes the cache that the job has while the agent is gone. `None`: it has none.
    pub alone: Option<CacheMaker>,
    /// The job.
    pub attach: Attach,
    /// Its catalogs.
    pub catalogs: Box<dyn JobCatalogs>,
}

/// A connection on which a job is attached.
pub struct Connected {
    pub(crate) connection: Arc<Connection>,
    pub(crate) attached: Attached,
}

impl Connected {
    /// Whether the agent reads all datasets of the job.
    pub(crate) fn is_accepted(&self) -> bool {
        self.attached.datasets.iter().all(|answer| *answer == DatasetAnswer::Kept)
    }

    /// Why it does not, if it gave a reason.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.attached.datasets.iter().find_map(|answer| match answer {
            DatasetAnswer::Refused(why) => Some(&**why),
            DatasetAnswer::Kept | DatasetAnswer::CatalogNeeded => None,
        })
    }
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connected").field("attached", &self.attached).finish_non_exhaustive()
    }
}

impl AgentJob {
    /// Connects and attaches. Blocks, as long as the agent gives signs of life and `closed` is
    /// false.
    pub(crate) fn connect(&self, closed: &dyn Fn() -> bool) -> Result<Connected, StoreError> {
        let connection = self.open(closed)?;
        let mut attached = self.attach(&connection, closed)?;
        let needed = |answer: &DatasetAnswer| *answer == DatasetAnswer::CatalogNeeded;
        if attached.datasets.iter().any(needed) {
            for (number, _) in attached.datasets.iter().enumerate().filter(|(_, answer)| needed(answer)) {
                let Some(catalog) = self.catalogs.catalog(number) else { continue };
                for piece in Piece::all(number as u32, &catalog) {
                    connection.call(CATALOG, &piece.encode(), closed)?;
                }
            }
            attached = self.attach(&connection, closed)?;
        }
        Ok(Connected { connection: Arc::new(connection), attached })
    }

    fn open(&self, closed: &dyn Fn() -> bool) -> Result<Connection, StoreError> {
        let address = match &self.place {
            AgentPlace::At(address) => address,
            AgentPlace::Here(store) => return Ok(Connection::Here(Arc::clone(store))),
        };
        if !(self.may_use)(address) {
            return Err(StoreError::gone());
        }
        let begun = Instant::now();
        let is_late = &mut || closed() || begun.elapsed() > attach_silence();
        let client = Client::connect_with(address, is_late)?;
        let stream = client.stream();
        Ok(Connection::Served(client, stream))
    }

    fn attach(&self, connection: &Connection, closed: &dyn Fn() -> bool) -> Result<Attached, StoreError> {
        let malformed = |error: serde_json::Error| StoreError::malformed(error.to_string());
        let payload = serde_json::to_vec(&self.attach).map_err(malformed)?;
        let answer = connection.call(ATTACH, &payload, closed)?;
        serde_json::from_slice(&answer).map_err(malformed)
    }
}
