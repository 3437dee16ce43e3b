//! The packer thread copies samples into aligned blocks for the writers.
//!
//! Direct I/O needs aligned memory, so each sample is copied once. It is copied at once, and not
//! when the disk is ready. The queue of a slow disk therefore holds copies, which the write-behind
//! budget counts. Handles on samples would hold the look-ahead or the trainer's memory.
//!
//! Charging queued samples to the write-behind budget would not work either. A sample is charged
//! until the trainer drops it. The budget would be full of samples that were written long ago.
//!
//! Samples that arrive during a write share the next block of at most 1 MiB. A block costs one
//! write and one index append.
//!
//! Records lie back to back, and writes are whole blocks of the device. So the end of one block of
//! records is written again with the next one: the packer begins that with a copy. A crash in
//! between can only write the same bytes twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use foreread_tier::{Charge, Sample, TierError};
use foreread_types::{DatasetIdentity, SampleId};
use tokio::sync::oneshot;

use super::aligned::Aligned;
use super::format::record_trailer;
use super::place::{BLOCK, RecordLength, RecordPlace, TRAILER};
use super::state::{DiskKey, DiskState, WriteOutcome};
use super::writer::WriteCommand;

/// Bytes per write: enough for a device's full speed, and little enough that reads do not wait
/// long.
const BLOCK_BYTES: usize = 1 << 20;

/// Blocks queued at a writer before further samples share a block.
const MAX_QUEUED_BLOCKS: usize = 2;

/// How long samples wait for more samples while their writer is busy.
const BATCH_DELAY: Duration = Duration::from_millis(1);

pub(super) type StoreReply = oneshot::Sender<Result<(), TierError>>;

/// A job of the packer. Jobs are executed in order.
#[derive(Debug)]
pub(super) enum PackJob {
    Store {
        key: DiskKey,
        directory: usize,
        sample: Sample,
        pending: PendingRecord,
    },
    /// Sends `done` the result of an earlier store of the same sample in `directory`.
    AwaitPrevious {
        directory: usize,
        outcome: WriteOutcome,
        done: StoreReply,
    },
    /// Removes samples, at their locations where these are known. `done` is dropped at the end.
    Remove {
        keys: Vec<(DiskKey, Option<RecordPlace>)>,
        done: Option<Arc<oneshot::Sender<()>>>,
    },
    /// Dropped when everything queued before is written.
    Flush(Arc<oneshot::Sender<()>>),
    End,
}

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
    /// Counted for each directory and set.
    pub(super) number: u64,
    /// Whole blocks of the device.
    pub(super) bytes: Aligned,
    /// The length of the first part, which repeats the end of the block before.
    pub(super) head: usize,
    /// The end of the last record.
    pub(super) end: usize,
    pub(super) records: Vec<BlockRecord>,
    /// Those who wait for the records, in their order.
    pub(super) waiting: Vec<PendingRecord>,
}

/// A record in a block.
#[derive(Debug)]
pub(super) struct BlockRecord {
    pub(super) id: SampleId,
    /// The start in the block's bytes.
    pub(super) at: usize,
    pub(super) length: RecordLength,
}

impl RecordBlock {
    /// A block that begins with `head`, in empty memory.
    pub(super) fn new(set: usize, number: u64, head: &[u8], mut bytes: Aligned) -> Self {
        bytes.extend(head);
        Self {
            set,
            number,
            bytes,
            head: head.len(),
            end: head.len(),
            records: Vec::new(),
            waiting: Vec::new(),
        }
    }

    fn push(&mut self, identity: DatasetIdentity, sample: &[u8], record: PendingRecord) {
        let trailer = record_trailer(identity, record.id, sample);
        self.bytes.extend(sample);
        let zeros = record.length.bytes() as usize - sample.len() - TRAILER;
        self.bytes.extend_zeros(zeros);
        self.bytes.extend(&trailer);
        self.end_record(record.id, record.length);
        self.waiting.push(record);
    }

    /// Appends a whole record.
    ///
    /// # Panics
    /// If it does not fit.
    pub(super) fn push_record(&mut self, id: SampleId, length: RecordLength, record: &[u8]) {
        self.bytes.extend(record);
        self.end_record(id, length);
    }

    fn end_record(&mut self, id: SampleId, length: RecordLength) {
        let at = std::mem::replace(&mut self.end, self.bytes.len());
        self.records.push(BlockRecord { id, at, length });
    }

    /// Fills the last block of the device.
    pub(super) fn close(&mut self) {
        self.bytes.pad();
    }

    /// The bytes after the last whole block of the device.
    fn tail(&self) -> Vec<u8> {
        self.bytes.as_slice()[self.end / BLOCK as usize * BLOCK as usize..].to_vec()
    }
}

/// The packer's connection to one directory's writer.
#[derive(Debug)]
pub(super) struct WriterHandle {
    pub(super) commands: Sender<WriteCommand>,
    /// Blocks sent and not yet written.
    pub(super) queued: Arc<AtomicUsize>,
    /// Buffers that the writer returns for reuse.
    pub(super) spare: Receiver<Aligned>,
}

impl WriterHandle {
    fn send(&self, command: WriteCommand) {
        // A missing writer has panicked. Dropping the command reports that to its waiter.
        let _ = self.commands.send(command);
    }

