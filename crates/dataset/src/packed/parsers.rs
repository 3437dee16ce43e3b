//! Which parser reads a shard.

use foreread_tier::Object;

use super::reader::ShardStore;
use super::rows::{FormatColumns, SampleRows};
use super::shard_error::ShardError;
use super::{samples, scan, tar, tfrecord, zip};
use crate::{Format, FormatOptions};

/// The parsers of one dataset's format.
#[derive(Debug)]
pub(crate) struct Parsers<'a> {
    store: &'a ShardStore<'a>,
    format: Format,
    options: &'a FormatOptions,
}

impl<'a> Parsers<'a> {
    pub(crate) fn new(store: &'a ShardStore<'a>, format: Format, options: &'a FormatOptions) -> Self {
        Self { store, format, options }
    }

    /// The samples of a shard, read at most at `places` positions at once, and the number of its
    /// members that are not samples.
    pub(crate) async fn rows(&self, object: &Object, places: usize) -> Result<(SampleRows, u64), ShardError> {
        let store = self.store;
        match self.format {
            Format::Files => Err(ShardError::damaged(0, "a plain file is not a shard")),
            Format::Zip => zip::rows(store, object, places).await,
            Format::Tar => samples::group(&scan::members::<tar::Tar>(store, object, places).await?),
            Format::TfRecord => {
                let members = scan::members::<tfrecord::TfRecord>(store, object, places).await?;
                let mut rows = SampleRows::new(FormatColumns::TFRECORD);
                for &(start, length, crc32c) in &members.places {
                    rows.push("", start, length, crc32c);
                }
                Ok((rows, members.skipped))
            }
            _ => Err(ShardError::unsupported(0, "")),
        }
    }
}
