//! A block of records, which is written at once.
//!
//! Records lie back to back, and writes are whole blocks of the device. So the end of one block of
//! records is written again with the next one. The packer leaves room for it, as much as it
//! expects, and the writer puts it there. A crash in between can only write the same bytes twice.

use foreread_tier::{Charge, TierError};
use foreread_types::{DatasetIdentity, SampleId};
use tokio::sync::oneshot;

use super::aligned::Aligned;
use super::format::record_trailer;
use super::place::{BLOCK, RecordLength, TRAILER};

pub(super) type StoreReply = oneshot::Sender<Result<(), TierError>>;

/// A queued sample: its charges, and its waiter.
#[derive(Debug)]
pub(super) struct PendingRecord {
    pub(super) id: SampleId,
    pub(super) length: RecordLength,
    pub(super) room: Charge,
    pub(super) write_behind: Charge,
    pub(super) done: StoreReply,
}

/// Records that are written together.
#[derive(Debug)]
pub(super) struct RecordBlock {
    pub(super) set: usize,
    pub(super) bytes: Aligned,
    /// The length of the first part, for the end of the earlier records.
    head: usize,
    pub(super) records: Vec<BlockRecord>,
    /// The writers that wait for the records, in their order.
    pub(super) waiting: Vec<PendingRecord>,
}

/// A record in a block.
#[derive(Debug)]
pub(super) struct BlockRecord {
    pub(super) id: SampleId,
    /// The offset from the first record.
    pub(super) at: u64,
    pub(super) length: RecordLength,
}

impl RecordBlock {
    /// A block in empty memory that probably begins at the offset `head` in a block of the device.
    pub(super) fn new(set: usize, head: usize, mut bytes: Aligned) -> Self {
        bytes.extend_zeros(head);
        Self { set, bytes, head, records: Vec::new(), waiting: Vec::new() }
    }

    /// Appends the record of a sample.
    ///
    /// # Panics
    /// If it does not fit.
    pub(super) fn push(&mut self, identity: DatasetIdentity, sample: &[u8], record: PendingRecord) {
        let at = self.length();
        self.bytes.extend(sample);
        self.bytes.extend_zeros(record.length.bytes() as usize - sample.len() - TRAILER);
        self.bytes.extend(&record_trailer(identity, record.id, sample));
        self.records.push(BlockRecord { id: record.id, at, length: record.length });
        self.waiting.push(record);
    }

    /// Appends a whole record.
    ///
    /// # Panics
    /// If it does not fit.
    pub(super) fn push_record(&mut self, id: SampleId, length: RecordLength, record: &[u8]) {
        self.records.push(BlockRecord { id, at: self.length(), length });
        self.bytes.extend(record);
    }

    /// The bytes of all records.
    pub(super) fn length(&self) -> u64 {
        (self.bytes.len() - self.head) as u64
    }

    /// Returns whole blocks of the device that begin with `before`, and the used part of the last
    /// block. Copies the records if they were expected to begin elsewhere.
    pub(super) fn after(&mut self, before: &[u8]) -> (&Aligned, Vec<u8>) {
        if before.len() == self.head {
            self.bytes.replace_first(before);
        } else {
            let records = &self.bytes.as_slice()[self.head..];
            let mut bytes = Aligned::new((before.len() + records.len()).next_multiple_of(BLOCK as usize));
            bytes.extend(before);
            bytes.extend(records);
            (self.bytes, self.head) = (bytes, before.len());
        }
        let end = self.bytes.len() / BLOCK as usize * BLOCK as usize;
        let tail = self.bytes.as_slice()[end..].to_vec();
        self.bytes.pad();
        (&self.bytes, tail)
    }
}
