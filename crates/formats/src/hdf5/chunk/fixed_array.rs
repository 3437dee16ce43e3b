//! Fixed arrays of chunks: the index of datasets without an unlimited dimension.

use super::found::Found;
use crate::FormatError;
use crate::hdf5::cursor::bytes_of_bits;
use crate::hdf5::file::File;

/// Reads the header and the data block of an array.
pub(super) async fn read(file: &File<'_>, at: u64, found: &mut Found<'_>) -> Result<(), FormatError> {
    let head = file.read_part(at, 64).await?;
    let mut cursor = file.cursor("fixed array", at, &head);
    cursor.signature(b"FAHD")?;
    cursor.version(0)?;
    cursor.skip(1)?;
    let width = usize::from(cursor.u8()?);
    found.check(width, &cursor)?;
    let page = 1u64.checked_shl(cursor.u8()?.into());
    let count = cursor.length()?;
    let block = cursor.address()?;
    cursor.checksum()?;
    let Some(block) = block else { return Ok(()) };
    let page = page.ok_or_else(|| cursor.damaged("its pages are too large"))?;
    if count > file.size() {
        return Err(cursor.damaged("it has more elements than the file has bytes"));
    }
    let pages = if count > page { count.div_ceil(page) } else { 0 };
    let sums = 4 * (pages + 1);
    let prefix = 6 + file.widths().offset as u64 + pages.div_ceil(8);
    let elements = count.saturating_mul(width as u64);
    let bytes = file.read(block, elements.saturating_add(prefix + sums)).await?;
    let mut cursor = file.cursor("fixed array", block, &bytes);
    cursor.signature(b"FADB")?;
    cursor.version(0)?;
    cursor.skip(1 + file.widths().offset)?;
    if pages == 0 {
        for slot in 0..count {
            found.element(slot, width, &mut cursor)?;
        }
        return cursor.checksum();
    }
    let initialised = cursor.take(bytes_of_bits(pages))?;
    cursor.checksum()?;
    for number in 0..pages {
        let slots = number * page..count.min((number + 1) * page);
        // A page that was never written has no valid elements.
        let mut page = cursor.part((slots.end - slots.start) as usize * width + 4)?;
        if initialised[(number / 8) as usize] << (number % 8) & 0x80 != 0 {
            for slot in slots {
                found.element(slot, width, &mut page)?;
            }
            page.checksum()?;
        }
    }
    Ok(())
}
