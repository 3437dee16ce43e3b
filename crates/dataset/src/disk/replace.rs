//! Atomic replacement of a file.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{Error, Result, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Replaces a file in one step: writes a temporary file in the same directory, then renames it. A
/// reader sees the old file or the new one, also after a loss of power.
///
/// The temporary name cannot be guessed and is never that of an existing file. A link at `path` is
/// replaced and not followed.
///
/// # Errors
/// The error of the system. The old file, if there is one, is then unchanged.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_file_with(path, |file| file.write_all(bytes))
}

/// [`replace_file`] with the bytes that `write` writes.
pub(crate) fn replace_file_with(path: &Path, write: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let name = path.file_name().ok_or_else(|| Error::other("the path has no file name"))?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    let mut file = tempfile::Builder::new()
        .prefix(&prefix)
        // As for any new file, the umask is applied.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory)?;
    write(file.as_file_mut())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    // Makes the rename durable, where directories can be flushed.
    if let Err(error) = File::open(directory).and_then(|directory| directory.sync_all()) {
        tracing::debug!(%error, path = %path.display(), "the directory cannot be flushed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    // semantics: FAIL-26
    fn planted_links_are_replaced_and_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, precious) = (directory.path().join("c"), directory.path().join("precious"));
        std::fs::write(&precious, "precious").unwrap();
        symlink(&precious, &path).unwrap();
        // The temporary name of earlier versions.
        let guessed = directory.path().join(format!(".c.{}", std::process::id()));
        symlink(&precious, &guessed).unwrap();
        replace_file(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 3, "a temporary file was left");
    }

    #[test]
    // semantics: FAIL-26
    fn failed_replacement_leaves_what_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c");
        std::fs::create_dir(&path).unwrap();
        replace_file(&path, b"new").unwrap_err();
        assert!(path.is_dir());
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "a temporary file was left");
    }
}
