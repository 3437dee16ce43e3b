//! Writing a catalog file: its beginning and its end.

use std::io::Write;

use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, Schema};

use crate::catalog_file::checksum::{checksum, checksum_digits};
use crate::catalog_file::fault::CatalogFault;
use crate::catalog_file::keys::{CHECKSUM_BLANK, CHECKSUM_KEY, CHECKSUM_PREFIX};

/// Rows per batch. A million samples take few batches, and the text of a batch is far below the
/// 31-bit limit of its length.
pub(crate) const ROWS: usize = 65_536;

/// Creates a writer for batches of this schema, which has the catalog's metadata.
pub(crate) fn begin_with<W: Write>(schema: &Schema, out: W) -> Result<FileWriter<W>, ArrowError> {
    let mut writer = FileWriter::try_new(out, schema)?;
    let blank = String::from_utf8_lossy(&CHECKSUM_BLANK);
    writer.write_metadata(CHECKSUM_KEY, format!("{CHECKSUM_PREFIX}{blank}"));
    Ok(writer)
}

/// The written bytes, with their checksum.
pub(crate) fn finish(mut writer: FileWriter<Vec<u8>>) -> Result<Vec<u8>, ArrowError> {
    writer.finish()?;
    let mut bytes = writer.into_inner()?;
    let damaged = |fault: CatalogFault| ArrowError::IpcError(fault.why);
    let digits = checksum_digits(&bytes).map_err(damaged)?;
    let sum = checksum(&bytes, &digits);
    bytes[digits].copy_from_slice(sum.as_bytes());
    Ok(bytes)
}
