//! Shards that are compressed as a whole: `.tar.gz`, `.tar.zst`, `.tfrecord.gz`.
//!
//! Such a shard is one stored unit: its samples are parts of the decompressed shard. The index
//! decompresses each shard once, in memory, and finds the samples as in any other shard. Runs do so
//! too, and only where the caches hold all samples: without, each sample would cost a shard.
//!
//! The price is memory for one shard, stored and decompressed, while it is indexed. So one shard at
//! a time is.

use bytes::Bytes;
use foreread_formats::decode::decompress;
use foreread_formats::found::MOST_DECODED;
use foreread_formats::{FormatError, MadeRow, MadeRows};
use foreread_tier::Object;
use foreread_types::{Decoder, Recipe};

use super::reader::ShardStore;
use super::rows::{SampleRows, ShardExtra};

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

/// Reads and decompresses a shard.
pub(crate) async fn read(
    store: &ShardStore<'_>,
    object: &Object,
    decoder: Decoder,
) -> Result<Bytes, FormatError> {
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
    decoded.map(Bytes::from).map_err(|error| FormatError::damaged(0, error.to_string()))
}

/// The samples that were found in `decoded` bytes of a decompressed shard, as parts of the stored
/// one.
pub(crate) fn made(
    rows: SampleRows,
    object: &Object,
    decoder: Decoder,
    decoded: u64,
) -> Result<SampleRows, FormatError> {
    let recipe = Recipe::new([decoder], decoded.max(1)).ok();
    if rows.rows() > 0 && recipe.is_none_or(|recipe| recipe.lengths(object.size).is_none()) {
        return Err(FormatError::unsupported(0, "it is compressed beyond what a compressor does"));
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

fn too_long(size: u64) -> FormatError {
    let why = format!(
        "it is compressed as a whole, and has {size} bytes: only shards of up to {MOST_DECODED} bytes can be \
         decompressed in memory; unpack it and index the result"
    );
    FormatError::unsupported(0, why)
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
