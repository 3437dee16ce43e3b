//! The buffers of the chosen columns in one record batch.

use std::ops::Range;

use arrow_ipc::{CompressionType, RecordBatch};

use super::schema::{Chosen, Column, Slot, Storage};
use crate::FormatError;

/// The bytes of a view.
pub(super) const VIEW: u64 = 16;

/// The range of a buffer in the file: its beginning and its length.
pub(super) type BufferRange = (u64, u64);

/// One column in one batch.
#[derive(Debug)]
pub(super) struct Part {
    /// Validity bits of the column and of the structs around it. Rows have a value if all are 1.
    pub(super) validity: Vec<BufferRange>,
    /// Offsets of values or views, if the lengths differ.
    pub(super) offsets: Option<BufferRange>,
    /// The values. Several buffers for views, and one for all else.
    pub(super) values: Vec<BufferRange>,
}

/// One record batch.
#[derive(Debug)]
pub(super) struct BatchBuffers {
    /// The offset of its message in the file.
    pub(super) at: u64,
    pub(super) rows: u64,
    pub(super) samples: Part,
    pub(super) label: Option<Part>,
    pub(super) columns: Vec<Part>,
}

impl BatchBuffers {
    /// The buffers of a batch whose body lies at `body`.
    pub(super) fn new(
        record: &RecordBatch<'_>,
        at: u64,
        body: Range<u64>,
        chosen: &Chosen,
    ) -> Result<Self, FormatError> {
        if let Some(compression) = record.compression() {
            let codec = if compression.codec() == CompressionType::ZSTD { "ZSTD" } else { "LZ4" };
            let why = format!(
                "the batches are compressed with {codec}, so samples cannot be read one by one: write the \
                 file again with pyarrow.ipc.IpcWriteOptions(compression=None)"
            );
            return Err(FormatError::unsupported(at, why));
        }
        let damaged = |why: &str| FormatError::damaged(at, why);
        let rows = u64::try_from(record.length()).map_err(|_| damaged("a number of rows is negative"))?;
        let buffers = Buffers { record, rows, body };
        let part = |column: &Column| {
            let part = buffers.part(column);
            part.ok_or_else(|| damaged("the buffers of a batch are missing or do not fit in it"))
        };
        let samples = part(&chosen.samples)?;
        let label = chosen.label.as_ref().map(part).transpose()?;
        let columns = chosen.columns.iter().map(part).collect::<Result<_, _>>()?;
        Ok(Self { at, rows, samples, label, columns })
    }
}

struct Buffers<'a> {
    record: &'a RecordBatch<'a>,
    rows: u64,
    body: Range<u64>,
}

impl Buffers<'_> {
    /// The buffers of a column. `None` if they are not in the batch, or too small for its rows.
    fn part(&self, column: &Column) -> Option<Part> {
        let slots = column.parents.iter().chain([&column.slot]);
        let mut validity = Vec::new();
        for slot in slots {
            validity.extend(self.validity(slot)?);
        }
        let first = self.first(&column.slot)?;
        let (offsets, values) = match column.storage {
            Storage::Offsets { width, .. } => {
                let count = if self.rows == 0 { 0 } else { self.rows.checked_add(1)? };
                let offsets = self.buffer(first.checked_add(1)?, count.checked_mul(width)?)?;
                (Some(offsets), vec![self.whole(first.checked_add(2)?)?])
            }
            Storage::Views { .. } => {
                let views = self.buffer(first.checked_add(1)?, self.rows.checked_mul(VIEW)?)?;
                let buffers = first.checked_add(2)?;
                let end = buffers.checked_add(self.variadic(column.slot.views)?)?;
                (Some(views), (buffers..end).map(|index| self.whole(index)).collect::<Option<_>>()?)
            }
            Storage::Fixed { width } => (None, vec![self.values(first, width)?]),
            Storage::Integer { width, .. } | Storage::Float { width } => {
                (None, vec![self.values(first, width as u64)?])
            }
            Storage::Bit => (None, vec![self.buffer(first.checked_add(1)?, self.rows.div_ceil(8))?]),
            Storage::Dictionary | Storage::Other => return None,
        };
        Some(Part { validity, offsets, values })
    }

    fn values(&self, first: usize, width: u64) -> Option<BufferRange> {
        self.buffer(first.checked_add(1)?, self.rows.checked_mul(width)?)
    }

    /// The validity bits of a field if it has nulls.
    fn validity(&self, slot: &Slot) -> Option<Option<BufferRange>> {
        let nodes = self.record.nodes()?;
        let node = (slot.node < nodes.len()).then(|| nodes.get(slot.node))?;
        if u64::try_from(node.length()).ok()? != self.rows {
            return None;
        }
        if node.null_count() == 0 {
            return Some(None);
        }
        self.buffer(self.first(slot)?, self.rows.div_ceil(8)).map(Some)
    }

    /// The index of a field's first buffer.
    fn first(&self, slot: &Slot) -> Option<usize> {
        let mut first = slot.buffer;
        for view in 0..slot.views {
            first = first.checked_add(self.variadic(view)?)?;
        }
        Some(first)
    }

    /// The number of buffers with values of a field of views.
    fn variadic(&self, view: usize) -> Option<usize> {
        let counts = self.record.variadicBufferCounts()?;
        let count = (view < counts.len()).then(|| counts.get(view))?;
        usize::try_from(count).ok()
    }

    /// The first `length` bytes of a buffer.
    fn buffer(&self, index: usize, length: u64) -> Option<BufferRange> {
        let (start, whole) = self.whole(index)?;
        (length <= whole).then_some((start, length))
    }

    /// All bytes of a buffer.
    fn whole(&self, index: usize) -> Option<BufferRange> {
        let buffers = self.record.buffers()?;
        let buffer = (index < buffers.len()).then(|| buffers.get(index))?;
        let length = u64::try_from(buffer.length()).ok()?;
        let start = self.body.start.checked_add(u64::try_from(buffer.offset()).ok()?)?;
        (start.checked_add(length)? <= self.body.end).then_some((start, length))
    }
}
