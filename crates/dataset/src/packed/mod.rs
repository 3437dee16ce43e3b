//! Packed formats: samples that are parts of objects.
//!
//! A shard is indexed once, by reading what lies between its samples and not the samples; from then
//! on each is an extent like any other, and shuffled as exactly as files are. Everything is read
//! through an [`OriginTier`](foreread_tier::OriginTier), never a file system, because remote stores
//! are what shards are for.
//!
//! A sample is exactly one extent. A WebDataset sample reaches from the first of its members to the
//! end of its last, the headers between them included (half a kilobyte each), and its fields are
//! sub-ranges: one request a sample, whatever it is made of.
//!
//! [`reader`] says how few requests suffice, [`scan`] how several go on at once, and [`tar`],
//! [`tfrecord`] and [`zip`] know their formats.

mod pax;
mod reader;
mod rows;
mod samples;
mod scan;
mod shard_error;
mod tar;
mod tfrecord;
mod zip;

use std::future::poll_fn;

use foreread_tier::{Object, OriginTier};
use futures::StreamExt;

use self::reader::ShardStore;
pub(crate) use self::rows::{IndexedShard, SampleRows};
use self::shard_error::ShardError;
use crate::format::compressed;
use crate::shard_journal::{KnownShards, ShardJournal};
use crate::{DatasetError, Format};

/// Requests under way at once, over all shards.
const IN_FLIGHT: usize = 64;

/// What indexing shards has come to so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IndexCost {
    pub(crate) samples: u64,
    pub(crate) bytes: u64,
    pub(crate) skipped: u64,
    pub(crate) requests: u64,
    pub(crate) bytes_read: u64,
    /// Shards that were known from before.
    pub(crate) resumed: u64,
}

/// What is known of shards before they are looked into, and where what is found is kept.
#[derive(Debug, Default)]
pub(crate) struct ResumeState<'a> {
    pub(crate) kept: KnownShards,
    pub(crate) partial: Option<&'a ShardJournal>,
}

/// Indexes all `objects` as shards of `format`, in their order; `progress` is told whenever
/// something was read.
pub(crate) async fn index(
    origin: &dyn OriginTier,
    base_url: &str,
    format: Format,
    objects: Vec<Object>,
    before: ResumeState<'_>,
    mut progress: impl FnMut(IndexCost),
) -> Result<Vec<IndexedShard>, DatasetError> {
    let store = ShardStore::new(origin);
    let places = IN_FLIGHT.min(origin.profile().parallelism.max(8));
    let at_once = places.min(objects.len()).max(1);
    let each = places / at_once;
    let mut cost = IndexCost::default();
    let mut shards = Vec::with_capacity(objects.len());
    let ResumeState { mut kept, partial } = before;
    let known: Vec<Option<IndexedShard>> = objects.iter().map(|object| kept.take(object)).collect();
    cost.resumed = known.iter().flatten().count() as u64;
    // In order, so that of several bad shards the same one is named every time.
    let mut coming = futures::stream::iter(objects.into_iter().zip(known))
        .map(|(object, known)| shard(&store, format, object, known, partial, each))
        .buffered(at_once);
    loop {
        // DetectedFormat whenever an answer has come: a single large shard would be a long silence.
        let next = poll_fn(|context| {
            let next = coming.poll_next_unpin(context);
            (cost.requests, cost.bytes_read) = (store.requests(), store.bytes());
            progress(cost);
            next
        });
        match next.await {
            None => return Ok(shards),
            Some(Err((object, trouble))) => return Err(trouble.told(base_url, &object.path)),
            Some(Ok(shard)) => {
                cost.samples += shard.rows.len() as u64;
                cost.bytes = cost.bytes.saturating_add(shard.rows.bytes());
                cost.skipped += shard.skipped;
                shards.push(shard);
            }
        }
    }
}

/// What the first bytes of shards say they are, whose names do not: one small read of the first of
/// them that has so many.
///
/// # Errors
/// If it cannot be read, or is compressed.
pub(crate) async fn sniff(
    origin: &dyn OriginTier,
    base_url: &str,
    objects: &[Object],
) -> Result<Format, DatasetError> {
    let long = objects.iter().filter(|object| object.size >= tfrecord::HEAD);
    let Some(object) = long.min_by(|a, b| a.path.cmp(&b.path)) else { return Ok(Format::Files) };
    let head = ShardStore::new(origin).read(object, 0, tfrecord::HEAD).await;
    let head = head.map_err(|error| ShardError::from(error).told(base_url, &object.path))?;
    match () {
        () if tfrecord::begins(&head, object.size) => Ok(Format::TfRecord),
        () if matches!(shard_error::compression(&head), Some("gzip" | "zlib")) => {
            Err(compressed(base_url, &object.path))
        }
        () => Ok(Format::Files),
    }
}

async fn shard(
    store: &ShardStore<'_>,
    format: Format,
    object: Object,
    known: Option<IndexedShard>,
    partial: Option<&ShardJournal>,
    places: usize,
) -> Result<IndexedShard, (Object, ShardError)> {
    if let Some(shard) = known {
        return Ok(shard);
    }
    match rows(store, format, &object, places).await {
        Ok((rows, skipped)) => {
            let shard = IndexedShard { object, rows, skipped };
            if let Some(partial) = partial {
                partial.note(&shard);
            }
            Ok(shard)
        }
        Err(trouble) => Err((object, trouble)),
    }
}

async fn rows(
    store: &ShardStore<'_>,
    format: Format,
    object: &Object,
    places: usize,
) -> Result<(SampleRows, u64), ShardError> {
    match format {
        Format::Files => Err(ShardError::damaged(0, "a file is no shard")),
        Format::Zip => zip::rows(store, object, places).await,
        Format::Tar => samples::group(&scan::members::<tar::Tar>(store, object, places).await?),
        Format::TfRecord => {
            let members = scan::members::<tfrecord::TfRecord>(store, object, places).await?;
            let mut rows = SampleRows::new(false, true, false);
            for &(start, length, crc32c) in &members.places {
                rows.push("", start, length, crc32c);
            }
            Ok((rows, members.skipped))
        }
    }
}
