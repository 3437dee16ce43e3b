//! The records that the programs of a run leave of their opens.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use foreread_preload::layout::{
    CHECKS_EARLIER, CHECKS_MOUNTS, MAX_ROOTS, OpenKind, OpenRecord, PROGRAM_HEAD, PathText, ProgramKind,
    ProgramName, RECORDS, Root, TRACE_BYTES, TRACE_HEADER_BYTES, TRACE_MAGIC, TraceHeader,
};

use crate::mapping::MappedFile;
use crate::root::is_restricted;
use crate::table::RootName;

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
    /// `is_earlier`: the copies have to be compared first.
    pub(crate) fn create(
        path: &Path,
        table: &Path,
        roots: &[RootName],
        is_earlier: bool,
    ) -> io::Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let why = || io::Error::new(io::ErrorKind::InvalidInput, "the path of the cache is too long");
        let table = PathText::new(table.as_os_str().as_bytes()).ok_or_else(why)?;
        let file = MappedFile::create(path, TRACE_BYTES)?;
        let counts = [const { AtomicU64::new(0) }; OpenKind::COUNT];
        let [served_bytes, next, read, unheard, unserved] = [0; 5].map(AtomicU64::new);
        let mut root = [const { Root::EMPTY }; MAX_ROOTS];
        for (to, name) in root.iter_mut().zip(roots) {
            *to = name.identity.root(&name.path)?;
        }
        let header = TraceHeader {
            magic: TRACE_MAGIC,
            table,
            served_bytes,
            next,
            read,
            counts,
            checks: AtomicU64::new(if is_earlier { CHECKS_EARLIER } else { 0 }),
            is_restricted: u64::from(is_restricted()),
            roots: roots.len().min(MAX_ROOTS) as u64,
            root,
            unheard,
            unserved,
            names: Default::default(),
        };
        // SAFETY: the file was made here, and nothing has a reference to it.
        unsafe { file.write(0, header) };
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

    /// Has each open of the run's programs compare the original from now on: its mounts have
    /// changed, or are not watched.
    pub(crate) fn mounts_changed(&self) {
        self.header().checks.fetch_or(CHECKS_MOUNTS, Ordering::AcqRel);
    }

    /// Notes that no process reads the records any more, so no program waits for a copy.
    pub(crate) fn ends(&self) {
        self.header().unheard.store(1, Ordering::Release);
    }

    /// Notes that the copies were compared with their originals.
    pub(crate) fn compared(&self) {
        self.header().checks.fetch_and(!CHECKS_EARLIER, Ordering::AcqRel);
    }

    /// Whether the copies were not compared with their originals since the run has begun.
    pub(crate) fn is_earlier(&self) -> bool {
        self.header().checks.load(Ordering::Acquire) & CHECKS_EARLIER != 0
    }

    /// The number of opens with one result, so far.
    pub(crate) fn count(&self, kind: OpenKind) -> u64 {
        self.header().counts[kind as usize].load(Ordering::Relaxed)
    }

    /// The bytes of the files that its programs have got copies of.
    pub(crate) fn served_bytes(&self) -> u64 {
        self.header().served_bytes.load(Ordering::Relaxed)
    }

    /// Starts of programs that do not load the library, and the names of the first ones.
    pub(crate) fn unserved(&self) -> (u64, Vec<String>) {
        let names = self.header().names.iter().filter_map(ProgramName::bytes);
        let text = |bytes: [u8; _]| {
            let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(name).into_owned()
        };
        (self.header().unserved.load(Ordering::Relaxed), names.map(text).collect())
    }

    /// Notes that the first program of the run does not load the library, and whether it can.
    pub(crate) fn starts(&self, program: &Path) -> bool {
        use std::io::Read;
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::fs::OpenOptionsExt;
        let mut head = Vec::new();
        // The open of a named pipe would wait for its other end.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(program);
        let read = file.and_then(|file| file.take(PROGRAM_HEAD as u64).read_to_end(&mut head));
        let kind = read.map_or(ProgramKind::Unknown, |_| ProgramKind::of(&head));
        if matches!(kind, ProgramKind::Static | ProgramKind::Foreign) {
            self.header().starts_unserved(program.as_os_str().as_bytes());
        }
        kind != ProgramKind::Foreign
    }

    fn records(&self) -> &[OpenRecord] {
        // SAFETY: the file is as long as a trace, and records are atomic.
        unsafe { self.file.slice(TRACE_HEADER_BYTES, RECORDS as usize) }
    }

    /// Gives each new record to `each`: the hash of the path, and the result of the open.
    /// Overwritten records are lost.
    pub(crate) fn read(&mut self, mut each: impl FnMut(u64, OpenKind)) -> u64 {
        let records = self.records();
        let next = self.header().next.load(Ordering::Acquire);
        // An earlier host may have read some.
        let mut read = self.header().read.load(Ordering::Relaxed).max(next.saturating_sub(RECORDS));
        let begun = read;
        let mut missing = self.missing;
        while read < next {
            let record = &records[(read % RECORDS) as usize];
            let number = record.kind.swap(0, Ordering::Acquire);
            if number == 0 {
                // Its program has the number and has not written yet, or has died.
                let since = missing.filter(|(number, _)| *number == read).map(|(_, since)| since);
                let is_lost = since.is_some_and(|since| since.elapsed() > LOST);
                if !is_lost {
                    missing = Some((read, since.unwrap_or_else(Instant::now)));
                    break;
                }
            }
            let kind = OpenKind::ALL.into_iter().find(|kind| *kind as u64 == number);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_for_other_processors_cannot_load_the_library() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let trace = Trace::create(&path, &directory.path().join("table"), &[], true).unwrap();
        let program = directory.path().join("program");
        // The class of 32 bits.
        std::fs::write(&program, [b"\x7fELF\x01".as_slice(), &[0; PROGRAM_HEAD]].concat()).unwrap();
        assert!(!trace.starts(&program));
        assert!(trace.starts(&std::env::current_exe().unwrap()) && trace.starts(directory.path()));
        assert_eq!(trace.unserved(), (1, vec!["program".to_owned()]));
    }

    #[test]
    fn changed_mounts_are_not_forgotten_after_a_comparison() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let trace = Trace::create(&path, &directory.path().join("table"), &[], true).unwrap();
        assert!(trace.is_earlier());
        trace.mounts_changed();
        trace.compared();
        assert!(!trace.is_earlier());
        assert_eq!(trace.header().checks.load(Ordering::Relaxed), CHECKS_MOUNTS);
    }
}
