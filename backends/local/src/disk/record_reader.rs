//! Reading and checking records.
//!
//! A read has three steps: look up the record ([`RecordReader::prepare`]), read the blocks around
//! it, and check it ([`RecordReader::finish`]). Threads execute them one after another. A ring has
//! many reads in the second step.
//!
//! # Neighbours
//!
//! Small records that lie next to each other and are requested in one burst are one read
//! ([`RecordReader::group`]). A device that allows so many reads a second then delivers many times
//! as many samples. Each sample is copied out of the common memory, because a trainer that keeps
//! one must not keep all. Larger records gain less than that copy costs.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use foreread_tier::{Buffer, ErrorKind, ReadRequest, TierError};
use rustix::io::Errno;

use super::commands::{DiskKey, PackJob};
use super::config::Access;
use super::error::{NAME, about, from_errno};
use super::file::DirectFile;
use super::format::check_record;
use super::place::{BLOCK, RecordPlace, UNIT};
use super::state::DiskState;
use crate::jobs::ReadJob;
use crate::pool::{BlockingRead, OpenFile, ReadSteps, guarded};

/// The largest sample that is read with its neighbours, and the most bytes of such a read. A device
/// reads 128 KiB in two to three times the time of one block. Two reads of samples of this length
/// are charged as much as both samples and the common memory take.
const MAX_SMALL: u64 = 2 << 10;
const MAX_TOGETHER: u64 = 128 << 10;

/// Prepares and checks reads.
#[derive(Clone, Debug)]
pub(super) struct RecordReader(pub(super) Arc<DiskState>);

/// Counts a read as in flight, so that writes wait for it.
#[derive(Debug)]
struct InFlightRead(Arc<DiskState>);

impl InFlightRead {
    fn new(store: &Arc<DiskState>) -> Self {
        store.reads_in_flight.fetch_add(1, Ordering::Relaxed);
        store.counters.in_flight.increment(1.0);
        Self(Arc::clone(store))
    }
}

impl Drop for InFlightRead {
    fn drop(&mut self) {
        self.0.reads_in_flight.fetch_sub(1, Ordering::Relaxed);
        self.0.counters.in_flight.decrement(1.0);
    }
}

/// A record that was looked up.
#[derive(Debug)]
struct FoundRecord {
    job: Arc<ReadJob>,
    key: DiskKey,
    place: RecordPlace,
}

impl FoundRecord {
    /// The set, directory and segment.
    fn file(&self) -> (usize, u8, u16) {
        (self.key.0, self.place.directory, self.place.segment)
    }

    fn is_small(&self) -> bool {
        self.job.request().len() <= MAX_SMALL
    }

    /// `blocks` and those of `next`, if one read is best for both. This record is the last one in
    /// `blocks`, and `next` begins after it.
    fn joined(&self, next: &Self, blocks: &Range<u64>) -> Option<Range<u64>> {
        let of_next = next.place.blocks();
        let joined = blocks.start..blocks.end.max(of_next.end);
        let is_near = self.file() == next.file() && of_next.start <= blocks.end;
        let is_best = self.is_small() && next.is_small() && joined.end - joined.start <= MAX_TOGETHER;
        (is_near && is_best).then_some(joined)
    }
}

/// Records that are being read by one system call, at least one.
#[derive(Debug)]
pub(super) struct PendingRecords {
    first: FoundRecord,
    /// Mostly none, which takes no memory.
    others: Vec<FoundRecord>,
    _in_flight: InFlightRead,
}

impl PendingRecords {
    /// Whether the futures of all records were dropped.
    pub(super) fn are_unwanted(&self) -> bool {
        self.all().all(|record| record.job.is_dropped())
    }

