//! More objects than are kept in memory: sorted runs in a file without a name, merged when they are
//! read.
//!
//! A listing of a hundred million objects would take tens of gigabytes. So the objects that are in
//! memory are sorted and written, whenever there are too many. A merge reads all runs at once, each
//! through a buffer of its own, and yields the objects in the order of samples. It can be repeated.
//! The price: about 80 bytes per object on disk, and a second per million objects and merge.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use foreread_tier::{FileChange, Object, Version};

use crate::names::{SplitName, compare};

/// The buffer of a run while runs are merged, in bytes.
const BUFFER: usize = 256 << 10;

/// The runs.
#[derive(Debug)]
pub(crate) struct ObjectRuns {
    file: File,
    /// The place of each run in the file.
    runs: Vec<Range<u64>>,
    objects: u64,
}

impl ObjectRuns {
    /// No objects, in a file of this directory that has no name.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub(crate) fn new(directory: &Path) -> io::Result<Self> {
        Ok(Self { file: tempfile::tempfile_in(directory)?, runs: Vec::new(), objects: 0 })
    }

    /// The number of objects.
    pub(crate) fn len(&self) -> u64 {
        self.objects
    }

    /// Writes objects as a run, and leaves none in the list.
    ///
    /// # Errors
    /// If the file cannot be written, for example because the disk is full.
    pub(crate) fn add(&mut self, objects: &mut Vec<Object>) -> io::Result<()> {
        objects.sort_unstable_by(by_name);
        let start = self.runs.last().map_or(0, |run| run.end);
        let mut out = BufWriter::with_capacity(BUFFER, &self.file);
        let (mut record, mut length) = (Vec::new(), 0);
        self.objects += objects.len() as u64;
        for object in objects.drain(..) {
            record.clear();
            encode(&object, &mut record)?;
            out.write_all(&record)?;
            length += record.len() as u64;
        }
        out.flush()?;
        self.runs.push(start..start + length);
        Ok(())
    }

    /// All objects, in the order of samples. An error ends them.
    pub(crate) fn merged(&self) -> MergedRuns<'_> {
        let open =
            |run: &Range<u64>| RunReader { file: &self.file, rest: run.clone(), buffer: Vec::new(), at: 0 };
        let readers = self.runs.iter().map(open).collect();
        MergedRuns { readers, next: BinaryHeap::new(), has_begun: false }
    }
}

fn by_name(a: &Object, b: &Object) -> Ordering {
    compare((&a.path, SplitName::of(&a.path)), (&b.path, SplitName::of(&b.path)))
}

/// The objects of all runs, by their names.
pub(crate) struct MergedRuns<'a> {
    readers: Vec<RunReader<'a>>,
    next: BinaryHeap<NextObject>,
    has_begun: bool,
}

/// The next object of a run. The greatest one is the first by name.
struct NextObject {
    object: Object,
    cut: SplitName,
    run: usize,
}

impl Ord for NextObject {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_name = compare((&other.object.path, other.cut), (&self.object.path, self.cut));
        by_name.then(other.run.cmp(&self.run))
    }
}

impl PartialOrd for NextObject {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for NextObject {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for NextObject {}

impl MergedRuns<'_> {
    fn fetch(&mut self, run: usize) -> io::Result<()> {
        if let Some(object) = self.readers[run].next()? {
            let cut = SplitName::of(&object.path);
            self.next.push(NextObject { object, cut, run });
        }
        Ok(())
    }

    fn advance(&mut self) -> io::Result<Option<Object>> {
        if !self.has_begun {
            self.has_begun = true;
            (0..self.readers.len()).try_for_each(|run| self.fetch(run))?;
        }
        let Some(NextObject { object, run, .. }) = self.next.pop() else { return Ok(None) };
        self.fetch(run)?;
        Ok(Some(object))
    }
}

impl Iterator for MergedRuns<'_> {
    type Item = io::Result<Object>;

    fn next(&mut self) -> Option<io::Result<Object>> {
        let next = self.advance().transpose();
        if matches!(next, Some(Err(_))) {
            self.next.clear();
            self.readers.clear();
        }
        next
    }
}

/// The rest of a run.
struct RunReader<'a> {
    file: &'a File,
    /// The bytes that are in the file and not in the buffer.
    rest: Range<u64>,
    buffer: Vec<u8>,
    at: usize,
}

impl RunReader<'_> {
    fn next(&mut self) -> io::Result<Option<Object>> {
        loop {
            match decode(&self.buffer[self.at..]) {
                Some((object, length)) => {
                    self.at += length;
                    return Ok(Some(object));
                }
                None if self.rest.is_empty() && self.at == self.buffer.len() => return Ok(None),
                None if self.rest.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
                None => self.fill()?,
            }
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        self.buffer.drain(..std::mem::take(&mut self.at));
        let held = self.buffer.len();
        let more = (self.rest.end - self.rest.start).min(BUFFER as u64);
        self.buffer.resize(held + more as usize, 0);
        self.file.read_exact_at(&mut self.buffer[held..], self.rest.start)?;
        self.rest.start += more;
        Ok(())
    }
}

