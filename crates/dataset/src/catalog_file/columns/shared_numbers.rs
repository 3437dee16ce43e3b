//! The numbers of a large catalog, once in memory for all processes of a user.
//!
//! Every rank of a node opens the catalog of a run. With 10^8 samples its numbers take more than a
//! gigabyte. So the first process puts its numbers into a sealed file in memory (`memfd`). A link
//! that is named by the catalog's checksum leads to this file. Each further process decodes its
//! catalog as always, finds the link, and compares its own numbers with those in the file. It uses
//! the file's numbers where they are equal. So nothing is believed: a file of other numbers cannot
//! change a catalog. A process that finds no file shares its own. The price: a process has its
//! numbers twice for a moment. The comparison reads them all once, which takes a tenth of a second
//! per gigabyte.
//!
//! The links are in a directory that no other user can change, because opening a file that another
//! one chooses may do harm. The directory is locked while a process looks for a file and publishes
//! its own, so that ranks that start together share one.
//!
//! A process that ends removes its link. A link of a killed process leads nowhere, and the next
//! process that shares a catalog removes it. Links lead through `/proc`, so their names have the
//! namespace of processes. The memory lives as long as a process has it mapped, and counts for the
//! process that made it.

use std::fs::{File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use foreread_tier::{lasting_descriptor, memory_file, private_user_directory};
use memmap2::{Mmap, MmapOptions};

use crate::disk::shared_file;

/// Numbers of fewer bytes are not shared: a mapping and a descriptor for each small catalog cost
/// more than they save.
const LEAST: u64 = 4 << 20;

/// The directory of links in the [user's](foreread_tier::user_directory).
const LINKS: &str = "catalogs";

/// How long another process may hold the directory, and how often this one looks. A process that
/// waits longer keeps its own numbers.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// The age at which links of other namespaces and boots are removed.
const OLD: Duration = Duration::from_secs(7 * 24 * 3600);

/// The buffer of the file that is written, in bytes. Longer columns are written without it.
const BUFFER: usize = 64 << 10;

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
    let length = length_of(columns);
    if length < LEAST {
        return;
    }
    let shared = private_user_directory(LINKS).and_then(|links| share_in(&links, checksum, length, columns));
    if let Err(error) = shared {
        tracing::debug!(%error, "the numbers of a catalog are not shared");
    }
}

fn length_of(columns: &mut impl PackedColumns) -> u64 {
    let mut length = 0;
    columns.each_column(&mut |column| length += column.len() as u64);
    length
}

fn share_in(links: &Path, checksum: &str, length: u64, columns: &mut impl PackedColumns) -> io::Result<()> {
    let ending = ending()?;
    let link = links.join(format!("{checksum}{ending}"));
    let locked = LockedLinks::take(links)?;
    let (shared, is_own) = match published(&link, length) {
        Some(file) => (SharedNumbers::mapped(&file)?, false),
        None => {
            let file = written(columns, length)?;
            let shared = SharedNumbers::mapped(&file)?;
            let many = || io::Error::other("too many descriptors are open");
            let file = File::from(lasting_descriptor(OwnedFd::from(file)).ok_or_else(many)?);
            (SharedNumbers { _link: publish(file, link, &ending)?, ..shared }, true)
        }
    };
    drop(locked);
    replace(columns, &Bytes::from_owner(shared), is_own);
    Ok(())
}

/// How the names of the links end that this process can follow.
fn ending() -> io::Result<String> {
    let namespace = std::fs::read_link("/proc/self/ns/pid")?;
    let number: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(format!(".{number}.{}", boot.trim()))
}

/// The directory of links, which no other process changes meanwhile.
struct LockedLinks(File);

impl LockedLinks {
    /// Waits for other processes. A file system without locks gives no protection.
    fn take(links: &Path) -> io::Result<Self> {
        let directory = File::open(links)?;
        let begun = Instant::now();
        loop {
            match directory.try_lock() {
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(Self(directory)),
                Err(TryLockError::WouldBlock) if begun.elapsed() > LOCK_TIMEOUT => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK_AGAIN),
            }
        }
    }
}

