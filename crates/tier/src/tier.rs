//! Tiers and origins.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

use crate::{ErrorKind, LayoutsFuture, Object, ReadRequest, TierError};

/// A read in flight. It resolves to exactly the requested bytes in a separate allocation, so that
/// keeping them keeps nothing else in memory. They begin at a cache line (64 bytes), as the memory
/// of all [`Buffers`](crate::Buffers) does.
///
/// A cache's answer may be a part of an allocation of
/// [`read_memory`](crate::CacheTier::read_memory), and is charged as that. A caller that keeps such
/// a sample for longer copies it.
///
/// # Cancel safety
/// Dropping it cancels a read that has not started. A started read owns its buffer and completes in
/// the background.
pub type ReadFuture = BoxFuture<'static, Result<Bytes, TierError>>;

/// The properties of a tier that are known before any measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierProfile {
    /// The useful number of concurrent reads.
    pub parallelism: usize,
    /// Whether this machine's kernel caches the data, so that a second copy in memory gains
    /// nothing.
    pub kernel_cached: bool,
    /// Whether a listing returns objects in byte order of their paths, or reports that it cannot.
    /// An interrupted listing in order can resume after its last object.
    pub lists_in_order: bool,
    /// How long the tier itself waits for a silent server, for tiers that resend requests until the
    /// server answers (network file systems). A second read of the same bytes would wait with the
    /// first. So reads of such a tier are never hedged, have no other deadline, and failures that
    /// may pass are retried for at least this long. `None` for other tiers.
    pub patience: Option<Duration>,
    /// Whether samples come from memory of this process as a rule: they need no work that grows
    /// with their bytes, and all requests may be under way at once.
    pub in_process: bool,
}

impl TierProfile {
    /// A profile with the given parallelism and defaults otherwise.
    pub const fn new(parallelism: usize) -> Self {
        Self { parallelism, kernel_cached: false, lists_in_order: false, patience: None, in_process: false }
    }

    /// The same, listing in the order of paths or not.
    #[must_use]
    pub const fn with_listing_in_order(self, ordered: bool) -> Self {
        Self { lists_in_order: ordered, ..self }
    }

    /// The same, cached by this machine's kernel or not.
    #[must_use]
    pub const fn with_kernel_cached(self, cached: bool) -> Self {
        Self { kernel_cached: cached, ..self }
    }

    /// The same, whose samples come from memory of this process or not.
    #[must_use]
    pub const fn with_in_process(self, in_process: bool) -> Self {
        Self { in_process, ..self }
    }

    /// The same, with the time that the tier itself waits for a silent server.
    #[must_use]
    pub const fn with_patience(self, patience: Option<Duration>) -> Self {
        Self { patience, ..self }
    }
}

/// A source of samples.
///
/// The trait has no default methods, so a layer that forgets to forward one does not compile.
pub trait Tier: Debug + Send + Sync + 'static {
    /// A short name for messages, metrics and reports: `memory`, `local`, `s3`.
    fn name(&self) -> &str;

    /// The tier's properties.
    fn profile(&self) -> &TierProfile;

    /// Queues a read and returns at once. Reads start in the order of the calls. Only a request
    /// over HTTP may wait for the future's first poll.
    ///
    /// Until [`submit`](Self::submit) a tier may delay work that is cheaper for many reads than for
    /// one: waking threads, entering the kernel, sending a frame. The first poll of any of the
    /// futures also submits.
    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture;

    /// Ends a burst of reads and does the delayed work. Without delayed work it costs next to
    /// nothing.
    fn submit(&self);
}

/// The slow shared storage of a whole dataset.
pub trait OriginTier: Tier {
    /// Every object below `prefix` (relative to the origin, or empty for all) whose path is greater
    /// than `after` as bytes, in any order, each once.
    ///
    /// Hidden files are left out: those with a path component below the prefix that starts with a
    /// dot. So are entries that are not objects (directories, their zero-length placeholders,
    /// devices, sockets). After an error the stream continues if it can and ends otherwise.
    ///
    /// An origin whose profile has [`lists_in_order`](TierProfile::lists_in_order) checks that. If
    /// its storage lists in another order, the stream returns one error of kind
    /// [`Unordered`](crate::ErrorKind::Unordered). The caller drops all its objects of this prefix,
    /// from this listing and from earlier listings that it resumes. Every object below `prefix`
    /// follows, whatever `after`. Such a listing cannot be resumed.
    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>>;

    /// The size and version of one object, without a listing. Hidden objects are found too.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such object, and any
    /// failure of the storage.
    ///
    /// # Cancel safety
    /// Dropping the future frees everything.
    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>>;

    /// The names of the directories directly below the origin, in any order. Hidden ones are left
    /// out. Empty ones count where the storage has them. They are the classes of a dataset.
    ///
    /// The default takes them from a listing of everything. Origins override it, because a listing
    /// of the names alone takes one request or a few.
    ///
    /// # Errors
    /// Any failure of the listing.
    ///
    /// # Cancel safety
    /// Dropping the future frees everything.
    fn directories(&self) -> BoxFuture<'static, Result<Vec<String>, TierError>> {
        let mut listing = self.list("", None);
        Box::pin(async move {
            let mut names = BTreeSet::new();
            while let Some(object) = listing.next().await {
                match object {
                    Ok(object) => {
                        names.extend(object.path.split_once('/').map(|(first, _)| first.to_owned()));
                    }
                    // The listing restarts, and finds the same names again.
                    Err(error) if error.kind() == ErrorKind::Unordered => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(names.into_iter().collect())
        })
    }

    /// The layouts of objects on the servers of the storage, in the order of `paths`. `None`,
    /// without any request, if the storage has none.
    ///
    /// # Cancel safety
    /// Dropping the future frees everything.
    fn layouts(&self, paths: Vec<Arc<str>>) -> Option<LayoutsFuture>;

    /// Identifies the data's location. It is equal for every path to the same data (a second mount
    /// point, another name of the endpoint), and different for different data.
    ///
    /// Disk caches are found by this text and the catalog's fingerprint, so two locations must
    /// never share one text. A location with two texts only loses its cache. Credentials must not
    /// be part of it.
    fn place(&self) -> &str;
}
