//! Megatron's pair of files: tokens in `.bin`, and where sequences and documents lie in `.idx`.
//!
//! A sample is a document: its sequences, which are contiguous in the `.bin`. Or it is a window
//! over all tokens, or a sample as Megatron itself makes it of documents ([`packed`]). The tables
//! are read whole, because every entry is needed. The price is memory of the size of the `.idx`.
//!
//! The modes of multimodal sequences, one byte each at the end of the `.idx`, are ignored.

mod numpy_shuffle;
mod pack;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;

pub use pack::{PackOptions, packed};

use crate::element::ElementType;
use crate::found::{Extents, FoundSamples};
use crate::tokens::{self, WindowOptions};
use crate::{FileSource, FormatError, le};

const MAGIC: &[u8] = b"MMIDIDX\0\0";

/// The bytes before the tables: magic, version, element type, numbers of sequences and documents.
const HEADER: u64 = 34;

/// The element types by their codes, which begin at 1.
const TYPES: [&str; 8] = ["|u1", "|i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"];

/// The most bytes of one request.
const REQUEST: u64 = 16 << 20;

/// Requests that run at once.
const AT_ONCE: usize = 8;

/// The numbers at the beginning of an `.idx` file.
struct Header {
    element: ElementType,
    sequences: u64,
    /// The entries of the table of documents: one more than documents.
    entries: u64,
}

/// Reads the element type of the tokens, such as `<u2`.
///
/// # Errors
/// [`Damaged`](crate::FormatErrorKind::Damaged) if the header is invalid.
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) if its version or type is unknown.
/// [`Unread`](crate::FormatErrorKind::Unread) if the source fails.
pub async fn token_type(idx: &dyn FileSource) -> Result<String, FormatError> {
    Ok(header(idx).await?.element.name().to_owned())
}

/// Finds the windows in a `.bin` file. `idx` is the file next to it, which has the type of tokens.
///
/// # Errors
/// Those of [`token_type`] and [`tokens::raw`].
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) if the options have another type.
pub async fn windows(
    idx: &dyn FileSource,
    bin: &dyn FileSource,
    options: &WindowOptions,
) -> Result<FoundSamples, FormatError> {
    let element = header(idx).await?.element;
    tokens::agree(&element, options)?;
    let dtype = element.name().to_owned();
    tokens::raw(bin, &WindowOptions { dtype, ..options.clone() }).await
}

/// Finds the documents in a `.bin` file of `bin_size` bytes. `idx` is the file next to it.
///
/// # Errors
/// [`Damaged`](crate::FormatErrorKind::Damaged) if the tables are invalid, or do not fit the
/// `.bin`. [`Unsupported`](crate::FormatErrorKind::Unsupported) if the version or type is unknown.
/// [`Unread`](crate::FormatErrorKind::Unread) if the source fails.
pub async fn documents(idx: &dyn FileSource, bin_size: u64) -> Result<FoundSamples, FormatError> {
    let tables = Tables::read(idx, bin_size).await?;
    let Tables { header, pointers_at, documents_at, modes, .. } = &tables;
    let cut = || FormatError::cut_short(HEADER, idx.size());
    let number = |index: u64| le::u64(&tables.documents, index as usize * 8).ok_or_else(cut);
    if header.entries == 0 || number(0)? != 0 {
        return Err(FormatError::damaged(*documents_at, "the table of documents does not begin with 0"));
    }
    let place = |sequence: u64| {
        let (begin, tokens) = tables.sequence(sequence)?;
        Some((begin, tokens * header.element.size()))
    };
    let mut rows = Vec::with_capacity(header.entries as usize - 1);
    let (mut from, mut offset) = (0, 0);
    for index in 1..header.entries {
        let at = documents_at + index * 8;
        let to = number(index)?;
        if to < from || to > header.sequences {
            let why = format!("document {} ends at sequence {to} of {}", index - 1, header.sequences);
            return Err(FormatError::damaged(at, why));
        }
        let begin = if from < to { place(from).ok_or_else(cut)?.0 } else { offset };
        let mut end = begin;
        for sequence in from..to {
            let (start, length) = place(sequence).ok_or_else(cut)?;
            if start != end {
                let why = format!("sequence {sequence} does not begin at the end of the one before it");
                return Err(FormatError::damaged(pointers_at + sequence * 8, why));
            }
            end = start + length;
        }
        rows.push((begin, end - begin));
        (from, offset) = (to, end);
    }
    let skipped = header.sequences - from;
    let mut summary = format!(
        "Megatron: {} documents of {} sequences, tokens {}",
        rows.len(),
        header.sequences,
        header.element.name()
    );
    if skipped > 0 {
        summary.push_str(&format!(", {skipped} sequences without a document left out"));
    }
    if *modes > 0 {
        summary.push_str(", modes ignored");
    }
    let mut found = FoundSamples::at(Extents::Rows(rows), summary);
    found.array = Some(header.element.array(vec![None]));
    found.skipped = skipped;
    Ok(found)
}

