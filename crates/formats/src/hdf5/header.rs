//! Object headers: the messages of a group, a dataset or a named type.
//!
//! Headers of many objects are read together, and so are their continuation blocks.

use bytes::Bytes;

use super::cursor::Cursor;
use super::file::File;
use crate::FormatError;

/// The part of each header that is read first, in bytes. Most headers fit.
const GUESS: u64 = 512;

/// The most blocks of one header.
const MOST_BLOCKS: usize = 64;

/// The types of messages that matter here.
pub(super) mod kind {
    pub(in super::super) const DATASPACE: u16 = 1;
    pub(in super::super) const LINK_INFO: u16 = 2;
    pub(in super::super) const DATATYPE: u16 = 3;
    pub(in super::super) const LINK: u16 = 6;
    pub(in super::super) const EXTERNAL_FILES: u16 = 7;
    pub(in super::super) const LAYOUT: u16 = 8;
    pub(in super::super) const FILTERS: u16 = 0xB;
    pub(super) const CONTINUATION: u16 = 0x10;
    pub(in super::super) const SYMBOL_TABLE: u16 = 0x11;
}

/// A message of a header.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) kind: u16,
    flags: u8,
    /// The place of `data` in the file.
    pub(super) at: u64,
    pub(super) data: Bytes,
}

/// The header of an object.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) at: u64,
    messages: Vec<Message>,
}

impl Header {
    /// The messages of a kind.
    pub(super) fn all(&self, kind: u16) -> impl Iterator<Item = &Message> {
        self.messages.iter().filter(move |message| message.kind == kind)
    }

    /// The first message of a kind.
    pub(super) fn find(&self, kind: u16) -> Option<&Message> {
        self.all(kind).next()
    }
}

/// Blocks of a header, and how their messages begin.
struct Reading {
    header: Header,
    /// The version 2's message heads have a creation order.
    order: bool,
    version: u8,
    /// The blocks that are not read yet.
    pending: Vec<(u64, u64)>,
    blocks: usize,
}

/// Reads the headers at `places`.
pub(super) async fn read(file: &File<'_>, places: &[u64]) -> Result<Vec<Header>, FormatError> {
    let length = |at, bytes: &[u8]| prefix(&mut file.cursor("object header", at, bytes)).map(|p| p.end);
    let found = file.read_sized(places, GUESS, length).await?;
    let mut readings = Vec::with_capacity(places.len());
    for (&at, bytes) in places.iter().zip(&found) {
        let prefix = prefix(&mut file.cursor("object header", at, bytes))?;
        let header = Header { at, messages: Vec::new() };
        let Prefix { version, order, start, messages, .. } = prefix;
        let mut reading = Reading { header, order, version, pending: Vec::new(), blocks: 1 };
        let end = start + messages;
        if version == 2 {
            checksum(file, at, &bytes[..end as usize + 4])?;
        }
        reading.add(file, at + start, &bytes.slice(start as usize..end as usize))?;
        readings.push(reading);
    }
    loop {
        let wanted: Vec<(usize, u64, u64)> = readings
            .iter_mut()
            .enumerate()
            .flat_map(|(index, r)| {
                std::mem::take(&mut r.pending).into_iter().map(move |(a, l)| (index, a, l))
            })
            .collect();
        if wanted.is_empty() {
            return Ok(readings.into_iter().map(|reading| reading.header).collect());
        }
        let ranges: Vec<_> = wanted.iter().map(|&(_, at, length)| (at, length)).collect();
        for (bytes, (index, at, _)) in file.read_all(&ranges).await?.into_iter().zip(wanted) {
            readings[index].continued(file, at, &bytes)?;
        }
    }
}

/// Checks a block that its checksum ends.
fn checksum(file: &File<'_>, at: u64, bytes: &[u8]) -> Result<(), FormatError> {
    file.cursor("object header", at, bytes).checksum_at_end()
}

/// Reads one header.
pub(super) async fn read_one(file: &File<'_>, at: u64) -> Result<Header, FormatError> {
    let mut headers = read(file, &[at]).await?;
    headers.pop().ok_or_else(|| FormatError::damaged(at, "the HDF5 object header is missing"))
}

