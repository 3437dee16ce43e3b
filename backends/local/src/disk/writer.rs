//! One directory's writer, the only thread that changes its files.
//!
//! A block is written, then listed in the index, then published in the table for lookups. A process
//! that is killed in between leaves unlisted bytes. Before each block the writer waits while reads
//! are in flight, at most 20 ms. So it still writes 50 MB/s under a constant load of reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use foreread_tier::{ErrorKind, TierError};
use foreread_types::SampleId;
use rustix::io::Errno;

use super::aligned::Aligned;
use super::commands::WriteCommand;
use super::dataset_dir::{NO_ROOM, SegmentWriter};
use super::emptying::Emptying;
use super::error::{about, from_errno, from_io};
use super::place::{RecordPlace, UNIT};
use super::record_block::{BlockRecord, RecordBlock};
use super::state::{CacheDirectory, DiskState, TierLocks};

/// The longest wait of a write for reads, and the interval of polling.
const MAX_READ_DELAY: Duration = Duration::from_millis(20);
const POLL_INTERVAL: Duration = Duration::from_micros(500);

pub(super) struct DirectoryWriter {
    pub(super) store: Arc<DiskState>,
    pub(super) number: u8,
    pub(super) segment_writers: Vec<SegmentWriter>,
    pub(super) commands: Receiver<WriteCommand>,
    pub(super) queued: Arc<AtomicUsize>,
    pub(super) spare: SyncSender<Aligned>,
    pub(super) emptying: Emptying,
    /// Held until the last write.
    pub(super) _locks: Arc<TierLocks>,
}

impl DirectoryWriter {
    pub(super) fn run(mut self) {
        loop {
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                // Dead space is recovered while nothing else is to be done.
                Err(TryRecvError::Empty) if self.empty_a_piece() => continue,
                Err(_) => match self.commands.recv() {
                    Ok(command) => command,
                    Err(_) => return,
                },
            };
            match command {
                WriteCommand::Write(block) => {
                    self.wait_for_reads();
                    self.write(block);
                    self.queued.fetch_sub(1, Ordering::AcqRel);
                }
                WriteCommand::Remove { set, records, done } => {
                    self.remove(set, &records);
                    drop(done);
                    self.emptying.check();
                }
                WriteCommand::Flushed(done) => drop(done),
                WriteCommand::Report { outcome, done } => {
                    let stored = outcome.get().map_or(Ok(()), |error| Err(error.clone()));
                    let _ = done.send(stored); // the receiver may be gone
                }
            }
        }
    }

    pub(super) fn directory(&self) -> &CacheDirectory {
        &self.store.directories[usize::from(self.number)]
    }

    pub(super) fn wait_for_reads(&self) {
        let start = Instant::now();
        while self.store.reads_in_flight.load(Ordering::Relaxed) > 0
            && !self.store.closing.load(Ordering::Relaxed)
            && start.elapsed() < MAX_READ_DELAY
        {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn write(&mut self, mut block: RecordBlock) {
        let (set, length) = (block.set, block.length());
        let written =
            if self.directory().is_writable() { self.try_write(&mut block) } else { Err(self.closed()) };
        let store = Arc::clone(&self.store);
        let directory = &store.directories[usize::from(self.number)];
        directory.dirs[set].unqueue(length);
        let places = match written {
            Ok(places) => places,
            Err(error) => return store.refuse(block, &error),
        };
        // A full channel means that the packer has enough buffers.
        let _ = self.spare.try_send(block.bytes);
        for (record, place) in block.waiting.into_iter().zip(places) {
            directory.quota.keep(record.room, place.footprint());
            let before = store.sets[set].table.put(record.id, place);
            debug_assert!(before.is_none(), "{} was on its way twice", record.id);
            store.pending_writes().remove(&(set, record.id));
            store.counters.written(place.footprint());
            drop(record.write_behind);
            let _ = record.done.send(Ok(())); // the receiver may be gone
        }
    }

    fn closed(&self) -> TierError {
        about(ErrorKind::Full, self.directory().path.display(), "writing to it has failed before")
    }

    /// Writes and lists a block, and returns the locations of its records. After an error, nothing
    /// more is written to the directory.
    fn try_write(&mut self, block: &mut RecordBlock) -> Result<Vec<RecordPlace>, TierError> {
        let store = Arc::clone(&self.store);
        let directory = &store.directories[usize::from(self.number)];
        self.place(block).map_err(|errno| match errno {
            NO_ROOM => {
                let why = "the space is taken by fragmented segments";
                about(ErrorKind::Full, directory.path.display(), why)
            }
            errno => {
                let error = from_errno(errno, directory.path.display());
                directory.fail(&error);
                error
            }
        })
    }

    /// Writes and lists a block, and returns the locations of its records.
    pub(super) fn place(&mut self, block: &mut RecordBlock) -> Result<Vec<RecordPlace>, Errno> {
        let store = Arc::clone(&self.store);
        let directory = &store.directories[usize::from(self.number)];
        let (dir, table) = (&directory.dirs[block.set], &store.sets[block.set].table);
        let writer = &mut self.segment_writers[block.set];
        let (segment, start) = writer.write(dir, &directory.quota, block, directory.limits)?;
        let place = |record: &BlockRecord| RecordPlace {
            directory: self.number,
            segment,
            start: ((start + record.at) / UNIT) as u32,
            length: record.length,
        };
        let places: Vec<RecordPlace> = block.records.iter().map(place).collect();
        let listed: Vec<_> =
            block.records.iter().zip(&places).map(|(record, &place)| (record.id, place)).collect();
        if let Err(error) = writer.list(self.number, table, &listed) {
            writer.truncate_to(segment, start);
            return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        }
        Ok(places)
    }

    fn remove(&mut self, set: usize, records: &[(SampleId, Option<RecordPlace>)]) {
        let store = Arc::clone(&self.store);
        let directory = &store.directories[usize::from(self.number)];
        let table = &store.sets[set].table;
        let dead: Vec<(SampleId, RecordPlace)> = records
            .iter()
            .filter_map(|&(id, place)| {
                let place = place.or_else(|| {
                    let there = table.get(id).filter(|place| place.directory == self.number)?;
                    table.take_from(id, there).then_some(there)
                })?;
                Some((id, place))
            })
            .collect();
        if dead.is_empty() {
            return;
        }
        let writer = &mut self.segment_writers[set];
        if let Err(error) =
            writer.remove_records(&directory.dirs[set], self.number, table, &directory.quota, &dead)
        {
            directory.fail(&from_io(&error, directory.path.display()));
        }
    }
}
