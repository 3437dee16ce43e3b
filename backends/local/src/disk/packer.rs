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
//! records is written again with the next one. The packer leaves room for it, as much as it
//! expects, and the writer puts it there. A crash in between can only write the same bytes twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender};
use std::time::Duration;

use foreread_tier::{Charge, ErrorKind, Sample, TierError};
use foreread_types::{DatasetIdentity, SampleId};
use tokio::sync::oneshot;

use super::aligned::Aligned;
use super::error::about;
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
    pub(super) bytes: Aligned,
    /// The length of the first part, for the end of the bytes that were written before.
    head: usize,
    pub(super) records: Vec<BlockRecord>,
    /// The waiters for the records, in their order.
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
    fn push(&mut self, identity: DatasetIdentity, sample: &[u8], record: PendingRecord) {
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
}

impl Packer {
    pub(super) fn new(
        store: Arc<DiskState>,
        jobs: Receiver<PackJob>,
        writers: Vec<Option<WriterHandle>>,
    ) -> Self {
        Self { store, jobs, writers, open: HashMap::new() }
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
            let head = self.store.directories[directory].dirs[set].next_start();
            RecordBlock::new(set, head, writer.memory(head + bytes))
        });
        block.push(self.store.sets[set].record_identity(pending.id), sample, pending);
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
        let Some(block) = self.open.remove(&(directory, set)) else { return };
        let Some(writer) = self.writers[directory].as_ref().filter(|_| !block.records.is_empty()) else {
            return;
        };
        self.store.directories[directory].dirs[set].queue(block.length());
        writer.queued.fetch_add(1, Ordering::AcqRel);
        if let Err(SendError(WriteCommand::Write(block))) = writer.commands.send(WriteCommand::Write(block)) {
            // Without the writer nothing would ever answer, and later samples would wait for it.
            writer.queued.fetch_sub(1, Ordering::AcqRel);
            let why = "the thread that writes has ended";
            let error = about(ErrorKind::Closed, self.store.directories[directory].path.display(), why);
            self.store.refuse(block, &error);
        }
    }
}
