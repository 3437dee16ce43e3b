//! Zip archives: each member is a sample. Deflated members are decoded when they are read.
//!
//! The directory at the end lists the members. The start of a member's data is known only from its
//! local header, which may be longer than the directory's entry. So indexing reads the directory
//! and 30 bytes per member. `rawzip` parses both from the buffered bytes. Missing bytes are
//! fetched, and it parses again. The directory is in memory while its members are read (about the
//! size of their rows in the catalog). Its CRC-32 of each member goes into the catalog, so that
//! every read from an origin is checked against it.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use foreread_formats::{FormatError, MadeRows};
use foreread_tier::Object;
use foreread_types::Decoder;
use futures::future::try_join_all;
use rawzip::{
    CompressionMethod, Error, ErrorKind, MAX_CENTRAL_DIRECTORY_RECORD_SIZE, ReaderAt, ZipArchive,
    ZipArchiveEntryWayfinder, ZipLocator,
};

use super::reader::{ShardReader, ShardStore};
use super::rows::{FormatColumns, SampleRows, ShardExtra, TextList};
use crate::names::{MAX_TEXT, lenient};

/// The bytes of the first read, at the end: the longest comment and the records before it.
const TAIL: u64 = 66 << 10;
/// The longest directory that is accepted.
const MOST_DIRECTORY: u64 = 512 << 20;
/// A local header without its name.
const LOCAL: u64 = 30;
/// The minimum number of members whose headers one task reads in sequence.
const FEWEST: usize = 64;
/// The maximum number of fetches of missing bytes per archive.
const MOST_FETCHES: usize = 16;

/// The buffered parts of an archive. A read of any other part is recorded and fails.
#[derive(Debug, Default)]
struct EndRecords {
    parts: Vec<(u64, Bytes)>,
    missing: Mutex<Option<Range<u64>>>,
    size: u64,
}

impl Clone for EndRecords {
    fn clone(&self) -> Self {
        Self { parts: self.parts.clone(), missing: Mutex::default(), size: self.size }
    }
}

impl EndRecords {
    fn missing(&self) -> Option<Range<u64>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ReaderAt for EndRecords {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        if at >= self.size || buffer.is_empty() {
            return Ok(0);
        }
        let found = self.parts.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(at.checked_sub(*start)?).ok()?;
            bytes.get(from..).filter(|rest| !rest.is_empty())
        });
        let Some(rest) = found else {
            let end = at.saturating_add(buffer.len() as u64).min(self.size);
            *self.missing.lock().unwrap_or_else(PoisonError::into_inner) = Some(at..end);
            return Err(io::Error::other("not at hand"));
        };
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

/// The directory's entries of the members that are samples.
#[derive(Default)]
struct ZipEntry {
    names: TextList,
    /// Each entry with the offset of its local header and its index.
    entries: Vec<(u64, ZipArchiveEntryWayfinder, usize)>,
    /// The length of each member without compression, if it is compressed.
    deflated: Vec<Option<u64>>,
    /// The CRC-32 of each member's bytes.
    sums: Vec<u32>,
    skipped: u64,
}

/// The samples of a zip archive, read at most `places` positions at once.
pub(crate) async fn rows(
    store: &ShardStore<'_>,
    object: &Object,
    places: usize,
) -> Result<(SampleRows, u64), FormatError> {
    if object.size == 0 {
        return Err(FormatError::damaged(0, "it is empty, and no zip archive"));
    }
    let archive = locate(store, object).await?;
    let listed = list(&archive)?;
    let directory = archive.directory_offset();
    let share = listed.entries.len().div_ceil(places.max(1)).max(FEWEST);
    let parts = listed.entries.chunks(share).map(|entries| extents(store, object, archive.clone(), entries));
    let extents = try_join_all(parts).await?.concat();
    let mut rows = SampleRows::new(FormatColumns::ZIP);
    let mut made = MadeRows::default();
    let mut free = 0;
    for (&(header, _, number), &(start, end)) in listed.entries.iter().zip(&extents) {
        let name = listed.names.get(number);
        if header < free {
            return Err(FormatError::damaged(
                header,
                format!("the member {name:?} overlaps the one before it"),
            ));
        }
        if end > directory {
            let why = format!(
                "the member {name:?} goes beyond the directory at byte {directory}: it was cut short"
            );
            return Err(FormatError::damaged(header, why));
        }
        // A deflated member without bytes has some stored ones, which are not read.
        let length = listed.deflated[number].unwrap_or(end - start);
        match listed.deflated[number] {
            Some(1..) => made.push(end - start, &[Decoder::Deflate], length, 0),
            _ => made.push_plain(length),
        }
        if !made.fits(made.rows.len() - 1, (start, length), object.size) {
            let why = format!("the member {name:?} cannot have {length} bytes: its entry is damaged");
            return Err(FormatError::damaged(header, why));
        }
        rows.push(name, start, length, listed.sums[number]);
        free = end;
    }
    let extra = match made.recipes.is_empty() {
        true => ShardExtra::default(),
        false => ShardExtra { made: Some(made), ..ShardExtra::default() },
    };
    Ok((rows.with_extra(extra), listed.skipped))
}