    fn memory(&self, bytes: usize) -> Aligned {
        while let Ok(mut spare) = self.spare.try_recv() {
            spare.clear();
            if spare.left() >= bytes {
                return spare;
            }
        }
        Aligned::new(bytes.next_multiple_of(BLOCK as usize).max(BLOCK_BYTES))
    }
}

pub(super) struct Packer {
    pub(super) store: Arc<DiskState>,
    pub(super) jobs: Receiver<PackJob>,
    /// By directory. `None` where nothing is written.
    pub(super) writers: Vec<Option<WriterHandle>>,
    /// Blocks with free space, by directory and set.
    pub(super) open: HashMap<(usize, usize), RecordBlock>,
    /// The number of the last block by directory and set, and its end that was not a whole block.
    pub(super) tails: HashMap<(usize, usize), (u64, Vec<u8>)>,
}

impl Packer {
    pub(super) fn new(
        store: Arc<DiskState>,
        jobs: Receiver<PackJob>,
        writers: Vec<Option<WriterHandle>>,
    ) -> Self {
        Self { store, jobs, writers, open: HashMap::new(), tails: HashMap::new() }
    }

    pub(super) fn run(mut self) {
        loop {
            let job = match self.jobs.try_recv() {
                Ok(job) => job,
                Err(_) => {
                    self.flush(|writer| writer.queued.load(Ordering::Acquire) < MAX_QUEUED_BLOCKS);
                    let next = match self.open.is_empty() {
                        true => self.jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
                        false => self.jobs.recv_timeout(BATCH_DELAY),
                    };
                    match next {
                        Ok(job) => job,
                        Err(RecvTimeoutError::Timeout) => continue,
                        Err(RecvTimeoutError::Disconnected) => PackJob::End,
                    }
                }
            };
            match job {
                PackJob::Store { key, directory, sample, pending } => {
                    self.pack(key, directory, &sample, pending)
                }
                PackJob::AwaitPrevious { directory, outcome, done } => {
                    self.flush_one(directory);
                    if let Some(writer) = &self.writers[directory] {
                        writer.send(WriteCommand::Report { outcome, done });
                    }
                }
                PackJob::Remove { keys, done } => self.forget(keys, done.as_ref()),
                PackJob::Flush(done) => {
                    self.flush(|_| true);
                    for writer in self.writers.iter().flatten() {
                        writer.send(WriteCommand::Flushed(Arc::clone(&done)));
                    }
                }
                PackJob::End => {
                    self.flush(|_| true);
                    return; // the writers end after their queued commands
                }
            }
        }
    }

    fn pack(&mut self, (set, id): DiskKey, directory: usize, sample: &Sample, pending: PendingRecord) {
        debug_assert_eq!(id, pending.id);
        let bytes = pending.length.bytes() as usize;
        if self.open.get(&(directory, set)).is_some_and(|block| block.bytes.left() < bytes) {
            self.send(directory, set);
        }
        let Some(writer) = &self.writers[directory] else { return };
        let block = self.open.entry((directory, set)).or_insert_with(|| {
            let (number, tail) = self.tails.get(&(directory, set)).map_or((0, &[][..]), |(n, t)| (*n, t));
            RecordBlock::new(set, number + 1, tail, writer.memory(tail.len() + bytes))
        });
        block.push(self.store.sets[set].identity, sample, pending);
    }

    fn forget(&mut self, keys: Vec<(DiskKey, Option<RecordPlace>)>, done: Option<&Arc<oneshot::Sender<()>>>) {
        let mut dead: HashMap<(usize, usize), Vec<_>> = HashMap::new();
        for ((set, id), place) in keys {
            let directory = match place {
                Some(place) => Some(usize::from(place.directory)),
                None => self.store.pending_writes().get(&(set, id)).map(|(directory, _)| *directory),
            };
            // Neither stored nor queued: it may have been stored just now.
            let directory =
                directory.or_else(|| self.store.place((set, id)).map(|place| usize::from(place.directory)));
            if let Some(directory) = directory {
                dead.entry((directory, set)).or_default().push((id, place));
            }
        }
        for ((directory, set), records) in dead {
            self.flush_one(directory);
            if let Some(writer) = &self.writers[directory] {
                writer.send(WriteCommand::Remove { set, records, done: done.map(Arc::clone) });
            }
        }
    }

    fn flush_one(&mut self, directory: usize) {
        for set in 0..self.store.sets.len() {
            self.send(directory, set);
        }
    }

    fn flush(&mut self, may: impl Fn(&WriterHandle) -> bool) {
        let ready: Vec<_> = self
            .open
            .keys()
            .copied()
            .filter(|&(directory, _)| self.writers[directory].as_ref().is_some_and(&may))
            .collect();
        for (directory, set) in ready {
            self.send(directory, set);
        }
    }

    fn send(&mut self, directory: usize, set: usize) {
        let Some(mut block) = self.open.remove(&(directory, set)) else { return };
        if let Some(writer) = &self.writers[directory]
            && !block.records.is_empty()
        {
            self.tails.insert((directory, set), (block.number, block.tail()));
            block.close();
            writer.queued.fetch_add(1, Ordering::AcqRel);
            writer.send(WriteCommand::Write(block));
        }
    }
}