impl Drop for LockedLinks {
    fn drop(&mut self) {
        // A forked child may have the descriptor, too. Without locks there is nothing to unlock.
        drop(self.0.unlock());
    }
}

/// Whether a link leads to a descriptor of a process.
fn leads_to_descriptor(link: &Path) -> bool {
    let target = std::fs::read_link(link).unwrap_or_default();
    let parts: Vec<&str> = target.to_str().unwrap_or_default().split('/').collect();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    matches!(parts[..], ["", "proc", process, "fd", number] if is_number(process) && is_number(number))
}

/// The numbers of this length that another process has published.
fn published(link: &Path, length: u64) -> Option<File> {
    let file = leads_to_descriptor(link).then(|| shared_file::open(link)).flatten()?;
    (file.metadata().ok()?.len() == length).then_some(file)
}

/// A sealed file with the bytes of all columns.
fn written(columns: &mut impl PackedColumns, length: u64) -> io::Result<File> {
    let file = File::from(memory_file("foreread-catalog-numbers", length)?);
    let mut out = BufWriter::with_capacity(BUFFER, file);
    let mut written = Ok(());
    columns.each_column(&mut |column| {
        if written.is_ok() {
            written = out.write_all(column);
        }
    });
    written?;
    let file = out.into_inner().map_err(|error| error.into_error())?;
    shared_file::seal(&file)?;
    Ok(file)
}

/// Uses the shared bytes in place of equal ones. Bytes that this process has written are equal.
fn replace(columns: &mut impl PackedColumns, shared: &Bytes, is_own: bool) {
    let mut start = 0;
    columns.each_column(&mut |column| {
        let place = start..start + column.len();
        start = place.end;
        let is_equal = || is_own || shared.get(place.clone()) == Some(&**column);
        if !place.is_empty() && is_equal() {
            *column = shared.slice(place);
        }
    });
}

/// Makes `link` lead to the file. A link to another one is replaced, and links that lead nowhere
/// are removed.
fn publish(file: File, link: PathBuf, ending: &str) -> io::Result<Option<PublishedLink>> {
    let Some((target, links)) = shared_file::path(&file).zip(link.parent()) else { return Ok(None) };
    for other in std::fs::read_dir(links)?.flatten() {
        let path = other.path();
        let is_lost = if other.file_name().to_string_lossy().ends_with(ending) {
            std::fs::metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        } else {
            let written = std::fs::symlink_metadata(&path).and_then(|found| found.modified());
            written.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age > OLD))
        };
        if is_lost {
            // Another process may have removed it.
            drop(std::fs::remove_file(path));
        }
    }
    let new = links.join(format!(".{}{ending}", std::process::id()));
    symlink(&target, &new)?;
    std::fs::rename(&new, &link)?;
    Ok(Some(PublishedLink { file, target, link }))
}

/// A sealed file in memory, mapped.
#[derive(Debug)]
struct SharedNumbers {
    map: Mmap,
    /// Removed with the last use of the numbers.
    _link: Option<PublishedLink>,
}

impl SharedNumbers {
    /// Maps a file that is [sealed](shared_file::is_sealed).
    fn mapped(file: &File) -> io::Result<Self> {
        if !shared_file::is_sealed(file) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // SAFETY: the file is sealed against writing, shrinking and growing, and seals are never
        // taken away. So the bytes never change, and no access lies beyond the file's end.
        let map = unsafe { MmapOptions::new().populate().map(file)? };
        Ok(Self { map, _link: None })
    }
}

