//! The messages of an Arrow stream, and the messages that the footer of an Arrow file lists.

use arrow_ipc::{Message, MessageHeader, root_as_footer, root_as_message};
use bytes::Bytes;

use super::batch::BatchBuffers;
use super::schema::{self, Chosen};
use super::{ArrowOptions, FILE_MAGIC, STREAM_MARK};
use crate::{BlockReader, FormatError, le};

/// The bytes before each message: the mark and the length.
const PREFIX: u64 = 8;

/// The most bytes in one request for the messages of a file.
const REQUEST: u64 = 8 << 20;

/// Messages that are read at once.
const AT_ONCE: usize = 256;

/// The chosen columns, and their buffers in all batches.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) chosen: Chosen,
    pub(super) batches: Vec<BatchBuffers>,
}

/// A checked message.
fn parse(bytes: &[u8], at: u64) -> Result<Message<'_>, FormatError> {
    root_as_message(bytes)
        .map_err(|error| FormatError::damaged(at, format!("a message is damaged: {}", cause(&error))))
}

/// The fault in a flatbuffer, without the path to its place, which has one line per level.
fn cause(error: &impl std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// The length in a message's prefix. `None` at the end of a stream.
fn length(prefix: &[u8], at: u64) -> Result<Option<u64>, FormatError> {
    let length = le::u32(prefix, 4).filter(|_| prefix.starts_with(&STREAM_MARK));
    let length = length.ok_or_else(|| FormatError::damaged(at, "no Arrow message begins here"))?;
    let length = i32::try_from(length).map_err(|_| FormatError::damaged(at, "a length is negative"))?;
    Ok((length > 0).then_some(length as u64))
}

/// The batch in a message whose body begins at `body`. `None` for a message of another kind.
fn batch(
    message: &Message<'_>,
    at: u64,
    body: u64,
    size: u64,
    chosen: &Chosen,
) -> Result<Option<BatchBuffers>, FormatError> {
    let Some(record) = message.header_as_record_batch() else { return Ok(None) };
    let length = u64::try_from(message.bodyLength()).ok().filter(|length| *length <= size - body);
    let length = length.ok_or_else(|| FormatError::cut_short(at, size))?;
    BatchBuffers::new(&record, at, body..body + length, chosen).map(Some)
}

/// Walks over the messages of a stream. Each says where the next one begins.
pub(super) async fn of_stream(
    reader: &BlockReader<'_>,
    options: &ArrowOptions,
) -> Result<Table, FormatError> {
    let size = reader.size();
    let (mut at, mut chosen, mut batches) = (0, None, Vec::new());
    while at < size {
        let prefix = reader.read(at, PREFIX).await?;
        let Some(length) = length(&prefix, at)? else { break };
        let bytes = reader.read(at + PREFIX, length).await?;
        let message = parse(&bytes, at)?;
        let body = at + PREFIX + length;
        match (message.header_as_schema(), &chosen) {
            (Some(schema), None) => {
                chosen = Some(schema::choose(&schema, message.version(), at, options)?);
            }
            (Some(_), Some(_)) => return Err(FormatError::damaged(at, "a second schema is in the stream")),
            (None, None) => return Err(FormatError::damaged(at, "the stream begins without a schema")),
            (None, Some(chosen)) => batches.extend(batch(&message, at, body, size, chosen)?),
        }
        let next = u64::try_from(message.bodyLength()).ok().and_then(|length| body.checked_add(length));
        at = next.filter(|&next| next <= size).ok_or_else(|| FormatError::cut_short(at, size))?;
    }
    let chosen = chosen.ok_or_else(|| FormatError::damaged(0, "the stream has no schema"))?;
    Ok(Table { chosen, batches })
}

/// A record batch in the footer.
#[derive(Clone, Copy, Debug)]
struct BlockPlace {
    at: u64,
    message: u64,
    body: u64,
}

/// Reads the messages that the footer of a file lists.
pub(super) async fn of_file(reader: &BlockReader<'_>, options: &ArrowOptions) -> Result<Table, FormatError> {
    let size = reader.size();
    let tail_length = 4 + FILE_MAGIC.len() as u64;
    let tail_at = size.saturating_sub(tail_length);
    let tail = reader.read(tail_at, tail_length).await?;
    let length = le::u32(&tail, 0).filter(|_| tail.ends_with(FILE_MAGIC)).ok_or_else(|| {
        FormatError::damaged(tail_at, "the end of the Arrow file is missing: the file was cut short")
    })?;
    let footer_at = tail_at.checked_sub(length.into()).filter(|&at| at >= PREFIX);
    let footer_at = footer_at.ok_or_else(|| FormatError::damaged(tail_at, "the footer does not fit"))?;
    let bytes = reader.read(footer_at, length.into()).await?;
    let damaged = |why: String| FormatError::damaged(footer_at, why);
    let (chosen, places) = {
        let footer = root_as_footer(&bytes)
            .map_err(|error| damaged(format!("the footer is damaged: {}", cause(&error))))?;
        let schema = footer.schema().ok_or_else(|| damaged("the footer has no schema".to_owned()))?;
        let chosen = schema::choose(&schema, footer.version(), footer_at, options)?;
        let blocks = footer.recordBatches().into_iter().flatten();
        let places = blocks.map(|block| {
            Some(BlockPlace {
                at: u64::try_from(block.offset()).ok()?,
                message: u64::try_from(block.metaDataLength()).ok().filter(|&length| length > PREFIX)?,
                body: u64::try_from(block.bodyLength()).ok()?,
            })
        });
        (chosen, places.collect::<Option<Vec<_>>>())
    };
    let places = places.filter(|places| are_disjoint(places, footer_at));
    let places =
        places.ok_or_else(|| damaged("the batches in the footer overlap or do not fit".to_owned()))?;
    let mut batches = Vec::new();
    for places in places.chunks(AT_ONCE) {
        let ranges: Vec<_> = places.iter().map(|place| (place.at, place.message)).collect();
        for (place, bytes) in places.iter().zip(reader.read_all(&ranges, REQUEST).await?) {
            batches.push(listed_batch(*place, &bytes, &chosen)?);
        }
    }
    Ok(Table { chosen, batches })
}

/// Whether each batch ends before the next one and before `end`. Otherwise a small file could have
/// any number of samples.
fn are_disjoint(places: &[BlockPlace], end: u64) -> bool {
    let mut sorted = places.to_vec();
    sorted.sort_unstable_by_key(|place| place.at);
    let mut free = 0;
    sorted.iter().all(|place| {
        let fits = place.at >= free;
        let next = place.at.checked_add(place.message).and_then(|at| at.checked_add(place.body));
        free = next.unwrap_or(u64::MAX);
        fits && free <= end
    })
}

/// The batch at a place in the footer.
fn listed_batch(place: BlockPlace, bytes: &Bytes, chosen: &Chosen) -> Result<BatchBuffers, FormatError> {
    let length = length(bytes, place.at)?;
    let end = length.and_then(|length| usize::try_from(PREFIX + length).ok());
    let message = end.and_then(|end| bytes.get(PREFIX as usize..end));
    let message =
        message.ok_or_else(|| FormatError::damaged(place.at, "a message is longer than in the footer"))?;
    let message = parse(message, place.at)?;
    if message.header_type() != MessageHeader::RecordBatch {
        return Err(FormatError::damaged(place.at, "the footer refers to another message than a batch"));
    }
    let body = place.at + place.message;
    let batch = batch(&message, place.at, body, body + place.body, chosen)?;
    batch.ok_or_else(|| FormatError::damaged(place.at, "a message has no batch"))
}
