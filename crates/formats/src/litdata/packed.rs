//! Compressed chunks of LitData: frames of Zstandard that have one item, up to 256, or the chunk.
//!
//! Decision: [`Unpacked`] is the file that the decoded items would be, one after another. So the
//! code for plain chunks finds their leaves and labels, and [`Unpacked::made`] turns them into
//! slices of frames. Frames are read and decoded only where sizes or labels stand in them. The
//! price is that labels in compressed items cost the whole file.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use foreread_types::{Decoder, Recipe};
use futures::future::BoxFuture;
use futures::lock::Mutex;

use super::LitChunk;
use crate::decode::{self, MOST_HEAD, content_size};
use crate::found::MOST_DECODED;
use crate::{
    BlockReader, Extents, FileSource, FormatError, FoundSamples, MadeRow, MadeRows, ReadError, le, parts,
};

/// The beginning of a chunk with frames of several items.
const FRAMED: &[u8; 8] = b"LDFZ01\0\0";

/// The bytes before the table of offsets of such a chunk.
const PREFIX: u64 = 24;

/// The bytes of a frame in its table.
const FRAME: u64 = 24;

/// The most decoded bytes of a chunk that is one frame.
const MOST_CHUNK: u64 = 64 << 20;

/// The most bytes of a request that joins small reads.
const REQUEST: u64 = 1 << 20;

/// Frames whose heads are in memory at once.
const GROUP: usize = 4096;

/// The unit that is compressed on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LitCompression {
    /// Each sample.
    Sample,
    /// Several samples, 256 by default.
    Batch,
    /// The chunk.
    Chunk,
}

impl LitCompression {
    /// The compression of an index: its name, such as `zstd:4`, and its level.
    pub(super) fn parse(name: &str, level: Option<&str>) -> Result<Self, FormatError> {
        let found = match (name.split(':').next(), level) {
            (Some("zstd"), Some("sample")) => Some(Self::Sample),
            (Some("zstd"), Some("batch")) => Some(Self::Batch),
            (Some("zstd"), None | Some("" | "chunk")) => Some(Self::Chunk),
            _ => None,
        };
        found.ok_or_else(|| {
            let (name, level) = (parts::shown(name), parts::shown(level.unwrap_or("chunk")));
            let why = format!(
                "the chunks are compressed ({name}, {level}): write them again with compression='zstd'"
            );
            FormatError::unsupported(0, why)
        })
    }
}

/// A frame: its place in the file, and that of its bytes among all decoded ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    at: u64,
    stored: u64,
    start: u64,
    length: u64,
}

/// The decoded bytes of a chunk as a file.
pub(super) struct Unpacked<'a> {
    source: &'a dyn FileSource,
    frames: Vec<Frame>,
    size: u64,
    /// The last frame and its bytes, if frames have several items. Then they are read one by one.
    last: Option<Mutex<(usize, Bytes)>>,
}

impl<'a> Unpacked<'a> {
    /// The decoded bytes of a chunk, and the samples in them if the file has their places.
    pub(super) async fn open(
        source: &'a dyn FileSource,
        compression: LitCompression,
        chunk: &LitChunk,
    ) -> Result<(Self, Option<Vec<(u64, u64)>>), FormatError> {
        let reader = parts::reader(source);
        match compression {
            LitCompression::Sample => {
                let (stored, end) = super::table(&reader, chunk).await?;
                if end < source.size() {
                    let why = "an Arrow table follows the compressed samples: write them again as tuples";
                    return Err(FormatError::unsupported(end, why));
                }
                let unpacked = Self::new(source, Self::heads(&reader, &stored).await?, false)?;
                let rows = unpacked.frames.iter().map(|frame| (frame.start, frame.length)).collect();
                Ok((unpacked, Some(rows)))
            }
            LitCompression::Batch => {
                let (frames, rows) = framed(&reader, chunk).await?;
                Ok((Self::new(source, frames, true)?, Some(rows)))
            }
            LitCompression::Chunk => {
                let frames = Self::heads(&reader, &[(0, source.size())]).await?;
                let unpacked = Self::new(source, frames, true)?;
                if unpacked.size != chunk.bytes {
                    let why =
                        format!("the chunk has {} bytes, its index says {}", unpacked.size, chunk.bytes);
                    return Err(FormatError::damaged(0, why));
                }
                if unpacked.size > MOST_CHUNK {
                    let why = format!(
                        "the chunk is compressed as one frame of {} bytes: write it again with \
                         compression_level='sample'",
                        unpacked.size
                    );
                    return Err(FormatError::unsupported(0, why));
                }
                Ok((unpacked, None))
            }
        }
    }

