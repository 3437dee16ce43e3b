//! Reading and checking one record.
//!
//! A read has three steps: look up the record ([`RecordReader::prepare`]), read the bytes, and
//! check them ([`RecordReader::finish`]). Threads execute them one after another. A ring has many
//! reads in the second step.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use foreread_tier::{Buffer, ErrorKind, ReadRequest, TierError};
use rustix::io::Errno;

use super::config::Access;
use super::error::{NAME, about, from_errno};
use super::file::DirectFile;
use super::format::{BLOCK, HEADER, RecordPlace, check_record};
use super::packer::PackJob;
use super::state::{DiskKey, DiskState};
use crate::pool::{BlockingRead, OpenFile, ReadSteps};

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

/// A record that is being read.
#[derive(Debug)]
pub(super) struct PendingRead {
    key: DiskKey,
    place: RecordPlace,
    _in_flight: InFlightRead,
}

/// A read that is ready to be executed.
#[derive(Debug)]
pub(super) struct PreparedRead {
    pub(super) record: PendingRead,
    pub(super) file: Arc<DirectFile>,
    /// Empty, with the record's length.
    pub(super) buffer: Buffer,
    /// The offset in the file.
    pub(super) offset: u64,
}

impl BlockingRead for RecordReader {
    const NAME: &'static str = NAME;
    const THREAD: &'static str = "foreread-disk";
    const ALWAYS_WAITS: bool = true;

    fn describe(request: &ReadRequest) -> String {
        request.key.to_string()
    }

    fn read(
        &self,
        request: &ReadRequest,
        _steps: &mut impl ReadSteps,
    ) -> (Result<Bytes, TierError>, Option<OpenFile>) {
        let result = self.prepare(request).and_then(|prepared| {
            let PreparedRead { record, file, mut buffer, offset } = prepared;
            let read = file.read(&mut buffer, offset);
            self.finish(request, &record, buffer, read)
        });
        (result, None)
    }
}

impl RecordReader {
    /// Looks up a sample's record and allocates memory for it.
    pub(super) fn prepare(&self, request: &ReadRequest) -> Result<PreparedRead, TierError> {
        let key = self.0.set(request.key.dataset).map(|set| (set, request.key.id));
        let Some((key, place)) = key.and_then(|key| Some((key, self.0.place(key)?))) else {
            return Err(error(request, ErrorKind::Absent));
        };
        let dir = &self.0.directories[usize::from(place.directory)].dirs[key.0];
        let file =
            dir.segment(place.segment).map_err(|errno| self.kernel_error(request, key, place, errno))?;
        let buffer = self.0.buffers.allocate(place.bytes() as usize, BLOCK as usize).ok_or_else(|| {
            let detail = format!("there is no memory for its {} bytes", place.bytes());
            error(request, ErrorKind::Other).with_detail(detail)
        })?;
        let record = PendingRead { key, place, _in_flight: InFlightRead::new(&self.0) };
        Ok(PreparedRead { record, file, buffer, offset: place.offset() })
    }

    /// Checks the record that was read, and returns its sample.
    pub(super) fn finish(
        &self,
        request: &ReadRequest,
        &PendingRead { key, place, .. }: &PendingRead,
        buffer: Buffer,
        read: Result<(), Errno>,
    ) -> Result<Bytes, TierError> {
        read.map_err(|errno| self.kernel_error(request, key, place, errno))?;
        let checked = if buffer.filled() < buffer.capacity() {
            Err("the file ends before the record does")
        } else {
            check_record(buffer.as_ref(), self.0.sets[key.0].identity, key.1)
        };
        match checked {
            Ok(length) if length as u64 == request.len() => {
                Ok(buffer.freeze().slice(HEADER..HEADER + length))
            }
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
        if directory.access == Access::Owner {
            // Without the packer the directory is no longer written.
            let _ = self.0.jobs.send(PackJob::Remove { keys: vec![((set, id), Some(place))], done: None });
        }
    }
}

fn error(request: &ReadRequest, kind: ErrorKind) -> TierError {
    TierError::new(kind, NAME).with_object(request.key.to_string())
}