/// Appends an object: the length of its path, the path, its size, its version. No other process
/// reads it.
fn encode(object: &Object, to: &mut Vec<u8>) -> io::Result<()> {
    let text = |text: &str, to: &mut Vec<u8>| {
        to.extend((text.len() as u32).to_le_bytes());
        to.extend(text.as_bytes());
    };
    text(&object.path, to);
    to.extend(object.size.to_le_bytes());
    match &object.version {
        None => to.push(0),
        Some(Version::ETag(tag)) => {
            to.push(1);
            text(tag, to);
        }
        Some(Version::Modified(time)) => {
            to.push(2);
            to.extend(time.to_le_bytes());
        }
        Some(Version::Written { modified, changed, location }) => {
            to.push(3);
            to.extend(modified.to_le_bytes());
            to.extend(location.to_le_bytes());
            let (kind, number) = match *changed {
                FileChange::Kept(number) => (0, number),
                FileChange::Claimed(number) => (1, number),
                FileChange::Elsewhere => (2, 0),
                FileChange::Indexed(digest) => (3, u64::from(digest)),
            };
            to.push(kind);
            to.extend(number.to_le_bytes());
        }
        Some(other) => {
            return Err(io::Error::other(format!(
                "{} has a version of another kind: {other:?}",
                object.path
            )));
        }
    }
    Ok(())
}

/// The first object in these bytes, and its length there. `None` if they have only a part of it.
fn decode(bytes: &[u8]) -> Option<(Object, usize)> {
    let mut rest = bytes;
    let path = text(&mut rest)?;
    let size = u64::from_le_bytes(taken(&mut rest)?);
    let [kind] = taken(&mut rest)?;
    let version = match kind {
        0 => None,
        1 => Some(Version::ETag(text(&mut rest)?)),
        2 => Some(Version::Modified(i64::from_le_bytes(taken(&mut rest)?))),
        _ => {
            let modified = i64::from_le_bytes(taken(&mut rest)?);
            let location = u32::from_le_bytes(taken(&mut rest)?);
            let [kind] = taken(&mut rest)?;
            let number = u64::from_le_bytes(taken(&mut rest)?);
            let changed = match kind {
                0 => FileChange::Kept(number),
                1 => FileChange::Claimed(number),
                2 => FileChange::Elsewhere,
                _ => FileChange::Indexed(number as u32),
            };
            Some(Version::Written { modified, changed, location })
        }
    };
    Some((Object { path, size, version }, bytes.len() - rest.len()))
}

fn taken<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, more) = rest.split_first_chunk()?;
    *rest = more;
    Some(*taken)
}

fn text(rest: &mut &[u8]) -> Option<Arc<str>> {
    let length = u32::from_le_bytes(taken(rest)?);
    let (text, more) = rest.split_at_checked(length as usize)?;
    *rest = more;
    // It was a text when it was written.
    Some(String::from_utf8_lossy(text).into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn versions() -> impl Strategy<Value = Option<Version>> {
        let changed = prop_oneof![
            any::<u64>().prop_map(FileChange::Kept),
            any::<u64>().prop_map(FileChange::Claimed),
            Just(FileChange::Elsewhere),
            any::<u32>().prop_map(FileChange::Indexed),
        ];
        let written = (any::<i64>(), changed, any::<u32>());
        prop_oneof![
            Just(None),
            ".{0,40}".prop_map(|tag| Some(Version::ETag(tag.into()))),
            any::<i64>().prop_map(|time| Some(Version::Modified(time))),
            written.prop_map(|(modified, changed, location)| {
                Some(Version::Written { modified, changed, location })
            }),
        ]
    }

    proptest! {
        #[test]
        // semantics: SAMPLE-34
        fn merged_runs_are_the_sorted_objects(
            paths in prop::collection::vec("[a-c]{1,2}(/[a-c-]{1,2}){0,2}", 0..60),
            others in prop::collection::vec((any::<u64>(), versions()), 60),
            run in 1_usize..20,
        ) {
            let objects: Vec<Object> = paths.iter().zip(others)
                .map(|(path, (size, version))| Object { path: path.as_str().into(), size, version })
                .collect();
            let mut runs = ObjectRuns::new(&std::env::temp_dir()).unwrap();
            for some in objects.chunks(run) {
                runs.add(&mut some.to_vec()).unwrap();
            }
            prop_assert_eq!(runs.len(), objects.len() as u64);
            let key = |object: &Object| (object.path.clone(), object.size, format!("{:?}", object.version));
            for _ in 0..2 {
                let merged: Vec<Object> = runs.merged().collect::<io::Result<_>>().unwrap();
                prop_assert!(merged.is_sorted_by(|a, b| by_name(a, b).is_le()));
                let (mut found, mut expected): (Vec<_>, Vec<_>) =
                    (merged.iter().map(key).collect(), objects.iter().map(key).collect());
                found.sort();
                expected.sort();
                prop_assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn long_runs_are_read_in_pieces() {
        let path = |number: usize| format!("{:0100}/{}", number, "x".repeat(number % 3000));
        let object = |number| Object { path: path(number).into(), size: number as u64, version: None };
        let mut runs = ObjectRuns::new(&std::env::temp_dir()).unwrap();
        for first in 0..2 {
            runs.add(&mut (0..3000).rev().map(|number| object(2 * number + first)).collect()).unwrap();
        }
        let sizes: Vec<u64> = runs.merged().map(|object| object.unwrap().size).collect();
        assert_eq!(sizes, (0..6000).collect::<Vec<_>>());
    }
}