    /// Frames at these places, whose heads say how long they are.
    async fn heads(
        reader: &BlockReader<'_>,
        places: &[(u64, u64)],
    ) -> Result<Vec<(u64, u64, u64)>, FormatError> {
        let mut frames = Vec::with_capacity(places.len());
        for group in places.chunks(GROUP) {
            let heads: Vec<_> = group.iter().map(|&(at, stored)| (at, stored.min(MOST_HEAD))).collect();
            for (head, &(at, stored)) in reader.read_all(&heads, REQUEST).await?.iter().zip(group) {
                let length = content_size(head).ok_or_else(|| {
                    FormatError::damaged(at, "here is no frame of Zstandard that has its length")
                })?;
                frames.push((at, stored, length));
            }
        }
        Ok(frames)
    }

    /// Frames, each its offset, its stored length, and its decoded length.
    fn new(
        source: &'a dyn FileSource,
        places: Vec<(u64, u64, u64)>,
        is_shared: bool,
    ) -> Result<Self, FormatError> {
        let mut size = 0_u64;
        let mut frames = Vec::with_capacity(places.len());
        for (at, stored, length) in places {
            if length > MOST_DECODED {
                let why = format!("a frame has {length} bytes: write the samples again in smaller frames");
                return Err(FormatError::unsupported(at, why));
            }
            let damaged = || FormatError::damaged(at, format!("{stored} bytes cannot become {length} bytes"));
            let recipe = Recipe::new([Decoder::Zstd], length).map_err(|_| damaged())?;
            recipe.lengths(stored).ok_or_else(damaged)?;
            frames.push(Frame { at, stored, start: size, length });
            size = size.checked_add(length).ok_or_else(damaged)?;
        }
        let last = is_shared.then(|| Mutex::new((usize::MAX, Bytes::new())));
        Ok(Self { source, frames, size, last })
    }

    /// The same samples in the file: slices of its frames.
    ///
    /// # Errors
    /// [`Damaged`](crate::FormatErrorKind::Damaged) if a sample is in two frames.
    pub(super) fn made(&self, mut found: FoundSamples) -> Result<FoundSamples, FormatError> {
        let Extents::Rows(rows) = &mut found.extents else {
            return Err(FormatError::damaged(0, "the samples have no places"));
        };
        let mut made = MadeRows::default();
        let recipe = Some(made.recipe(&[Decoder::Zstd]));
        for (start, length) in rows {
            let number = self.frame(*start).ok_or_else(|| FormatError::cut_short(*start, self.size))?;
            let Frame { at, stored, start: first, length: decoded } = self.frames[number];
            let slice = *start - first;
            if *length > decoded - slice {
                return Err(FormatError::damaged(at, "a sample lies in two frames"));
            }
            *start = at;
            made.rows.push(match *length {
                0 => MadeRow::plain(0),
                _ => MadeRow { stored, decoded, slice, recipe },
            });
        }
        let stored = self.frames.iter().map(|frame| frame.stored).sum::<u64>();
        found.summary.push_str(&format!(", compressed to {stored} bytes in {} frames", self.frames.len()));
        found.made = Some(made);
        Ok(found)
    }

    /// The number of the frame with this decoded byte, or of the last one for the end.
    fn frame(&self, at: u64) -> Option<usize> {
        self.frames.partition_point(|frame| frame.start <= at).checked_sub(1)
    }

    /// Reads and decodes the frames of a range. They are read in one request if they are one piece.
    async fn decoded(&self, range: Range<u64>) -> Result<Bytes, FormatError> {
        let first = self.frame(range.start).unwrap_or(0);
        let count = self.frames[first..].partition_point(|frame| frame.start < range.end);
        let mut frames = &self.frames[first..first + count];
        let start = frames.first().map_or(0, |frame| frame.start);
        let mut decoded = BytesMut::new();
        while let Some(frame) = frames.first() {
            let joins = frames.windows(2).take_while(|pair| pair[0].at + pair[0].stored == pair[1].at);
            let (piece, rest) = frames.split_at(1 + joins.count());
            frames = rest;
            let end = piece.last().map_or(frame.at, |last| last.at + last.stored);
            let stored = self.source.read(frame.at..end).await?;
            for one in piece {
                let from = (one.at - frame.at) as usize;
                let bytes = self.decode(one, &stored[from..from + one.stored as usize])?;
                if count == 1 {
                    return Ok(bytes.slice((range.start - start) as usize..(range.end - start) as usize));
                }
                decoded.extend_from_slice(&bytes);
            }
        }
        Ok(decoded.freeze().slice((range.start - start) as usize..(range.end - start) as usize))
    }

