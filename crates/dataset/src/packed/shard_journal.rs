//! Indexed shards, saved in a file until all shards are indexed.
//!
//! Reading the headers of a thousand shards takes minutes, and the result is valid while the shard
//! is unchanged. So each indexed shard is a line of JSON. The next run uses it if path, length and
//! version still match. A shard without a version is not saved, because another one of equal length
//! would look the same. The first line identifies the location and the format. For others the file
//! starts anew. Lines have checksums, and one process at a time writes the file
//! ([`journal`]). The price is some fifty bytes per sample on disk while
//! indexing runs, and a shard's line in memory.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foreread_tier::{FileChange, Object, Version};
use serde::{Deserialize, Serialize, Serializer};

use crate::disk::journal::{self, Journal, RecordUse};
use crate::packed::{FormatColumns, IndexedShard, SampleRows, ShardExtra};
use crate::{DatasetError, Format, FormatOptions};

/// The first bytes of such a file, which distinguish it from any other.
const BEGINNING: &[u8] = b"{\"unfinished_shards\":";

/// The first line of a file, which identifies the index.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ShardsHead {
    unfinished_shards: u32,
    base_url: String,
    format: String,
    #[serde(default, skip_serializing_if = "FormatOptions::is_default")]
    options: FormatOptions,
}

/// A sample: name, offset, length, checksum, and its fields with offset in it and length.
type Sample<'a> = (Option<&'a str>, u64, u64, Option<u32>, Option<Vec<(&'a str, u64, u64)>>);
type OwnedSample = (Option<String>, u64, u64, Option<u32>, Option<Vec<(String, u64, u64)>>);

/// A shard as it is written, and as it is read.
#[derive(Serialize, Deserialize)]
struct ShardRecord<Text, Samples, Extra> {
    path: Text,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<u64>,
    /// The directory that `changed` is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<Text>,
    skipped: u64,
    /// Which columns the format has: names, checksums, fields.
    columns: [bool; 3],
    samples: Samples,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra: Option<Extra>,
}

type StoredShard = ShardRecord<String, Vec<OwnedSample>, ShardExtra>;

/// The samples of a shard as they are written, one by one.
struct WrittenSamples<'a>(&'a SampleRows);

impl Serialize for WrittenSamples<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let Self(rows) = self;
        out.collect_seq((0..rows.rows()).map(|row| -> Sample<'_> {
            let (offset, length) = rows.extent(row);
            let fields = rows.fields(row).map(|fields| fields.map(|field| rows.field(field)).collect());
            (rows.key(row), offset, length, rows.crc32c(row), fields)
        }))
    }
}

impl StoredShard {
    /// The shard, if the record is valid.
    fn shard(self) -> Option<IndexedShard> {
        let Self { path, size, modified, changed, location, etag, skipped, columns, samples, extra } = self;
        let ([keys, crc32c, fields], extra) = (columns, extra.unwrap_or_default());
        let columns = FormatColumns { keys, crc32c, fields };
        let version = match (modified, changed.zip(location), etag) {
            (Some(modified), Some((changed, location)), _) => {
                Version::Written { modified, changed: FileChange::Kept(changed), location }
            }
            (Some(modified), None, _) => Version::Modified(modified),
            (None, _, Some(tag)) => Version::ETag(tag.into()),
            (None, _, None) => return None,
        };
        let mut rows = SampleRows::new(columns);
        for (key, offset, length, crc32c, of_sample) in samples {
            let found =
                FormatColumns { keys: key.is_some(), crc32c: crc32c.is_some(), fields: of_sample.is_some() };
            if found != columns {
                return None;
            }
            let of_sample = of_sample.unwrap_or_default();
            rows.push(key.as_deref().unwrap_or_default(), offset, length, crc32c.unwrap_or_default());
            for (name, from, field) in of_sample {
                from.checked_add(field).filter(|&field| field <= length)?;
                rows.push_part(&name, from, field);
            }
        }
        if !extra.is_valid(rows.extents(), size) {
            return None;
        }
        let rows = rows.with_extra(extra);
        Some(IndexedShard {
            object: Object { path: path.into(), size, version: Some(version) },
            rows,
            skipped,
        })
    }
}

/// The file of a running index of shards.
#[derive(Debug)]
pub(crate) struct ShardJournal {
    /// None after a failed write.
    journal: Mutex<Option<Journal>>,
}

