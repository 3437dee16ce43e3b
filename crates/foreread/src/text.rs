//! Small text files that people name: settings, states.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Far more than any such file holds.
const MAX_BYTES: u64 = 16 << 20;

/// The text of a regular file. A pipe or a device in its place is an error, and not waited for.
///
/// # Errors
/// If it is not a regular file, cannot be read, or is not UTF-8 ([`ErrorKind::InvalidData`]).
pub fn read(path: &Path) -> Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut text = String::new();
    File::open(path)?.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}