    fn all(&self) -> impl Iterator<Item = &FoundRecord> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

/// A read that is ready to be executed.
#[derive(Debug)]
pub(super) struct PreparedRead {
    pub(super) records: PendingRecords,
    pub(super) file: Arc<DirectFile>,
    /// Empty, with the length of the sectors around the records.
    pub(super) buffer: Buffer,
    /// The offset in the file.
    pub(super) offset: u64,
}

/// The file and the memory of a read.
struct RecordMemory {
    file: Arc<DirectFile>,
    buffer: Buffer,
    offset: u64,
    in_flight: InFlightRead,
}

impl RecordMemory {
    /// The read of these records.
    fn of(self, first: FoundRecord, others: Vec<FoundRecord>) -> PreparedRead {
        let Self { file, buffer, offset, in_flight: _in_flight } = self;
        PreparedRead { records: PendingRecords { first, others, _in_flight }, file, buffer, offset }
    }
}

/// Receives the answers of reads.
pub(super) trait Answers: FnMut(Arc<ReadJob>, Result<Bytes, TierError>) {}

impl<F: FnMut(Arc<ReadJob>, Result<Bytes, TierError>)> Answers for F {}

impl BlockingRead for RecordReader {
    const NAME: &'static str = NAME;
    const THREAD: &'static str = "foreread-disk";
    const ALWAYS_WAITS: bool = true;

    fn describe(request: &ReadRequest) -> String {
        request.key.to_string()
    }

    fn read(
        &self,
        job: &Arc<ReadJob>,
        steps: &mut impl ReadSteps,
    ) -> (Result<Bytes, TierError>, Option<OpenFile>) {
        let mut own = Err(error(job.request(), ErrorKind::Other));
        let mut answer = |answered: Arc<ReadJob>, result| match Arc::ptr_eq(&answered, job) {
            true => own = result,
            false => steps.answer(answered, result),
        };
        let (first, others) = self.prepare(job, &mut answer);
        for PreparedRead { records, file, mut buffer, offset } in first.into_iter().chain(others) {
            let read = file.read(&mut buffer, offset);
            self.finish(&records, offset, buffer, read, &mut answer);
        }
        (own, None)
    }

    /// Puts small neighbours together. Their locations are looked up again when they are read.
    fn group(&self, jobs: Vec<Arc<ReadJob>>) -> Vec<Arc<ReadJob>> {
        if jobs.iter().filter(|job| job.request().len() <= MAX_SMALL).nth(1).is_none() {
            return jobs;
        }
        let (mut found, mut queued) = (Vec::with_capacity(jobs.len()), Vec::new());
        for (turn, job) in jobs.into_iter().enumerate() {
            match self.find(&job) {
                Some(record) => found.push((turn, record)),
                None => queued.push((turn, job, Vec::new())),
            }
        }
        for group in in_groups(found, |(_, record)| record) {
            // The first to be requested is queued for all.
            let first = group.iter().map(|(turn, _)| *turn).min().unwrap_or(0);
            let (mut leaders, neighbours): (Vec<_>, Vec<_>) = group
                .into_iter()
                .map(|(turn, record)| (turn, record.job))
                .partition(|(turn, _)| *turn == first);
            let neighbours = neighbours.into_iter().map(|(_, job)| job).collect();
            queued.extend(leaders.pop().map(|(turn, job)| (turn, job, neighbours)));
        }
        queued.sort_unstable_by_key(|(turn, ..)| *turn);
        let queue = |(_, job, neighbours): (usize, Arc<ReadJob>, Vec<Arc<ReadJob>>)| {
            if !neighbours.is_empty() {
                job.set_neighbours(neighbours);
            }
            job
        };
        queued.into_iter().map(queue).collect()
    }
}

/// Sorts records by their location, and splits them into groups that are read together.
fn in_groups<T>(mut records: Vec<T>, record: impl Fn(&T) -> &FoundRecord) -> Vec<Vec<T>> {
    records.sort_unstable_by_key(|found| (record(found).file(), record(found).place.start));
    let mut groups: Vec<Vec<T>> = Vec::new();
    let mut blocks = 0..0;
    for next in records {
        let last = groups.last().and_then(|group| group.last());
        let joined = last.and_then(|last| record(last).joined(record(&next), &blocks));
        blocks = joined.clone().unwrap_or_else(|| record(&next).place.blocks());
        match groups.last_mut().filter(|_| joined.is_some()) {
            Some(group) => group.push(next),
            None => groups.push(vec![next]),
        }
    }
    groups
}

impl RecordReader {
    /// Looks up the record of a read.
    fn find(&self, job: &Arc<ReadJob>) -> Option<FoundRecord> {
        let key = job.request().key;
        let key = (self.0.set(key.dataset)?, key.id);
        Some(FoundRecord { job: Arc::clone(job), key, place: self.0.place(key)? })
    }