impl ShardJournal {
    /// Opens or creates the file of this index, with the shards in it. None if no file can be
    /// opened. Then no shards are saved.
    ///
    /// # Errors
    /// [`DatasetErrorKind::InUse`](crate::DatasetErrorKind::InUse) if another process writes it.
    pub(crate) fn open(
        path: &Path,
        base_url: &str,
        format: Format,
        options: &FormatOptions,
    ) -> Result<Option<(Self, KnownShards)>, DatasetError> {
        let head = ShardsHead {
            unfinished_shards: 5,
            base_url: base_url.to_owned(),
            format: format.name().to_owned(),
            options: options.clone(),
        };
        let mut kept = KnownShards::default();
        let journal = Journal::open(path, BEGINNING, &head, Duration::MAX, |text| {
            let Some(shard) = serde_json::from_str::<StoredShard>(text).ok().and_then(StoredShard::shard)
            else {
                return RecordUse::Refused;
            };
            kept.0.insert(Arc::clone(&shard.object.path), shard);
            RecordUse::Counts
        })?;
        Ok(journal.map(|journal| (Self { journal: Mutex::new(Some(journal)) }, kept)))
    }

    /// Writes an indexed shard.
    pub(crate) fn note(&self, shard: &IndexedShard) {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = &mut *journal else { return };
        if let Err(error) = write(open, shard) {
            tracing::debug!(%error, path = %open.path().display(), "shards cannot be kept any longer");
            *journal = None;
        }
    }
}

fn write(journal: &mut Journal, shard: &IndexedShard) -> std::io::Result<()> {
    let Object { path, size, version } = &shard.object;
    let (modified, changed, location, etag) = match version {
        Some(Version::Modified(time)) => (Some(*time), None, None, None),
        // Without proof that the shard is unchanged, it is indexed again.
        Some(Version::Written { modified, changed: FileChange::Kept(changed), location }) => {
            (Some(*modified), Some(*changed), Some(*location), None)
        }
        Some(Version::ETag(tag)) => (None, None, None, Some(&**tag)),
        _ => return Ok(()),
    };
    let FormatColumns { keys, crc32c, fields } = shard.rows.columns();
    let (size, skipped, columns) = (*size, shard.skipped, [keys, crc32c, fields]);
    let (path, samples, extra) = (&**path, WrittenSamples(&shard.rows), shard.rows.extra());
    let extra = (!extra.is_default()).then_some(extra);
    journal.write(&ShardRecord {
        path,
        size,
        modified,
        changed,
        location,
        etag,
        skipped,
        columns,
        samples,
        extra,
    })?;
    journal.flush()
}

/// Shards that an earlier, interrupted run had indexed completely.
#[derive(Debug, Default)]
pub(crate) struct KnownShards(HashMap<Arc<str>, IndexedShard>);

impl KnownShards {
    /// The samples of this object, if its version was the same.
    pub(crate) fn take(&mut self, object: &Object) -> Option<IndexedShard> {
        self.0.remove(&object.path).filter(|shard| shard.object == *object)
    }
}

/// The path of the shards' file for the listing's file at `listing`.
pub(crate) fn next_to(listing: &Path) -> PathBuf {
    let mut name = listing.as_os_str().to_owned();
    name.push("-shards");
    name.into()
}

/// Removes such a file. Any other file is kept.
pub(crate) fn forget(path: &Path) {
    journal::forget(path, BEGINNING);
}

#[cfg(test)]
mod tests {
    use foreread_formats::{ArrayType, MadeRow, MadeRows, MorePart};
    use foreread_types::Decoder;

    use super::*;

    fn object(path: &str, tag: &str) -> Object {
        Object { path: path.into(), size: 5000, version: Some(Version::ETag(tag.into())) }
    }