/// Reads the archive's end and its whole directory.
async fn locate(store: &ShardStore<'_>, object: &Object) -> Result<ZipArchive<EndRecords>, FormatError> {
    let size = object.size;
    let tail = TAIL.min(size);
    let bytes = store.read(object, size - tail, tail).await?;
    let mut parts = EndRecords { parts: vec![(size - tail, bytes)], missing: Mutex::default(), size };
    let mut buffer = vec![0; MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
    for _ in 0..MOST_FETCHES {
        let located = ZipLocator::new().max_search_space(TAIL).locate_in_reader(parts, &mut buffer, size);
        // Checked on success too: `rawzip` does not report a missing first entry as an error.
        let missing = match &located {
            Ok(archive) => archive.get_ref().missing(),
            Err((parts, _)) => parts.missing(),
        };
        let Some(missing) = missing else {
            let archive = located.map_err(|(_, error)| zip_error(&error, size - tail))?;
            return with_directory(store, object, archive).await;
        };
        parts = match located {
            Ok(archive) => archive.into_inner(),
            Err((parts, _)) => parts,
        };
        let length = (missing.end - missing.start).min(TAIL);
        let bytes = store.read(object, missing.start, length).await?;
        parts.parts.push((missing.start, bytes));
    }
    Err(FormatError::damaged(size - tail, "the records at its end lead nowhere"))
}

async fn with_directory(
    store: &ShardStore<'_>,
    object: &Object,
    mut archive: ZipArchive<EndRecords>,
) -> Result<ZipArchive<EndRecords>, FormatError> {
    let (from, until) = (archive.directory_offset(), archive.eocd_offset());
    let length = until.checked_sub(from).filter(|&length| length <= MOST_DIRECTORY);
    let length = length.ok_or_else(|| {
        FormatError::unsupported(from, "its directory is longer than 512 MiB; split it into several archives")
    })?;
    let parts = archive.get_mut();
    // The first read of the end often contains the directory.
    parts.parts.retain(|&(start, ref bytes)| start <= from && until <= start + bytes.len() as u64);
    let mut at = if parts.parts.is_empty() { from } else { until };
    while at < from + length {
        let part = (from + length - at).min(4 << 20);
        parts.parts.push((at, store.read(object, at, part).await?));
        at += part;
    }
    Ok(archive)
}

fn list(archive: &ZipArchive<EndRecords>) -> Result<ZipEntry, FormatError> {
    let from = archive.directory_offset();
    let mut listed = ZipEntry::default();
    let mut seen = 0;
    let mut buffer = vec![0; MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
    let mut entries = archive.entries(&mut buffer);
    while let Some(entry) = entries.next_entry().map_err(|error| zip_error(&error, from))? {
        seen += 1;
        let at = entry.local_header_offset();
        let path = entry.file_path();
        let name = &*lenient(Cow::Borrowed(path.as_ref()));
        if entry.is_dir() || is_hidden(name) {
            listed.skipped += 1;
            continue;
        }
        if name.len() > MAX_TEXT {
            return Err(FormatError::damaged(at, "a name is longer than 16,384 bytes"));
        }
        if entry.flags().is_encrypted() {
            let why = format!("the member {name:?} is encrypted; pack it without");
            return Err(FormatError::unsupported(at, why));
        }
        let method = entry.compression_method();
        if !matches!(method, CompressionMethod::STORE | CompressionMethod::DEFLATE) {
            let why = format!(
                "the member {name:?} is compressed by a method other than deflate; pack it with deflate or \
                 without compression (zip -0)"
            );
            return Err(FormatError::unsupported(at, why));
        }
        let (packed, plain) = (entry.compressed_size_hint(), entry.uncompressed_size_hint());
        let deflated = (method == CompressionMethod::DEFLATE).then_some(plain);
        if deflated.is_none() && packed != plain {
            let why = format!("the member {name:?} is not compressed and {packed} bytes for {plain}");
            return Err(FormatError::damaged(at, why));
        }
        listed.entries.push((at, entry.wayfinder(), listed.names.len()));
        listed.names.push(name);
        listed.deflated.push(deflated);
        listed.sums.push(entry.crc32());
    }
    if seen != archive.entries_hint() {
        let why = format!("its directory has {seen} members and should have {}", archive.entries_hint());
        return Err(FormatError::damaged(from, why));
    }
    listed.entries.sort_by_key(|&(at, _, number)| (at, number));
    Ok(listed)
}

/// As in listings: names that begin with a dot, and names that macOS adds.
fn is_hidden(name: &str) -> bool {
    name.starts_with("__MACOSX/")
        || name.split('/').any(|part| part.starts_with('.') && !matches!(part, "." | ".."))
}

/// The start and end of the data of each of these members.
async fn extents(
    store: &ShardStore<'_>,
    object: &Object,
    mut archive: ZipArchive<EndRecords>,
    entries: &[(u64, ZipArchiveEntryWayfinder, usize)],
) -> Result<Vec<(u64, u64)>, FormatError> {
    let mut reader = ShardReader::new(store, object);
    let mut extents = Vec::with_capacity(entries.len());
    for &(at, entry, _) in entries {
        let head = Bytes::copy_from_slice(&reader.need(at, LOCAL).await?[..LOCAL as usize]);
        archive.get_mut().parts = vec![(at, head)];
        let entry = archive.get_entry(entry).map_err(|error| zip_error(&error, at))?;
        let (start, end) = entry.compressed_data_range();
        extents.push((start, end));
    }
    Ok(extents)
}

fn zip_error(error: &Error, at: u64) -> FormatError {
    let why = match error.kind() {
        ErrorKind::MissingEndOfCentralDirectory => {
            "it has no directory at its end: it is not a zip archive, or was cut short".to_owned()
        }
        ErrorKind::Eof | ErrorKind::IO(_) => {
            "its directory leads beyond its end: it is damaged or was cut short".to_owned()
        }
        ErrorKind::InvalidSignature { .. } => {
            "its directory points to a position without a header".to_owned()
        }
        _ => format!("its directory is damaged ({error})"),
    };
    FormatError::damaged(at, why)
}