/// The beginning of a header.
struct Prefix {
    version: u8,
    order: bool,
    /// Where the messages begin, in bytes from the header.
    start: u64,
    /// The length of the messages of the first block.
    messages: u64,
    /// Where the first block ends.
    end: u64,
}

fn prefix(cursor: &mut Cursor<'_>) -> Result<Prefix, FormatError> {
    if !cursor.bytes.starts_with(b"OHDR") {
        cursor.version(1)?;
        cursor.skip(7)?;
        let messages = u64::from(cursor.u32()?);
        return Ok(Prefix { version: 1, order: false, start: 16, messages, end: 16 + messages });
    }
    cursor.signature(b"OHDR")?;
    cursor.version(2)?;
    let flags = cursor.u8()?;
    cursor.skip(if flags & 0x20 != 0 { 16 } else { 0 })?;
    cursor.skip(if flags & 0x10 != 0 { 4 } else { 0 })?;
    let messages = cursor.uint(1 << (flags & 3))?;
    let start = cursor.next as u64;
    // The checksum ends the block.
    let end = messages.checked_add(start + 4).ok_or_else(|| cursor.damaged("it is too long"))?;
    Ok(Prefix { version: 2, order: flags & 4 != 0, start, messages, end })
}

impl Reading {
    /// Adds the messages of a continuation block.
    fn continued(&mut self, file: &File<'_>, at: u64, bytes: &Bytes) -> Result<(), FormatError> {
        if self.version == 1 {
            return self.add(file, at, bytes);
        }
        let mut cursor = file.cursor("object header", at, bytes);
        cursor.signature(b"OCHK")?;
        checksum(file, at, bytes)?;
        self.add(file, at + 4, &bytes.slice(4..bytes.len() - 4))
    }

    /// Adds the messages in `bytes`.
    fn add(&mut self, file: &File<'_>, at: u64, bytes: &Bytes) -> Result<(), FormatError> {
        let mut cursor = file.cursor("object header", at, bytes);
        let head = if self.version == 1 { 8 } else { 4 + 2 * usize::from(self.order) };
        // A gap that is too short for a message may end the block.
        while cursor.left() >= head {
            let (kind, size, flags);
            if self.version == 1 {
                (kind, size, flags) = (cursor.u16()?, cursor.u16()?, cursor.u8()?);
                cursor.skip(3)?;
            } else {
                (kind, size, flags) = (u16::from(cursor.u8()?), cursor.u16()?, cursor.u8()?);
                cursor.skip(head - 4)?;
            }
            let (from, at) = (cursor.next, cursor.place());
            let data = cursor.take(size.into())?;
            if kind == kind::CONTINUATION {
                let mut cursor = file.cursor("object header", at, data);
                self.pending.push((cursor.place_of("its continuation")?, cursor.length()?));
                self.blocks += 1;
                if self.blocks > MOST_BLOCKS {
                    return Err(cursor.damaged("it has more than 64 blocks"));
                }
            } else if kind != 0 {
                let data = bytes.slice(from..from + usize::from(size));
                self.header.messages.push(Message { kind, flags, at, data });
            }
        }
        Ok(())
    }
}

/// A message, or the message that it shares.
pub(super) async fn resolve(file: &File<'_>, message: &Message) -> Result<Message, FormatError> {
    if message.flags & 2 == 0 {
        return Ok(message.clone());
    }
    let mut cursor = file.cursor("shared message", message.at, &message.data);
    let version = cursor.u8()?;
    let place = cursor.u8()?;
    if version == 3 && place == 1 {
        let why = "it lies in a table of shared messages: write the file again without it, by `h5repack`";
        return Err(cursor.unsupported(why));
    }
    cursor.skip(if version == 1 { 6 } else { 0 })?;
    let header = read_one(file, cursor.place_of("the named type")?).await?;
    match header.find(message.kind) {
        Some(found) if found.flags & 2 == 0 => Ok(found.clone()),
        _ => Err(cursor.damaged("the object that it refers to does not have it")),
    }
}
