//! Shards that are compressed as a whole: `.tar.gz`, `.tar.zst`, `.tfrecord.gz`.
//!
//! Such a shard is one stored unit: its samples are parts of the decompressed shard. The index
//! decompresses each shard once, in memory, and finds the samples as in any other shard. Runs do so
//! too, and only where the caches hold all samples: without, each sample would cost a shard.
//!
//! The price is memory for one shard, stored and decompressed, while it is indexed. So one shard at
//! a time is.

use std::sync::Arc;

use bytes::Bytes;
use foreread_formats::decode::decompress;
use foreread_formats::found::MOST_DECODED;
use foreread_formats::{MadeRow, MadeRows};
use foreread_tier::{
    ErrorKind, LayoutsFuture, Object, OriginTier, ReadFuture, ReadRequest, Tier, TierError, TierProfile,
};
use foreread_types::{Decoder, Recipe};
use futures::future::{BoxFuture, ready};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};

use super::reader::ShardStore;
use super::rows::{SampleRows, ShardExtra};
use super::shard_error::ShardError;

/// The bytes of one request.
const REQUEST: u64 = 8 << 20;

/// The suffixes of shards that are compressed as a whole, and how.
const SUFFIXES: [(&str, Decoder); 8] = [
    (".tar.gz", Decoder::Gzip),
    (".tgz", Decoder::Gzip),
    (".tar.zst", Decoder::Zstd),
    (".tzst", Decoder::Zstd),
    (".tfrecord.gz", Decoder::Gzip),
    (".tfrecords.gz", Decoder::Gzip),
    (".tfrecord.zlib", Decoder::Zlib),
    (".tfrecords.zlib", Decoder::Zlib),
];

/// How the shard of this name is compressed. `None` if it is not.
pub(crate) fn decoder_of(path: &str) -> Option<Decoder> {
    let path = path.to_ascii_lowercase();
    SUFFIXES.iter().find(|(suffix, _)| path.ends_with(suffix)).map(|(_, decoder)| *decoder)
}

/// The bytes of a compressed shard, decompressed, as an origin that holds this shard only.
#[derive(Debug)]
pub(crate) struct DecodedShard {
    bytes: Bytes,
    profile: TierProfile,
}

impl DecodedShard {
    /// Reads and decompresses a shard.
    pub(crate) async fn read(
        store: &ShardStore<'_>,
        object: &Object,
        decoder: Decoder,
    ) -> Result<Self, ShardError> {
        let mut stored = Vec::new();
        let size = usize::try_from(object.size).ok().filter(|_| object.size <= MOST_DECODED);
        let has_room = size.is_some_and(|size| stored.try_reserve_exact(size).is_ok());
        if !has_room {
            return Err(too_long(object.size));
        }
        let mut at = 0;
        while at < object.size {
            let length = REQUEST.min(object.size - at);
            stored.extend_from_slice(&store.read(object, at, length).await?);
            at += length;
        }
        let decode = move || decompress(decoder, &stored, MOST_DECODED);
        // Decompressing takes seconds, which a runtime's thread must not be blocked for.
        let decoded = match tokio::runtime::Handle::try_current() {
            Ok(runtime) => runtime.spawn_blocking(decode).await.map_err(|_| too_long(object.size))?,
            Err(_) => decode(),
        };
        let bytes = decoded.map_err(|error| ShardError::damaged(0, error.to_string()))?;
        Ok(Self { bytes: bytes.into(), profile: TierProfile::new(1) })
    }

    /// The shard as an object of this origin.
    pub(crate) fn object(&self, of: &Object) -> Object {
        Object { size: self.bytes.len() as u64, ..of.clone() }
    }

    /// The samples that were found in the decompressed shard, as parts of the stored one.
    pub(crate) fn made(
        &self,
        rows: SampleRows,
        object: &Object,
        decoder: Decoder,
    ) -> Result<SampleRows, ShardError> {
        let decoded = self.bytes.len() as u64;
        let recipe = Recipe::new([decoder], decoded.max(1)).ok();
        if rows.rows() > 0 && recipe.is_none_or(|recipe| recipe.lengths(object.size).is_none()) {
            return Err(ShardError::unsupported(0, "it is compressed beyond what a compressor does"));
        }
        let mut made = MadeRows::default();
        let recipe = made.recipe(&[decoder]);
        for (start, length) in rows.extents() {
            made.rows.push(match length {
                0 => MadeRow::plain(0),
                _ => MadeRow { stored: object.size, decoded, slice: *start, recipe: Some(recipe) },
            });
        }
        let extra = ShardExtra { made: Some(made), ..rows.extra().clone() };
        Ok(rows.at_the_beginning().with_extra(extra))
    }
}

fn too_long(size: u64) -> ShardError {
    let why = format!(
        "it is compressed as a whole, and has {size} bytes: only shards of up to {MOST_DECODED} bytes can be \
         decompressed in memory; unpack it and index the result"
    );
    ShardError::unsupported(0, why)
}

impl Tier for DecodedShard {
    fn name(&self) -> &str {
        "decompressed shard"
    }

    fn profile(&self) -> &TierProfile {
        &self.profile
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let invalid = |why| TierError::invalid(self.name(), &request.object.path, why);
        let range = request.range().map_err(invalid);
        let bytes = range.and_then(|range| match usize::try_from(range.end) {
            Ok(end) if end <= self.bytes.len() => Ok(self.bytes.slice(range.start as usize..end)),
            _ => Err(invalid("it ends after the shard".to_owned())),
        });
        ready(bytes).boxed()
    }

    fn submit(&self) {}
}

impl OriginTier for DecodedShard {
    fn list(&self, _prefix: &str, _after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        futures::stream::empty().boxed()
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        ready(Err(TierError::new(ErrorKind::NotFound, self.name()).with_object(path))).boxed()
    }

    fn place(&self) -> &str {
        ""
    }

    fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<LayoutsFuture> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: FORMAT-7
    fn names_tell_the_compression() {
        for (path, decoder) in [
            ("a/b.tar.gz", Some(Decoder::Gzip)),
            ("B.TGZ", Some(Decoder::Gzip)),
            ("x.tar.zst", Some(Decoder::Zstd)),
            ("x.tfrecord.zlib", Some(Decoder::Zlib)),
            ("x.tar", None),
            ("x.gz", None),
            ("x.mds.gz", None),
        ] {
            assert_eq!(decoder_of(path), decoder, "{path}");
        }
    }
}
