//! The records that the programs of a run leave of their opens.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use foreread_preload::layout::{
    OpenKind, OpenRecord, PathText, RECORDS, SMALL_HEADER_BYTES, TRACE_BYTES, TRACE_MAGIC, TraceHeader,
};

use crate::mapping::MappedFile;

/// A record that is not written for so long is lost: its program has died.
const LOST: Duration = Duration::from_millis(50);

/// The trace of one run.
#[derive(Debug)]
pub(crate) struct Trace {
    file: MappedFile,
    /// A record that has a number and is not written yet, and since when.
    missing: Option<(u64, Instant)>,
}

impl Trace {
    /// Makes the trace of a run, whose programs find the table through it.
    pub(crate) fn create(path: &Path, table: &Path) -> io::Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let why = || io::Error::new(io::ErrorKind::InvalidInput, "the path of the cache is too long");
        let table = PathText::new(table.as_os_str().as_bytes()).ok_or_else(why)?;
        let file = MappedFile::create(path, TRACE_BYTES)?;
        let counts = [const { AtomicU64::new(0) }; OpenKind::COUNT];
        let [served_bytes, next, read] = [0; 3].map(AtomicU64::new);
        // SAFETY: the file was made here, and nothing has a reference to it.
        unsafe { file.write(0, TraceHeader { magic: TRACE_MAGIC, table, served_bytes, next, read, counts }) };
        Ok(Self { file, missing: None })
    }

    /// The trace of another run.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        let file = MappedFile::open(path).ok()?;
        let trace = (file.len() as u64 >= TRACE_BYTES).then_some(Self { file, missing: None })?;
        (trace.header().magic == TRACE_MAGIC).then_some(trace)
    }

    fn header(&self) -> &TraceHeader {
        // SAFETY: the file is as long as a trace, and its changing fields are atomic.
        unsafe { &self.file.slice::<TraceHeader>(0, 1)[0] }
    }

    /// How many opens became what, so far.
    pub(crate) fn count(&self, kind: OpenKind) -> u64 {
        self.header().counts[kind as usize].load(Ordering::Relaxed)
    }

    /// The bytes of the files that its programs have got copies of.
    pub(crate) fn served_bytes(&self) -> u64 {
        self.header().served_bytes.load(Ordering::Relaxed)
    }

    /// The path of the table.
    pub(crate) fn table(&self) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        std::ffi::OsStr::from_bytes(self.header().table.bytes()).into()
    }

    /// Leaves a record, as programs do.
    pub(crate) fn note(&self, hash: u64, kind: OpenKind, bytes: u64) {
        self.header().served_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.header().record(self.records(), std::process::id(), hash, kind);
    }

    fn records(&self) -> &[OpenRecord] {
        // SAFETY: the file is as long as a trace, and records are atomic.
        unsafe { self.file.slice(SMALL_HEADER_BYTES, RECORDS as usize) }
    }

    /// Gives each new record to `each`: the hash of the path, and what became of the open. Those
    /// that were overwritten are lost.
    pub(crate) fn read(&mut self, mut each: impl FnMut(u64, OpenKind)) -> u64 {
        let records = self.records();
        let next = self.header().next.load(Ordering::Acquire);
        // An earlier host may have read some.
        let mut read = self.header().read.load(Ordering::Relaxed).max(next.saturating_sub(RECORDS));
        let begun = read;
        let mut missing = self.missing;
        while read < next {
            let record = &records[(read % RECORDS) as usize];
            let detail = record.detail.swap(0, Ordering::Acquire);
            if detail == 0 {
                // Its program has the number and has not written yet, or has died.
                let since = missing.filter(|(number, _)| *number == read).map(|(_, since)| since);
                let is_lost = since.is_some_and(|since| since.elapsed() > LOST);
                if !is_lost {
                    missing = Some((read, since.unwrap_or_else(Instant::now)));
                    break;
                }
            }
            let kind = OpenKind::ALL.into_iter().find(|kind| *kind as u64 == detail & 0xff);
            if let Some(kind) = kind {
                each(record.hash.load(Ordering::Relaxed), kind);
            }
            read += 1;
        }
        self.missing = missing;
        self.header().read.store(read, Ordering::Relaxed);
        read - begun
    }
}