impl AsRef<[u8]> for SharedNumbers {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

/// A link by which other processes find the file. It is removed when this is dropped.
#[derive(Debug)]
struct PublishedLink {
    file: File,
    target: PathBuf,
    link: PathBuf,
}

impl Drop for PublishedLink {
    fn drop(&mut self) {
        let Self { file, target, link } = self;
        // A forked child has another path for its descriptor, and keeps its parent's link.
        if shared_file::path(file).as_ref() == Some(target)
            && std::fs::read_link(&link).is_ok_and(|found| found == *target)
        {
            drop(std::fs::remove_file(link));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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

    fn share(links: &Path, name: &str, columns: &mut Columns) -> io::Result<()> {
        let length = length_of(columns);
        share_in(links, name, length, columns)
    }

    fn places(columns: &Columns) -> Vec<*const u8> {
        columns.0.iter().map(|column| column.as_ptr()).collect()
    }

    fn found(links: &Path) -> BTreeSet<PathBuf> {
        std::fs::read_dir(links).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    // semantics: SAMPLE-35
    fn equal_numbers_are_shared_and_others_stay() {
        let links = tempfile::tempdir().unwrap();
        let (texts, other) = (["abc", "", "defg", "hi"], ["abc", "", "DEFG", "hi"]);
        let replaced = |columns: &mut Columns| {
            let own = places(columns);
            share(links.path(), "sum", columns).unwrap();
            own.iter().zip(places(columns)).map(|(own, new)| *own != new).collect::<Vec<_>>()
        };
        let (mut first, mut second, mut third) = (columns(&texts), columns(&texts), columns(&other));
        assert_eq!(replaced(&mut first), [true, false, true, true]);
        assert_eq!(replaced(&mut second), [true, false, true, true]);
        assert_eq!(second.0, first.0);
        // As many bytes, of which some differ.
        assert_eq!(replaced(&mut third), [true, false, false, true]);
        assert_eq!(third.0, columns(&other).0);
        // The memory outlives the process that made it, and its link does not.
        drop(first);
        assert_eq!(second.0, columns(&texts).0);
        assert!(found(links.path()).is_empty());
    }

    #[test]
    // semantics: SAMPLE-35
    fn processes_that_start_together_share_one_file() {
        let links = tempfile::tempdir().unwrap();
        let text: &'static str = "0123456789".repeat(100_000).leak();
        let start = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            let open = || {
                let mut own = columns(&[text]);
                start.wait();
                share(links.path(), "sum", &mut own).unwrap();
                own
            };
            let all: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            let all: Vec<_> = all.into_iter().map(|thread| thread.join().unwrap()).collect();
            let files = |columns: &Columns| {
                // The file of a mapping, by its inode.
                let address = columns.0[0].as_ptr().addr();
                let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
                let of = maps.lines().find(|line| {
                    let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
                    let number = |text| usize::from_str_radix(text, 16).unwrap();
                    (number(from)..number(to)).contains(&address)
                });
                of.unwrap().split_whitespace().nth(4).unwrap().to_owned()
            };
            assert_eq!(all.iter().map(files).collect::<BTreeSet<_>>().len(), 1);
        });
    }

    #[test]
    fn links_that_lead_nowhere_are_replaced_and_removed() {
        let links = tempfile::tempdir().unwrap();
        let links = links.path();
        let ending = ending().unwrap();
        let link = |name: &str| links.join(format!("{name}{ending}"));
        symlink("/proc/self/fd/99999", link("sum")).unwrap();
        symlink("/proc/self/fd/99998", link("killed")).unwrap();
        symlink("/proc/1/fd/99998", links.join("sum.1")).unwrap();
        // A file that can be changed, and a number that is no descriptor.
        std::fs::write(link("file"), "abc").unwrap();
        let terminal = link("terminal");
        symlink("/dev/ptmx", &terminal).unwrap();
        let names = ["file", "sum", "terminal"];
        let shared = names.map(|name| {
            let mut own = columns(&["abc"]);
            share(links, name, &mut own).unwrap();
            own
        });
        let all = names.map(link).into_iter().chain([links.join("sum.1")]).collect();
        assert_eq!(found(links), all);
        assert!(leads_to_descriptor(&terminal));
        drop(shared);
        // That of another namespace may lead somewhere there.
        assert_eq!(found(links), [links.join("sum.1")].into());
    }

    #[test]
    fn numbers_stay_while_another_process_holds_the_links() {
        let links = tempfile::tempdir().unwrap();
        let held = LockedLinks::take(links.path()).unwrap();
        let mut own = columns(&["abc"]);
        let before = places(&own);
        let error = share(links.path(), "sum", &mut own).unwrap_err();
        assert_eq!((error.kind(), places(&own)), (io::ErrorKind::TimedOut, before));
        drop(held);
        share(links.path(), "sum", &mut own).unwrap();
    }
}
