//! Reading one sample: one read of its record, and every check that there is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use foreread_tier::{ErrorKind, ReadRequest, TierError};

use super::config::Access;
use super::error::{NAME, about};
use super::format::{BLOCK, HEADER, Place, check_record};
use super::pack::Job;
use super::store::{Key, Store};
use crate::pool::Read;

/// What the pool's threads read with.
#[derive(Debug)]
pub(super) struct Reader(pub(super) Arc<Store>);

/// Counts a read as under way, so that writes give way to it.
struct UnderWay<'a>(&'a AtomicUsize);

impl<'a> UnderWay<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Read for Reader {
    const NAME: &'static str = NAME;
    const THREAD: &'static str = "foreread-disk";
    const ALWAYS_WAITS: bool = true;

    fn asked(request: &ReadRequest) -> String {
        request.key.to_string()
    }

    fn read(&self, request: &ReadRequest, _about_to_wait: impl FnOnce()) -> Result<Bytes, TierError> {
        let error = |kind| TierError::new(kind, NAME).with_object(request.key.to_string());
        let key = self.0.set(request.key.dataset).map(|set| (set, request.key.id));
        let Some((key, place)) = key.and_then(|key| Some((key, self.0.place(key)?))) else {
            return Err(error(ErrorKind::Absent));
        };
        let _under_way = UnderWay::new(&self.0.reading);
        match self.record(key, place) {
            Ok(data) if data.len() as u64 == request.len() => Ok(data),
            Ok(data) => {
                let detail = format!("{} bytes are kept, {} were asked for", data.len(), request.len());
                Err(error(ErrorKind::Changed).with_detail(detail))
            }
            // Removed while it was read: what is in its place now means nothing.
            Err(_) if self.0.place(key) != Some(place) => Err(error(ErrorKind::Absent)),
            Err(why) => {
                self.drop_record(key, place, &why);
                Err(error(ErrorKind::Corrupt).with_detail(why))
            }
        }
    }
}

impl Reader {
    /// The sample in the record at `place`, or what is wrong with it.
    fn record(&self, (set, id): Key, place: Place) -> Result<Bytes, String> {
        let directory = &self.0.directories[usize::from(place.directory)];
        let file = directory.shelves[set].segment(place.segment).map_err(|errno| errno.to_string())?;
        let buffer = self.0.buffers.allocate(place.bytes() as usize, BLOCK as usize);
        let mut buffer = buffer.ok_or_else(|| "there is no memory for it".to_owned())?;
        file.read(&mut buffer, place.offset()).map_err(|errno| errno.to_string())?;
        if buffer.filled() < buffer.capacity() {
            return Err("the file ends before the record does".to_owned());
        }
        let length = check_record(buffer.as_ref(), self.0.sets[set].fingerprint, id)?;
        Ok(buffer.freeze().slice(HEADER..HEADER + length))
    }

    /// Forgets a record that is not what it should be, so that the sample is stored again.
    fn drop_record(&self, (set, id): Key, place: Place, why: &str) {
        if !self.0.sets[set].table.take_from(id, place) {
            return;
        }
        let directory = &self.0.directories[usize::from(place.directory)];
        if self.0.counters.corrupt.fetch_add(1, Ordering::Relaxed) == 0 {
            let error = about(ErrorKind::Corrupt, id, why);
            let directory = directory.path.display();
            tracing::warn!(%directory, %error, "a cached sample is dropped; more are counted, not logged");
        }
        if directory.access == Access::Owner {
            // A packer that is gone takes the directory's bookkeeping with it.
            let _ = self.0.jobs.send(Job::Forget { keys: vec![((set, id), Some(place))], done: None });
        }
    }
}
