//! Packed formats: samples that are parts of objects.
//!
//! A shard is indexed once, by reading the headers between its samples and not the samples. After
//! that each sample is an extent like any other, and shuffled as exactly as files are. All reads go
//! through an [`OriginTier`](foreread_tier::OriginTier) and never through a file system, because
//! shards are made for remote stores.
//!
//! A sample is exactly one extent. A WebDataset sample reaches from the first of its members to the
//! end of its last. It includes the headers between them (half a kilobyte each), and its fields are
//! sub-ranges. The result is one request per sample, whatever its number of members.
//!
//! [`reader`] keeps requests few, [`scan`] runs several at once, and [`tar`], [`tfrecord`],
//! [`recordio`] and [`zip`] parse their formats. All other formats have their parsers in
//! `foreread-formats`, and [`parsers`] chooses among them.

mod chosen;
mod compressed;
mod empty;
mod parsers;
mod pax;
mod reader;
mod recordio;
mod rows;
mod samples;
mod saved;
mod scan;
mod shard_error;
pub(crate) mod shard_journal;
mod sniff;
mod source;
mod tar;
mod tfrecord;
mod zip;

use std::future::poll_fn;

use foreread_formats::FormatError;
use foreread_tier::{Object, OriginTier};
use futures::StreamExt;

use self::chosen::CommonParts;
pub(crate) use self::empty::why as why_empty;
pub(crate) use self::parsers::FormatChoice;
use self::parsers::Parsers;
use self::reader::{ShardStore, StoredBytes};
pub(crate) use self::rows::{FormatColumns, IndexedShard, SampleRows, ShardExtra};
use self::shard_error::dataset_error;
pub(crate) use self::sniff::{FirstBytes, look, sniff};
use crate::packed::shard_journal::{KnownShards, ShardJournal};
use crate::{DatasetError, Format};

/// The number of parallel requests, over all shards.
const IN_FLIGHT: usize = 64;

/// The progress of indexing shards.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IndexCost {
    pub(crate) samples: u64,
    pub(crate) bytes: u64,
    pub(crate) skipped: u64,
    pub(crate) requests: u64,
    pub(crate) bytes_read: u64,
    /// Shards that an earlier index had completed.
    pub(crate) resumed: u64,
}

/// The samples of shards that are already known, and the file that new ones are stored in.
#[derive(Debug, Default)]
pub(crate) struct ResumeState<'a> {
    pub(crate) kept: KnownShards,
    pub(crate) partial: Option<&'a ShardJournal>,
}

/// Whether an `index.json` is next to the first of these chunks.
pub(crate) async fn have_index(origin: &dyn OriginTier, objects: &[Object]) -> bool {
    let Some(first) = objects.iter().find(|object| !Format::is_companion(&object.path)) else { return false };
    origin.stat(&parsers::index_path(&first.path)).await.is_ok()
}

/// Indexes all `objects` as shards of a format, in their order. `progress` is called after each
/// read.
pub(crate) async fn index(
    origin: &dyn OriginTier,
    base_url: &str,
    choice: FormatChoice<'_>,
    objects: Vec<Object>,
    before: ResumeState<'_>,
    mut progress: impl FnMut(IndexCost),
) -> Result<Vec<IndexedShard>, DatasetError> {
    let store = ShardStore::new(StoredBytes::Origin(origin));
    let objects = match choice.format {
        Format::Arrow if !choice.is_named => {
            saved::only_data(origin, &store, base_url, choice.is_selected, objects).await?
        }
        _ => objects,
    };
    let parsers = Parsers::new(origin, &store, choice);
    let mut common = CommonParts::new(choice.options.within(choice.format).1);
    let places = IN_FLIGHT.min(origin.profile().parallelism.max(8));
    let at_once = places.min(objects.len()).max(1);
    let each = places / at_once;
    let mut cost = IndexCost::default();
    let mut shards = Vec::with_capacity(objects.len());
    let ResumeState { mut kept, partial } = before;
    let known: Vec<Option<IndexedShard>> = objects.iter().map(|object| kept.take(object)).collect();
    cost.resumed = known.iter().flatten().count() as u64;
    // In order, so that the same one of several bad shards is reported every time.
    let mut coming = futures::stream::iter(objects.into_iter().zip(known))
        .map(|(object, known)| shard(&parsers, object, known, partial, each))
        .buffered(at_once);
    loop {
        // Progress is reported after each response, because a single large shard may take long.
        let next = poll_fn(|context| {
            let next = coming.poll_next_unpin(context);
            (cost.requests, cost.bytes_read) = (store.requests(), store.bytes());
            progress(cost);
            next
        });
        match next.await {
            None => {
                parsers.check_complete(base_url, &shards).await?;
                return Ok(shards);
            }
            Some(Err((object, trouble))) => return Err(dataset_error(trouble, base_url, &object.path)),
            Some(Ok(shard)) => {
                common.add(base_url, choice.format, &shard)?;
                cost.samples += shard.rows.len();
                cost.bytes = cost.bytes.saturating_add(shard.rows.bytes());
                cost.skipped += shard.skipped;
                shards.push(shard);
            }
        }
    }
}

async fn shard(
    parsers: &Parsers<'_>,
    object: Object,
    known: Option<IndexedShard>,
    partial: Option<&ShardJournal>,
    places: usize,
) -> Result<IndexedShard, (Object, FormatError)> {
    if let Some(shard) = known {
        return Ok(shard);
    }
    match parsers.rows(&object, places).await {
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
