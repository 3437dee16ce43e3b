//! Tiers and origins.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

use crate::{Object, ReadRequest, TierError};

/// A read under way. It answers the bytes, exactly as many as were asked for and in an allocation of their own, so that
/// keeping them keeps nothing else; or why there are none.
///
/// A cache's answer may be a part of an allocation as long as the sample's [`footprint`](crate::CacheTier::footprint) there,
/// which is what it is to be charged as; who keeps such a sample for longer copies it.
///
/// # Cancel safety
/// Dropping it cancels a read that has not started. One that has started owns its buffer and ends by itself.
pub type ReadFuture = BoxFuture<'static, Result<Bytes, TierError>>;

/// What a tier says of itself before anything was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierProfile {
    /// How many reads it is worth having under way at once.
    pub parallelism: usize,
    /// Whether the kernel of this machine caches what is read from it, so that keeping a second copy gains nothing.
    pub kernel_cached: bool,
    /// Whether a listing hands out objects in the order of their paths, as bytes, or says that it cannot: then an
    /// interrupted one can resume after the last of them.
    pub lists_in_order: bool,
}

impl TierProfile {
    /// A profile with the given parallelism, and no preference otherwise.
    pub const fn new(parallelism: usize) -> Self {
        Self { parallelism, kernel_cached: false, lists_in_order: false }
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
}

/// A place that samples can be read from.
///
/// The trait has no default methods: a layer that forgets to pass one on does not compile.
pub trait Tier: Debug + Send + Sync + 'static {
    /// A short name for messages, metrics and reports: `memory`, `local`, `s3`.
    fn name(&self) -> &str;

    /// What the tier says of itself.
    fn profile(&self) -> &TierProfile;

    /// Queues a read and returns at once. Reads start in the order of the calls; only a request over HTTP may wait for
    /// the future's first poll.
    ///
    /// Between this and [`submit`](Self::submit) a tier may hold back what is cheaper for many reads than for one: waking
    /// threads, entering the kernel, sending a frame. The first poll of any of the futures submits, too.
    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture;

    /// Ends a burst of reads: what was held back happens now. Costs next to nothing where nothing was.
    fn submit(&self);
}

/// The slow shared store that holds a whole dataset.
pub trait OriginTier: Tier {
    /// Every object below `prefix` (relative to the origin; empty for all) whose path is greater than `after` as
    /// bytes, in any order, each once.
    ///
    /// Hidden files are left out: those with a part of the path below the prefix that begins with a dot; so are
    /// things that are no objects (directories, their zero-length place-holders, devices, sockets). After an error
    /// the stream goes on where it can and ends where it cannot.
    ///
    /// An origin whose profile says [`lists_in_order`](TierProfile::lists_in_order) checks that. If its store lists in
    /// another order, the stream holds one error of kind [`Unordered`](crate::ErrorKind::Unordered). The caller drops
    /// all that it has of this prefix, from this listing and from earlier ones that it resumes. Every object below
    /// `prefix` follows, whatever `after`. Such a listing cannot be resumed.
    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>>;

    /// One object by its path, without listing: its size and version. Hidden ones can be asked for too.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is none of this path, and whatever else goes wrong.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>>;

    /// Where the data lie, as one word: equal for every way that leads to the same data (a second mount point, another
    /// name of the same endpoint), and different for different data.
    ///
    /// What is kept of the data on disks is found again by this word and the catalog's fingerprint, so two places must
    /// never have one word; a place that has two words only loses its cache. Credentials do not belong into it.
    fn place(&self) -> &str;
}