    /// A shard of each format, and one without samples.
    fn shards() -> Vec<IndexedShard> {
        let mut tar = SampleRows::new(FormatColumns::TAR);
        for (key, start) in [("a\n\"b", 512), ("c", 2048)] {
            tar.push(key, start, 0, 0);
            tar.push_field("jpg", start, 7);
            tar.push_field("cls", start + 1024, 0);
        }
        let mut records = SampleRows::new(FormatColumns::TFRECORD);
        records.push("", 12, 100, 0xffff_ffff);
        records.push("", 128, 0, 0);
        let mut zip = SampleRows::new(FormatColumns::ZIP);
        zip.push("x/y", 40, 6000, 7);
        let row = MadeRow { stored: 4960, decoded: 6000, slice: 0, recipe: Some(0) };
        let made =
            Some(MadeRows { recipes: vec![vec![Decoder::Deflate]], rows: vec![row], more: Vec::new() });
        let zip = zip.with_extra(ShardExtra { made, ..ShardExtra::default() });
        let mut joined = SampleRows::new(FormatColumns::default());
        joined.push("", 10, 30, 0);
        let made = MadeRow { stored: 40, decoded: 60, slice: 3, recipe: Some(0) };
        let more = vec![MorePart { row: 0, offset: 100, length: 20, made }];
        let rows = vec![MadeRow::plain(10)];
        let made = Some(MadeRows { recipes: vec![vec![Decoder::Deflate]], rows, more });
        let array = ArrayType { dtype: "|u1".to_owned(), shape: vec![None] };
        let field_arrays = vec![("mask".into(), array)];
        let joined = joined.with_extra(ShardExtra { made, field_arrays, ..ShardExtra::default() });
        [tar, records, zip, SampleRows::new(FormatColumns::TAR), joined]
            .into_iter()
            .zip(0..)
            .map(|(rows, number)| IndexedShard {
                object: object(&format!("{number}.x"), "\"t\""),
                rows,
                skipped: number,
            })
            .collect()
    }

    fn open(path: &Path, format: Format) -> (ShardJournal, KnownShards) {
        ShardJournal::open(path, "s3://b", format, &FormatOptions::default()).unwrap().unwrap()
    }

    #[test]
    // semantics: SAMPLE-16
    fn whole_journal_records_are_resumed_and_torn_ones_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.partial-shards");
        let (partial, kept) = open(&path, Format::Tar);
        assert!(kept.0.is_empty());
        shards().iter().for_each(|shard| partial.note(shard));
        // Nothing distinguishes it from another of equal length.
        let nameless =
            IndexedShard { object: Object { version: None, ..object("n", "") }, ..shards().remove(0) };
        partial.note(&nameless);
        drop(partial);
        let whole = std::fs::read(&path).unwrap();
        for torn in 0..60 {
            std::fs::write(&path, &whole[..whole.len() - torn]).unwrap();
            let (partial, mut kept) = open(&path, Format::Tar);
            for (shard, number) in shards().into_iter().zip(0..) {
                let taken = kept.take(&shard.object).map(|taken| format!("{taken:?}"));
                let expected = (torn == 0 || number < 4).then(|| format!("{shard:?}"));
                assert_eq!(taken, expected);
            }
            if torn > 0 {
                partial.note(&shards()[4]);
            }
            drop(partial);
            assert_eq!(open(&path, Format::Tar).1.0.len(), 5);
        }
    }

    #[test]
    fn parts_that_do_not_fit_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.partial-shards");
        let is_kept = |change: fn(&mut MadeRows)| {
            let IndexedShard { object, rows, skipped } = shards().remove(4);
            let mut extra = rows.extra().clone();
            extra.made.iter_mut().for_each(change);
            let rows = rows.with_extra(extra);
            open(&path, Format::Tar).0.note(&IndexedShard { object, rows, skipped });
            let kept = !open(&path, Format::Tar).1.0.is_empty();
            std::fs::remove_file(&path).unwrap();
            kept
        };
        assert!(is_kept(|_| ()));
        assert!(!is_kept(|made| made.more[0].row = 1));
        assert!(!is_kept(|made| made.more[0].offset = 4961));
        assert!(!is_kept(|made| made.more[0].length = 19));
        assert!(!is_kept(|made| made.more.push(MorePart { row: 0, ..made.more[0] })));
    }

    #[test]
    // semantics: SAMPLE-16
    fn changed_or_damaged_shard_records_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.partial-shards");
        let write = || shards().iter().for_each(|shard| open(&path, Format::Tar).0.note(shard));
        write();
        let (_, mut kept) = open(&path, Format::Tar);
        assert!(kept.take(&object("0.x", "\"other\"")).is_none());
        assert!(kept.take(&object("1.x", "\"t\"")).is_some());
        assert!(open(&path, Format::Zip).1.0.is_empty());
        write();
        let text = std::fs::read_to_string(&path).unwrap();
        let damaged = text.replacen("2048", "2049", 1);
        assert_ne!(damaged, text);
        std::fs::write(&path, damaged).unwrap();
        assert!(open(&path, Format::Tar).1.0.is_empty(), "the first shard is damaged");
        std::fs::write(&path, b"precious").unwrap();
        let options = FormatOptions::default();
        assert!(ShardJournal::open(&path, "s3://b", Format::Tar, &options).unwrap().is_none());
        forget(&path);
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }
}