    /// Looks up the records of a read and its neighbours, and allocates memory for them. A read
    /// that cannot be executed is answered.
    pub(super) fn prepare(
        &self,
        job: &Arc<ReadJob>,
        answer: &mut impl Answers,
    ) -> (Option<PreparedRead>, Vec<PreparedRead>) {
        let mut look_up = |job: &Arc<ReadJob>| {
            let found = self.find(job);
            if found.is_none() {
                answer(Arc::clone(job), Err(error(job.request(), ErrorKind::Absent)));
            }
            found
        };
        let first = look_up(job);
        if job.neighbours().is_empty() {
            return (first.and_then(|first| self.prepare_alone(first, answer)), Vec::new());
        }
        let found = first.into_iter().chain(job.neighbours().iter().filter_map(look_up)).collect();
        let mut prepared = Vec::new();
        for mut group in in_groups(found, |record| record) {
            let others = group.split_off(1);
            let Some(first) = group.pop() else { continue };
            match self.allocate_for(&first, &others) {
                Ok(read) => prepared.push(read.of(first, others)),
                // One by one they take less memory, and each has an error of its own.
                Err(_) if !others.is_empty() => {
                    let all = std::iter::once(first).chain(others);
                    prepared.extend(all.filter_map(|record| self.prepare_alone(record, answer)));
                }
                Err(error) => answer(first.job, Err(error)),
            }
        }
        (None, prepared)
    }

    /// Prepares the read of one record, or answers it.
    fn prepare_alone(&self, mut record: FoundRecord, answer: &mut impl Answers) -> Option<PreparedRead> {
        let mut result = self.allocate_for(&record, &[]);
        // Its segment was removed since it was looked up, and it may be elsewhere.
        if result.is_err()
            && let Some(place) = self.0.place(record.key).filter(|place| *place != record.place)
        {
            record.place = place;
            result = self.allocate_for(&record, &[]);
        }
        match result {
            Ok(read) => Some(read.of(record, Vec::new())),
            Err(error) => {
                answer(record.job, Err(error));
                None
            }
        }
    }

    /// Opens the file of records next to each other, and allocates memory for them.
    fn allocate_for(&self, first: &FoundRecord, others: &[FoundRecord]) -> Result<RecordMemory, TierError> {
        let FoundRecord { job, key, place } = first;
        let request = job.request();
        let dir = &self.0.directories[usize::from(place.directory)].dirs[key.0];
        let file = dir.segment(place.segment);
        let file = file.map_err(|errno| self.kernel_error(request, *key, *place, errno))?;
        let end = others.iter().map(|record| record.place.range().end).max().unwrap_or(0);
        let Range { start: offset, end } = file.around(place.offset()..end.max(place.range().end));
        let length = (end - offset) as usize;
        let buffer = guarded::<Self, _>(request, || {
            let buffer = self.0.buffers.allocate(length, BLOCK as usize);
            buffer.ok_or_else(|| no_memory(request, length))
        })?;
        Ok(RecordMemory { file, buffer, offset, in_flight: InFlightRead::new(&self.0) })
    }

    /// Checks the records in `buffer`, which was read from `offset`. Answers with their samples.
    pub(super) fn finish(
        &self,
        records: &PendingRecords,
        offset: u64,
        buffer: Buffer,
        read: Result<(), Errno>,
        answer: &mut impl Answers,
    ) {
        let (bytes, is_alone) = (buffer.freeze(), records.others.is_empty());
        if read.is_err() && !is_alone {
            // One of them may have failed all.
            return records.all().for_each(|record| self.read_now(&record.job, answer));
        }
        for FoundRecord { job, key, place } in records.all() {
            let request = job.request();
            let result = guarded::<Self, _>(request, || {
                read.map_err(|errno| self.kernel_error(request, *key, *place, errno))?;
                let start = (place.offset() - offset) as usize;
                let record = start..start + place.bytes() as usize;
                let sample = self.check(request, *key, *place, bytes.get(record))?;
                if is_alone {
                    return Ok(bytes.slice(start..start + sample));
                }
                let own = self.0.buffers.allocate(sample, UNIT as usize);
                let mut own = own.ok_or_else(|| no_memory(request, sample))?;
                own.extend(&bytes[start..start + sample]);
                Ok(own.freeze())
            });
            // The record was moved during the read.
            let is_moved = || self.0.place(*key).is_some_and(|now| now != *place);
            match result {
                Err(_) if is_moved() => self.read_now(job, answer),
                result => answer(Arc::clone(job), result),
            }
        }
    }

