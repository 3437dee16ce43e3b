//! A catalog's bytes in memory that processes of a machine share.
//!
//! A catalog that was listed or received has its whole file in memory. Eight ranks of a node would
//! have it eight times. So one process puts it into a sealed file in memory (`memfd`), and the
//! others read texts there. They have decoded the catalog themselves, and check each group of texts
//! against their own checksums. So a file of other bytes costs an error, and never a wrong name.
//! The price: a text is read by a system call. That takes less than a microsecond.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use foreread_tier::memory_file;
use rustix::fs::{OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals};

const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW);

/// A file in memory with these bytes, which cannot be changed.
pub(crate) fn create(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memory_file("foreread-catalog", bytes.len() as u64)?);
    file.write_all(bytes)?;
    seal(&file)?;
    Ok(file)
}

/// Seals a file in memory against every change.
pub(crate) fn seal(file: &File) -> io::Result<()> {
    Ok(fcntl_add_seals(file, SEALS | SealFlags::SEAL)?)
}

/// The path by which other processes of the user open a file in memory. `None` for other files.
pub(crate) fn path(file: &File) -> Option<PathBuf> {
    is_sealed(file).then(|| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into())
}

/// Whether it is sealed against every change.
pub(crate) fn is_sealed(file: &File) -> bool {
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS))
}

/// Opens such a file. `None` if it is another one, or this process may not open it.
pub(crate) fn open(path: &Path) -> Option<File> {
    // The target may be a pipe, or a terminal.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    is_sealed(&file).then_some(file)
}

#[cfg(test)]
mod tests {
    use foreread_tier::Object;
    use foreread_types::SampleId;

    use crate::{Catalog, DatasetErrorKind};

    fn catalog(names: &str) -> Catalog {
        let object =
            |number: usize| Object { path: format!("{names}/{number:05}").into(), size: 10, version: None };
        Catalog::from_objects("/data", (0..3000).map(object)).unwrap()
    }

    #[test]
    // semantics: RANK-25
    fn catalog_reads_its_names_from_shared_memory() {
        let own = catalog("a");
        let hosted = own.clone().in_shared_memory().unwrap();
        let path = hosted.shared_memory().unwrap();
        assert!(own.shared_memory().is_none());
        let shared = own.clone().sharing(&path).unwrap();
        drop(hosted);
        // It waits for no file server.
        assert!(!shared.reads_entries());
        // The descriptor keeps the memory.
        for id in [0, 1, 2999].map(SampleId) {
            assert_eq!(shared.path(id).unwrap(), own.path(id).unwrap());
            assert_eq!(shared.entry(id).unwrap(), own.entry(id).unwrap());
        }
        assert_eq!(shared.to_bytes().unwrap(), own.to_bytes().unwrap());
        assert_eq!(shared.fingerprint(), own.fingerprint());
    }

    #[test]
    // semantics: RANK-25
    fn shared_memory_of_another_catalog_gives_no_wrong_name() {
        let (own, other) = (catalog("a"), catalog("b"));
        let hosted = other.in_shared_memory().unwrap();
        let shared = own.clone().sharing(&hosted.shared_memory().unwrap()).unwrap();
        assert_eq!(shared.path(SampleId(7)).unwrap_err().kind(), DatasetErrorKind::Changed);
        // Of another length, no file in memory, or none at all.
        let longer = catalog("longer").in_shared_memory().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), own.to_bytes().unwrap()).unwrap();
        let none = std::path::Path::new("/proc/self/fd/9999");
        for path in [longer.shared_memory().as_deref().unwrap(), file.path(), none] {
            assert!(own.sharing(path).is_none(), "{path:?}");
        }
    }
}