/// The tables of an `.idx` file.
struct Tables {
    header: Header,
    /// The tokens of each sequence, as 4 bytes.
    lengths: Bytes,
    /// The offset of each sequence in the `.bin`, as 8 bytes.
    pointers: Bytes,
    pointers_at: u64,
    /// The sequence at which each document begins, as 8 bytes.
    documents: Bytes,
    documents_at: u64,
    /// The bytes after the tables.
    modes: u64,
}

impl Tables {
    /// Reads the tables, and checks that all sequences are in ascending order and in the `.bin`.
    async fn read(idx: &dyn FileSource, bin_size: u64) -> Result<Self, FormatError> {
        let header = header(idx).await?;
        let cut = || FormatError::cut_short(HEADER, idx.size());
        let pointers_at = header.sequences.checked_mul(4).and_then(|length| HEADER.checked_add(length));
        let pointers_at = pointers_at.ok_or_else(cut)?;
        let documents_at = header.sequences.checked_mul(8).and_then(|length| pointers_at.checked_add(length));
        let documents_at = documents_at.ok_or_else(cut)?;
        let end = header.entries.checked_mul(8).and_then(|length| documents_at.checked_add(length));
        let end = end.filter(|&end| end <= idx.size()).ok_or_else(cut)?;
        let modes = idx.size() - end;
        if modes != 0 && modes != header.sequences {
            let why = format!("{modes} bytes after the tables: expected none, or one for each sequence");
            return Err(FormatError::damaged(end, why));
        }
        let mut lengths = read(idx, HEADER, end).await?;
        let mut pointers = lengths.split_off((pointers_at - HEADER) as usize);
        let documents = pointers.split_off((documents_at - pointers_at) as usize);
        check_sequences(&header, (&lengths, &pointers), pointers_at, bin_size)?;
        Ok(Self { header, lengths, pointers, pointers_at, documents, documents_at, modes })
    }

    /// The offset of a sequence in the `.bin`, and its tokens.
    fn sequence(&self, number: u64) -> Option<(u64, u64)> {
        let begin = le::u64(&self.pointers, number as usize * 8)?;
        Some((begin, u64::from(le::u32(&self.lengths, number as usize * 4)?)))
    }
}

/// Checks that the sequences are in ascending order and in the `.bin`.
fn check_sequences(
    header: &Header,
    (lengths, pointers): (&[u8], &[u8]),
    pointers_at: u64,
    bin_size: u64,
) -> Result<(), FormatError> {
    let mut free = 0;
    for (sequence, (length, pointer)) in lengths.chunks_exact(4).zip(pointers.chunks_exact(8)).enumerate() {
        let at = pointers_at + sequence as u64 * 8;
        let length = le::u32(length, 0).unwrap_or_default();
        if length > i32::MAX.cast_unsigned() {
            let why = format!("the length of sequence {sequence} is negative");
            return Err(FormatError::damaged(HEADER + sequence as u64 * 4, why));
        }
        let begin = le::u64(pointer, 0).unwrap_or_default();
        let end = begin.checked_add(u64::from(length) * header.element.size());
        let end = end.filter(|&end| end <= bin_size).ok_or_else(|| {
            let why = format!("sequence {sequence} does not fit in a .bin of {bin_size} bytes");
            FormatError::damaged(at, why)
        })?;
        if begin < free {
            let why = format!("sequence {sequence} begins before the end of the one before it");
            return Err(FormatError::damaged(at, why));
        }
        free = end;
    }
    Ok(())
}

async fn header(idx: &dyn FileSource) -> Result<Header, FormatError> {
    let short = || FormatError::cut_short(0, idx.size());
    if idx.size() < HEADER {
        return Err(short());
    }
    let bytes = idx.read(0..HEADER).await?;
    if !bytes.starts_with(MAGIC) {
        let why = "not an index of Megatron: it does not begin with MMIDIDX";
        return Err(FormatError::damaged(0, why));
    }
    let version = le::u64(&bytes, 9).ok_or_else(short)?;
    if version != 1 {
        let why = format!("version {version} of Megatron's index: expected 1");
        return Err(FormatError::unsupported(9, why));
    }
    let code = *bytes.get(17).ok_or_else(short)?;
    let name = usize::from(code).checked_sub(1).and_then(|index| TYPES.get(index)).ok_or_else(|| {
        FormatError::unsupported(17, format!("element type {code} of Megatron's index: expected 1 to 8"))
    })?;
    Ok(Header {
        element: ElementType::parse(name, 17)?,
        sequences: le::u64(&bytes, 18).ok_or_else(short)?,
        entries: le::u64(&bytes, 26).ok_or_else(short)?,
    })
}

/// Reads the bytes from `start` to `end`, which lie in the file, in large requests that run at
/// once.
async fn read(idx: &dyn FileSource, start: u64, end: u64) -> Result<Bytes, FormatError> {
    let starts: Vec<u64> = (start..end).step_by(REQUEST as usize).collect();
    let mut parts =
        futures::stream::iter(starts).map(|from| idx.read(from..end.min(from + REQUEST))).buffered(AT_ONCE);
    let mut whole = BytesMut::with_capacity((end - start) as usize);
    while let Some(part) = parts.next().await {
        whole.extend_from_slice(&part?);
    }
    Ok(whole.freeze())
}