    /// Reads a record once more, on this thread.
    fn read_now(&self, job: &Arc<ReadJob>, answer: &mut impl Answers) {
        let Some(found) = self.find(job) else {
            return answer(Arc::clone(job), Err(error(job.request(), ErrorKind::Absent)));
        };
        let Some(read) = self.prepare_alone(found, answer) else { return };
        let PreparedRead { records, file, mut buffer, offset } = read;
        let done = file.read(&mut buffer, offset);
        self.finish(&records, offset, buffer, done, answer);
    }

    /// Checks the bytes of a record, and returns its sample's length.
    fn check(
        &self,
        request: &ReadRequest,
        key: DiskKey,
        place: RecordPlace,
        record: Option<&[u8]>,
    ) -> Result<usize, TierError> {
        let checked = match record {
            Some(record) => check_record(record, self.0.sets[key.0].record_identity(key.1), key.1),
            None => Err("the file ends before the record does"),
        };
        match checked {
            Ok(length) if length as u64 == request.len() => Ok(length),
            Ok(length) => {
                let detail = format!("{length} bytes are stored, {} were requested", request.len());
                Err(error(request, ErrorKind::Changed).with_detail(detail))
            }
            Err(why) => Err(self.invalid_record(request, key, place, why)),
        }
    }

    /// The error of a failed system call. The record stays unless its file is gone, because a later
    /// read may succeed. A network disk may return `EIO` for a while, and file descriptors may run
    /// out.
    fn kernel_error(
        &self,
        request: &ReadRequest,
        key: DiskKey,
        place: RecordPlace,
        errno: Errno,
    ) -> TierError {
        if let Errno::NOENT | Errno::NOTDIR | Errno::ISDIR | Errno::LOOP | Errno::NXIO | Errno::STALE = errno
        {
            return self.invalid_record(request, key, place, "its file is gone");
        }
        if self.0.place(key) != Some(place) {
            return error(request, ErrorKind::Absent);
        }
        let failure = from_errno(errno, request.key);
        if !self.0.error_logged.swap(true, Ordering::Relaxed) {
            let directory = self.0.directories[usize::from(place.directory)].path.display();
            tracing::warn!(
                %directory, error = %failure,
                "a cached sample cannot be read now, and stays; more are not logged"
            );
        }
        failure
    }

    /// The error of an invalid record, which is dropped.
    fn invalid_record(
        &self,
        request: &ReadRequest,
        key: DiskKey,
        place: RecordPlace,
        why: &str,
    ) -> TierError {
        if self.0.place(key) != Some(place) {
            // The record was removed during the read, and its space may hold another one.
            return error(request, ErrorKind::Absent);
        }
        let directory = &self.0.directories[usize::from(place.directory)];
        if directory.access != Access::Owner {
            // The owner may have moved it, and its index will list it again.
            self.0.sets[key.0].table.take_from(key.1, place);
            return error(request, ErrorKind::Absent);
        }
        self.drop_record(key, place, why);
        error(request, ErrorKind::Corrupt).with_detail(why)
    }

    /// Drops an invalid record, so that the sample can be stored again.
    fn drop_record(&self, (set, id): DiskKey, place: RecordPlace, why: &str) {
        if !self.0.sets[set].table.take_from(id, place) {
            return;
        }
        let directory = &self.0.directories[usize::from(place.directory)];
        if self.0.counters.corrupt() == 0 {
            let error = about(ErrorKind::Corrupt, format_args!("sample {id}"), why);
            let directory = directory.path.display();
            tracing::warn!(%directory, %error, "a cached sample is dropped; more are counted, not logged");
        }
        // Without the packer the directory is no longer written.
        let _ = self.0.jobs.send(PackJob::Remove { keys: vec![((set, id), Some(place))], done: None });
    }
}

fn error(request: &ReadRequest, kind: ErrorKind) -> TierError {
    TierError::new(kind, NAME).with_object(request.key.to_string())
}

fn no_memory(request: &ReadRequest, length: usize) -> TierError {
    error(request, ErrorKind::Other).with_detail(format!("there is no memory for its {length} bytes"))
}
