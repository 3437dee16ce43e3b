//! Why shards have no samples.

use foreread_types::setting;

use super::rows::IndexedShard;
use crate::Format;

/// The cause that shards of a format, of which there is one at least, have no samples, and the
/// remedy.
pub(crate) fn why(format: Format, shards: &[IndexedShard]) -> String {
    let skipped: u64 = shards.iter().map(|shard| shard.skipped).sum();
    let part = || {
        let chosen = shards.iter().find_map(|shard| shard.rows.extra().chosen.as_ref());
        chosen.map_or("the column of samples", |chosen| &*chosen.samples)
    };
    match (format, skipped) {
        (Format::Tokens, _) => {
            format!("no file is as long as the window; set a shorter {}", setting("window"))
        }
        (Format::Parquet | Format::Arrow, 1..) => format!(
            "all {skipped} values of {} are null; where the files are stored elsewhere and only named here, \
             index their directory, or save the dataset by `save_to_disk`, which embeds them",
            part()
        ),
        (Format::Parquet | Format::Arrow, 0) => "their tables have no rows; write them again".to_owned(),
        (Format::Lmdb, 1..) => format!(
            "all {skipped} entries are other databases or have keys of counters; choose with {}, or \
             take all keys with {}",
            setting("key").to("NAME"),
            setting("field").to("")
        ),
        (Format::Lmdb, 0) => {
            format!(
                "the database has no entries; write it again, or choose another one with {}",
                setting("key")
            )
        }
        (Format::Tar, 1..) => format!(
            "all {skipped} members are directories, links, hidden, or names without a dot, which WebDataset \
             leaves out; pack files as KEY.EXTENSION"
        ),
        (Format::Zip, 1..) => {
            format!("all {skipped} members are directories or hidden; pack files into it")
        }
        (Format::TfRecord | Format::RecordIo, _) => "they have no records; write them again".to_owned(),
        (Format::Tar | Format::Zip, 0) => "the archives have no members; pack them again".to_owned(),
        _ => format!("they are empty ({skipped} entries that are no samples); write them again"),
    }
}
