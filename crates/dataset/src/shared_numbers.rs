//! The numbers of a large catalog, once in memory for all processes of a user.
//!
//! Every rank of a node opens the catalog of a run. With 10^8 samples its numbers take more than a
//! gigabyte. So the first process puts its numbers into a sealed file in memory (`memfd`), and a
//! link with the catalog's checksum as its name leads to this file. Each further process decodes
//! its catalog as always, finds the link, compares its own numbers with those in the file, and uses
//! the file's where they are equal. So nothing is believed: neither a link that another program
//! made nor a file of other numbers can change a catalog. A process that finds no file shares its
//! own. The price: a process has its numbers twice for a moment, and the comparison reads them all
//! once, which takes a tenth of a second per gigabyte.
//!
//! A process that ends removes its link. A link of a killed process leads nowhere, and the next
//! process that shares a catalog removes it. Links lead through `/proc`, so their names have the
//! namespace of processes. The memory lives as long as a process has it mapped,
//! and counts for the process that made it.

use std::fs::{DirBuilder, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use foreread_tier::{memory_file, user_directory};
use memmap2::Mmap;

use crate::shared_file;

/// Numbers of fewer bytes are not shared: a page of the system's tables and a descriptor for each
/// small catalog cost more than they save.
const LEAST: u64 = 4 << 20;

/// The directory of links in the [user's](user_directory).
const LINKS: &str = "catalogs";

/// The buffer of the file that is written, in bytes.
const BUFFER: usize = 1 << 20;

/// A part of a catalog with columns.
pub(crate) trait PackedColumns {
    /// Calls `visit` with the bytes of each column, always in the same order.
    fn each_column(&mut self, visit: &mut dyn FnMut(&mut Bytes));
}

impl<T: PackedColumns> PackedColumns for Option<T> {
    fn each_column(&mut self, visit: &mut dyn FnMut(&mut Bytes)) {
        if let Some(columns) = self {
            columns.each_column(visit);
        }
    }
}

impl<T: PackedColumns, const N: usize> PackedColumns for [&mut T; N] {
    fn each_column(&mut self, visit: &mut dyn FnMut(&mut Bytes)) {
        self.iter_mut().for_each(|columns| columns.each_column(visit));
    }
}

/// Shares the numbers of the catalog with this checksum. Without a place for the link, or memory
/// for the file, they stay as they are.
pub(crate) fn share(checksum: &str, columns: &mut impl PackedColumns) {
    let links = user_directory().join(LINKS);
    if let Err(error) = share_in(&links, checksum, LEAST, columns) {
        tracing::debug!(%error, links = %links.display(), "the numbers of a catalog are not shared");
    }
}

/// How the names of this namespace's links end.
fn ending() -> io::Result<String> {
    let namespace = std::fs::read_link("/proc/self/ns/pid")?;
    let number: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    Ok(format!(".{number}"))
}

fn share_in(links: &Path, checksum: &str, least: u64, columns: &mut impl PackedColumns) -> io::Result<()> {
    let mut length = 0;
    columns.each_column(&mut |column| length += column.len() as u64);
    if length < least {
        return Ok(());
    }
    let ending = ending()?;
    let link = links.join(format!("{checksum}{ending}"));
    if let Some(file) = shared_file::open(&link)
        && file.metadata()?.len() == length
    {
        replace(columns, &SharedNumbers::mapped(file, None)?.into_bytes());
        return Ok(());
    }
    let mut file = BufWriter::with_capacity(BUFFER, File::from(memory_file("foreread-catalog-numbers")?));
    let mut written = Ok(());
    columns.each_column(&mut |column| {
        if written.is_ok() {
            written = file.write_all(column);
        }
    });
    written?;
    let file = file.into_inner().map_err(|error| error.into_error())?;
    shared_file::seal(&file)?;
    publish(&file, &link, &ending)?;
    replace(columns, &SharedNumbers::mapped(file, Some(link))?.into_bytes());
    Ok(())
}

/// Uses the shared bytes in place of equal ones.
fn replace(columns: &mut impl PackedColumns, shared: &Bytes) {
    let mut start = 0;
    columns.each_column(&mut |column| {
        let place = start..start + column.len();
        start = place.end;
        if !place.is_empty() && shared.get(place.clone()) == Some(&**column) {
            *column = shared.slice(place);
        }
    });
}

/// Makes `link` lead to the file. A link to another one is replaced, and links that lead nowhere
/// are removed.
fn publish(file: &File, link: &Path, ending: &str) -> io::Result<()> {
    let Some((target, links)) = shared_file::path(file).zip(link.parent()) else { return Ok(()) };
    for directory in links.parent().into_iter().chain([links]) {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    for other in std::fs::read_dir(links)?.flatten() {
        let (is_own, path) = (other.file_name().to_string_lossy().ends_with(ending), other.path());
        if is_own && shared_file::open(&path).is_none() {
            // Another process may have removed it.
            drop(std::fs::remove_file(path));
        }
    }
    let new = links.join(format!(".{}{ending}", std::process::id()));
    symlink(target, &new)?;
    std::fs::rename(&new, link)
}

/// A sealed file in memory, mapped.
#[derive(Debug)]
struct SharedNumbers {
    map: Mmap,
    /// Open for others, which find it by the link.
    _file: File,
    link: Option<(PathBuf, PathBuf)>,
}

impl SharedNumbers {
    /// Maps a file that is [sealed](shared_file::is_sealed), and owns its link.
    fn mapped(file: File, link: Option<PathBuf>) -> io::Result<Self> {
        if !shared_file::is_sealed(&file) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // SAFETY: the file is sealed against writing, shrinking and growing, and seals are never
        // taken away. So nobody changes the bytes, and no access lies beyond the file's end.
        let map = unsafe { Mmap::map(&file)? };
        let link = link.and_then(|link| Some((shared_file::path(&file)?, link)));
        Ok(Self { map, _file: file, link })
    }

    fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for SharedNumbers {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for SharedNumbers {
    fn drop(&mut self) {
        // A forked child has another path for its descriptor, and keeps its parent's link.
        if let Some((target, link)) = &self.link
            && shared_file::path(&self._file).as_ref() == Some(target)
            && std::fs::read_link(link).is_ok_and(|found| found == *target)
        {
            drop(std::fs::remove_file(link));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Columns(Vec<Bytes>);

    impl PackedColumns for Columns {
        fn each_column(&mut self, visit: &mut dyn FnMut(&mut Bytes)) {
            self.0.iter_mut().for_each(visit);
        }
    }

    fn columns(texts: &[&'static str]) -> Columns {
        Columns(texts.iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect())
    }

    fn places(columns: &Columns) -> Vec<*const u8> {
        columns.0.iter().map(|column| column.as_ptr()).collect()
    }

    #[test]
    // semantics: SAMPLE-35
    fn equal_numbers_are_shared_and_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let links = directory.path().join("user/catalogs");
        let (texts, other) = (["abc", "", "defg", "hi"], ["abc", "", "DEFG", "hi"]);
        std::fs::create_dir(links.parent().unwrap()).unwrap();
        let mut first = columns(&texts);
        share_in(&links, "sum", 100, &mut first).unwrap();
        assert!(!links.exists(), "few bytes are not shared");
        share_in(&links, "sum", 1, &mut first).unwrap();
        assert_eq!(first.0, columns(&texts).0);
        let replaced = |columns: &mut Columns| {
            let own = places(columns);
            share_in(&links, "sum", 1, columns).unwrap();
            own.iter().zip(places(columns)).map(|(own, new)| *own != new).collect::<Vec<_>>()
        };
        let mut second = columns(&texts);
        assert_eq!(replaced(&mut second), [true, false, true, true]);
        assert_eq!(second.0, first.0);
        // As many bytes, of which some differ.
        let mut third = columns(&other);
        assert_eq!(replaced(&mut third), [true, false, false, true]);
        assert_eq!(third.0, columns(&other).0);
        // The memory outlives the process that made it, and its link does not.
        drop(first);
        assert_eq!(second.0, columns(&texts).0);
        assert_eq!(std::fs::read_dir(&links).unwrap().count(), 0);
    }

    #[test]
    fn links_that_lead_nowhere_are_replaced_and_removed() {
        let links = tempfile::tempdir().unwrap();
        let links = links.path().join("catalogs");
        std::fs::create_dir(&links).unwrap();
        let ending = ending().unwrap();
        let link = |name: &str| links.join(format!("{name}{ending}"));
        symlink("/proc/self/fd/99999", link("sum")).unwrap();
        symlink("/proc/self/fd/99998", link("killed")).unwrap();
        symlink("/proc/self/fd/99998", links.join("sum.1")).unwrap();
        // A file that can be changed.
        std::fs::write(link("file"), "abc").unwrap();
        let (mut own, mut other) = (columns(&["abc"]), columns(&["abc"]));
        share_in(&links, "file", 1, &mut own).unwrap();
        share_in(&links, "sum", 1, &mut other).unwrap();
        let found = || {
            let names = std::fs::read_dir(&links).unwrap().map(|entry| entry.unwrap().path());
            std::collections::BTreeSet::from_iter(names)
        };
        assert_eq!(found(), [link("file"), link("sum"), links.join("sum.1")].into());
        drop((own, other));
        // That of another namespace may lead somewhere there.
        assert_eq!(found(), [links.join("sum.1")].into());
    }

    #[test]
    fn numbers_without_a_place_for_links_stay() {
        let mut own = columns(&["abc"]);
        let before = places(&own);
        assert!(share_in(Path::new("/proc/none/catalogs"), "sum", 1, &mut own).is_err());
        assert_eq!(places(&own), before);
    }
}