    fn decode(&self, frame: &Frame, stored: &[u8]) -> Result<Bytes, FormatError> {
        let damaged = |why: &dyn std::fmt::Display| {
            FormatError::damaged(frame.at, format!("a frame of samples is damaged: {why}"))
        };
        if frame.length > decode::limit(self.source.size()) {
            let why = format!(
                "labels and sizes of leaves are in frames of {} bytes: write the samples again in smaller \
                 frames",
                frame.length
            );
            return Err(FormatError::unsupported(frame.at, why));
        }
        let recipe = Recipe::new([Decoder::Zstd], frame.length).map_err(|why| damaged(&why))?;
        let bytes = decode::decode(&recipe, stored).map_err(|error| damaged(&error))?;
        Ok(bytes.into_owned().into())
    }

    /// Reads a range of frames that many samples share, frame by frame.
    async fn of_shared(&self, range: Range<u64>, last: &Mutex<(usize, Bytes)>) -> Result<Bytes, FormatError> {
        let mut last = last.lock().await;
        let mut bytes = BytesMut::new();
        let mut at = range.start;
        while at < range.end {
            let number = self.frame(at).ok_or_else(|| FormatError::cut_short(at, self.size))?;
            let frame = self.frames[number];
            let end = range.end.min(frame.start + frame.length);
            if last.0 != number {
                // Only one frame is in memory.
                *last = (usize::MAX, Bytes::new());
                *last = (number, self.decoded(frame.start..frame.start + frame.length).await?);
            }
            let part = last.1.slice((at - frame.start) as usize..(end - frame.start) as usize);
            if at == range.start && end == range.end {
                return Ok(part);
            }
            bytes.extend_from_slice(&part);
            at = end;
        }
        Ok(bytes.freeze())
    }
}

impl FileSource for Unpacked<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ReadError>> {
        Box::pin(async move {
            let read = match &self.last {
                Some(last) => self.of_shared(range, last).await,
                None => self.decoded(range).await,
            };
            read.map_err(ReadError::from)
        })
    }
}

/// The frames of a chunk with frames of several samples, and the samples among the decoded bytes.
async fn framed(
    reader: &BlockReader<'_>,
    chunk: &LitChunk,
) -> Result<(Vec<(u64, u64, u64)>, Vec<(u64, u64)>), FormatError> {
    super::check_size(reader, chunk)?;
    let size = reader.size();
    let damaged = |at: u64, why: &str| FormatError::damaged(at, format!("the table of frames {why}"));
    let head = reader.read(0, PREFIX.min(size)).await?;
    let field = |at: usize| le::u32(&head, at).map(u64::from).ok_or_else(|| FormatError::cut_short(0, size));
    if !head.starts_with(FRAMED) {
        return Err(FormatError::damaged(0, "the chunk does not begin with LDFZ01"));
    }
    let (version, samples, count) = (field(8)?, field(12)?, field(20)?);
    if version != 1 {
        let why = format!("frames of version {version}: expected 1. Write the samples again");
        return Err(FormatError::unsupported(8, why));
    }
    if samples != chunk.samples {
        let why = format!("the file has {samples} samples, its index {}", chunk.samples);
        return Err(FormatError::damaged(12, format!("{why}: they do not belong together")));
    }
    let table_at = PREFIX + 4 * (samples + 1);
    let end = table_at + FRAME * count;
    // Each sample and each frame takes bytes here, which bounds the memory.
    let tables = reader.read(PREFIX, end - PREFIX).await?;
    let (offsets, table) = tables.split_at((table_at - PREFIX) as usize);
    let offset = |index: u64| le::u32(offsets, 4 * index as usize).map_or(0, u64::from);
    if (0..samples).any(|index| offset(index) > offset(index + 1)) || offset(0) != 0 {
        return Err(damaged(PREFIX, "has samples that do not follow each other"));
    }
    let rows = (0..samples).map(|index| (offset(index), offset(index + 1) - offset(index))).collect();
    let (mut frames, mut next) = (Vec::with_capacity(count as usize), 0);
    for (number, frame) in table.chunks_exact(FRAME as usize).enumerate() {
        let at = table_at + FRAME * number as u64;
        let cut = || FormatError::cut_short(at, size);
        let number = |at| le::u32(frame, at).map(u64::from).ok_or_else(cut);
        let (first, of_frame) = (number(0)?, number(4)?);
        let (stored_at, stored, length) = (le::u64(frame, 8).ok_or_else(cut)?, number(16)?, number(20)?);
        let after = first + of_frame;
        if first != next || of_frame == 0 || after > samples || length != offset(after) - offset(first) {
            return Err(damaged(at, "does not have each sample once"));
        }
        if stored_at < end || stored_at.checked_add(stored).is_none_or(|end| end > size) {
            return Err(damaged(at, "has a frame outside of the file"));
        }
        next = after;
        frames.push((stored_at, stored, length));
    }
    if next != samples {
        return Err(damaged(table_at, "does not have each sample once"));
    }
    Ok((frames, rows))
}
