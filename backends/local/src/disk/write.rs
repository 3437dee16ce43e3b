//! One directory's writer: the only thread that changes anything there.
//!
//! A block is written, then listed in the index, then published in the table that lookups see. A process that is killed
//! in between leaves bytes that nothing names. Between blocks the writer gives way to reads: it waits while any is
//! under way, 20 ms at most, so that it still moves 50 MB/s under a load of reads that never pauses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use foreread_tier::{ErrorKind, TierError};
use foreread_types::SampleId;
use tokio::sync::oneshot;

use super::aligned::Aligned;
use super::error::{about, from_errno, from_io};
use super::format::{BLOCK, Place};
use super::pack::{Block, Stored};
use super::shelf::{Ledger, NO_ROOM};
use super::store::{Directory, Locks, Outcome, Store};

/// How long a write waits for reads at most, and how long it sleeps meanwhile.
const GIVE_WAY: Duration = Duration::from_millis(20);
const NAP: Duration = Duration::from_micros(500);

/// Something for a writer, in order.
#[derive(Debug)]
pub(super) enum Command {
    Write(Block),
    /// These records are dead; those without a place are looked up when their turn comes.
    Bury {
        set: usize,
        records: Vec<(SampleId, Option<Place>)>,
        done: Option<Arc<oneshot::Sender<()>>>,
    },
    /// Say what has become of a sample that was on its way before.
    Tell {
        outcome: Outcome,
        done: Stored,
    },
    /// Everything before this has been done; for somebody who waits for all directories: dropped when its turn comes.
    Drop(Arc<oneshot::Sender<()>>),
}

pub(super) struct Writer {
    pub(super) store: Arc<Store>,
    pub(super) number: u8,
    pub(super) ledgers: Vec<Ledger>,
    pub(super) commands: Receiver<Command>,
    pub(super) queued: Arc<AtomicUsize>,
    pub(super) spare: SyncSender<Aligned>,
    /// Kept until nothing is written any more.
    pub(super) _locks: Arc<Locks>,
}

impl Writer {
    pub(super) fn run(mut self) {
        while let Ok(command) = self.commands.recv() {
            match command {
                Command::Write(block) => {
                    self.give_way();
                    self.write(block);
                    self.queued.fetch_sub(1, Ordering::AcqRel);
                }
                Command::Bury { set, records, done } => {
                    self.bury(set, &records);
                    drop(done);
                }
                Command::Drop(done) => drop(done),
                Command::Tell { outcome, done } => {
                    let stored = outcome.get().map_or(Ok(()), |error| Err(error.clone()));
                    let _ = done.send(stored); // whoever asked may not wait any more
                }
            }
        }
    }

    fn directory(&self) -> &Directory {
        &self.store.directories[usize::from(self.number)]
    }

    fn give_way(&self) {
        let start = Instant::now();
        while self.store.reading.load(Ordering::Relaxed) > 0
            && !self.store.closing.load(Ordering::Relaxed)
            && start.elapsed() < GIVE_WAY
        {
            std::thread::sleep(NAP);
        }
    }

    fn write(&mut self, block: Block) {
        let Block { set, bytes, records } = block;
        let written = if self.directory().is_writable() {
            self.try_write(set, &bytes, &records)
        } else {
            Err(self.closed())
        };
        // A writer that is ahead of its packer has no use for more memory.
        let _ = self.spare.try_send(bytes);
        let store = Arc::clone(&self.store);
        let directory = &store.directories[usize::from(self.number)];
        match written {
            Ok(places) => {
                for (record, place) in records.into_iter().zip(places) {
                    directory.room.keep(record.room, record.blocks);
                    let before = store.sets[set].table.put(record.id, place);
                    debug_assert!(before.is_none(), "{} was on its way twice", record.id);
                    store.on_the_way().remove(&(set, record.id));
                    store.counters.written(place.bytes());
                    drop(record.behind);
                    let _ = record.done.send(Ok(())); // whoever stored it may not wait any more
                }
            }
            Err(error) => {
                for record in records {
                    if let Some((_, outcome)) = store.on_the_way().remove(&(set, record.id)) {
                        let _ = outcome.set(error.clone()); // nobody else does
                    }
                    store.counters.failed();
                    drop((record.room, record.behind));
                    let _ = record.done.send(Err(error.clone()));
                }
            }
        }
    }

    fn closed(&self) -> TierError {
        about(ErrorKind::Full, self.directory().path.display(), "writing to it has failed before")
    }

    /// Writes and lists a block; where its records are, or, if there are none, why.
    fn try_write(
        &mut self,
        set: usize,
        bytes: &Aligned,
        records: &[super::pack::Pending],
    ) -> Result<Vec<Place>, TierError> {
        let store = Arc::clone(&self.store);
        let directory = &store.directories[usize::from(self.number)];
        let shelf = &directory.shelves[set];
        let ledger = &mut self.ledgers[set];
        let failed = |error: TierError| {
            directory.fail(&error);
            error
        };
        let (segment, start) = ledger
            .write(shelf, &directory.room, bytes.as_slice(), directory.bounds[set])
            .map_err(|errno| match errno {
                NO_ROOM => {
                    let why = "the room is taken by segments of which little is left";
                    about(ErrorKind::Full, directory.path.display(), why)
                }
                errno => failed(from_errno(errno, directory.path.display())),
            })?;
        let mut at = (start / BLOCK) as u32;
        let places: Vec<Place> = records
            .iter()
            .map(|record| {
                let place = Place { directory: self.number, segment, start: at, blocks: record.blocks };
                at += record.blocks;
                place
            })
            .collect();
        let listed: Vec<_> = records.iter().zip(&places).map(|(record, &place)| (record.id, place)).collect();
        if let Err(error) = ledger.list(self.number, &store.sets[set].table, &listed) {
            ledger.unwrite(segment, start);
            return Err(failed(from_io(&error, directory.path.display())));
        }
        Ok(places)
    }

    fn bury(&mut self, set: usize, records: &[(SampleId, Option<Place>)]) {
        let store = Arc::clone(&self.store);
        let directory = &store.directories[usize::from(self.number)];
        let table = &store.sets[set].table;
        let dead: Vec<(SampleId, Place)> = records
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
        let ledger = &mut self.ledgers[set];
        if let Err(error) = ledger.bury(&directory.shelves[set], self.number, table, &directory.room, &dead) {
            directory.fail(&from_io(&error, directory.path.display()));
        }
        for (_, place) in dead {
            directory.room.release(place.blocks);
        }
    }
}
