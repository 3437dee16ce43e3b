//! Between whoever stores a sample and the disk: one thread that copies samples into aligned blocks.
//!
//! Direct I/O needs aligned memory, so a sample has to be copied once. It is copied at once, and not when the disk is
//! ready for it: so the queue before a slow or busy disk holds copies, which the write-write_behind budget counts, and no
//! handles on samples, which would hold the look-ahead or the trainer's memory. (To charge the queued samples to the
//! write-write_behind budget instead would not do: a sample is counted until the trainer lets go of it, so with a trainer
//! that computes, the budget would be full of samples that were written long ago.)
//!
//! Samples that come while the disk writes share the next block, of 1 MiB at most: one write and one entry list.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use foreread_tier::{Charge, Sample, TierError};
use foreread_types::SampleId;
use tokio::sync::oneshot;

use super::aligned::Aligned;
use super::format::{FOOTPRINT, RecordPlace, record_header};
use super::state::{DiskKey, DiskState, WriteOutcome};
use super::writer::WriteCommand;

/// What is written at once, in bytes: enough for a device's full speed, little enough that a read does not wait long.
const BLOCK_BYTES: usize = 1 << 20;

/// Blocks that a writer may have before more samples share one.
const MAX_QUEUED_BLOCKS: usize = 2;

/// How long samples wait for company while their writer has enough to do.
const BATCH_DELAY: Duration = Duration::from_millis(1);

pub(super) type StoreReply = oneshot::Sender<Result<(), TierError>>;

/// Something for the packer. Jobs are carried out in the order in which they were given.
#[derive(Debug)]
pub(super) enum PackJob {
    Store {
        key: DiskKey,
        directory: usize,
        sample: Sample,
        pending: PendingRecord,
    },
    /// Report `done` what has become of a sample that is on its way to `directory`, when it has had its turn.
    AwaitPrevious {
        directory: usize,
        outcome: WriteOutcome,
        done: StoreReply,
    },
    /// These are to be forgotten; where they are, if they were somewhere. `done` is dropped at the end.
    Remove {
        keys: Vec<(DiskKey, Option<RecordPlace>)>,
        done: Option<Arc<oneshot::Sender<()>>>,
    },
    /// Drop this when everything that is on its way is there.
    Flush(Arc<oneshot::Sender<()>>),
    End,
}

/// What a sample on its way to the disk holds, and who waits for it.
#[derive(Debug)]
pub(super) struct PendingRecord {
    pub(super) id: SampleId,
    pub(super) blocks: u32,
    pub(super) room: Charge,
    pub(super) write_behind: Charge,
    pub(super) done: StoreReply,
}

/// Records that are written together.
#[derive(Debug)]
pub(super) struct RecordBlock {
    pub(super) set: usize,
    pub(super) bytes: Aligned,
    pub(super) records: Vec<PendingRecord>,
}

/// The packer's way to one directory's writer.
#[derive(Debug)]
pub(super) struct WriterHandle {
    pub(super) commands: Sender<WriteCommand>,
    /// Blocks that have been sent and not written.
    pub(super) queued: Arc<AtomicUsize>,
    /// Memory that comes back to be used again.
    pub(super) spare: Receiver<Aligned>,
}

impl WriterHandle {
    fn send(&self, command: WriteCommand) {
        // A writer that is gone has panicked; what was for it is dropped, and so whoever waits for it is told.
        let _ = self.commands.send(command);
    }

    fn memory(&self, bytes: usize) -> Aligned {
        while let Ok(mut spare) = self.spare.try_recv() {
            spare.clear();
            if spare.left() >= bytes {
                return spare;
            }
        }
        Aligned::new(bytes.max(BLOCK_BYTES))
    }
}

pub(super) struct Packer {
    pub(super) store: Arc<DiskState>,
    pub(super) jobs: Receiver<PackJob>,
    /// By directory; none where nothing is written.
    pub(super) writers: Vec<Option<WriterHandle>>,
    /// Blocks that may still grow, by directory and set.
    pub(super) open: HashMap<(usize, usize), RecordBlock>,
}

impl Packer {
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
                    return; // the writers end when they have done what was sent
                }
            }
        }
    }

    fn pack(&mut self, (set, id): DiskKey, directory: usize, sample: &Sample, pending: PendingRecord) {
        let bytes = FOOTPRINT.of(sample.len() as u64) as usize;
        if self.open.get(&(directory, set)).is_some_and(|block| block.bytes.left() < bytes) {
            self.send(directory, set);
        }
        let Some(writer) = &self.writers[directory] else { return };
        let block = self.open.entry((directory, set)).or_insert_with(|| RecordBlock {
            set,
            bytes: writer.memory(bytes),
            records: Vec::new(),
        });
        block.bytes.extend(&record_header(self.store.sets[set].identity, id, sample));
        block.bytes.extend(sample);
        block.bytes.pad();
        block.records.push(pending);
    }

    fn forget(&mut self, keys: Vec<(DiskKey, Option<RecordPlace>)>, done: Option<&Arc<oneshot::Sender<()>>>) {
        let mut dead: HashMap<(usize, usize), Vec<_>> = HashMap::new();
        for ((set, id), place) in keys {
            let directory = match place {
                Some(place) => Some(usize::from(place.directory)),
                None => self.store.pending_writes().get(&(set, id)).map(|(directory, _)| *directory),
            };
            // Neither there nor on its way any more: it may have arrived just now.
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
        if let Some(writer) = &self.writers[directory]
            && !block.bytes.is_empty()
        {
            writer.queued.fetch_add(1, Ordering::AcqRel);
            writer.send(WriteCommand::Write(block));
        }
    }
}
