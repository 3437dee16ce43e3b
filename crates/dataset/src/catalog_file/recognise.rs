//! Recognises a catalog by its content, whatever its name is.
//!
//! A catalog is an Arrow file, and other Arrow files are datasets. Only the metadata of the schema
//! distinguish them. The schema is stored twice: at the beginning of the file and in its footer.
//! One of the two suffices, so a truncated or damaged catalog is recognised, too. Opening it then
//! reports the damage. The price is a read of 64 KiB where an Arrow file is named.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::catalog_file::keys::{BASE_URL_KEY, FINGERPRINT_KEY, LISTING_KEY, MAGIC, VERSION_KEY};

/// The bytes at the beginning of a file in which its schema is searched.
pub(crate) const HEAD: usize = 64 << 10;

/// The longest footer that is searched.
const MAX_FOOTER: u64 = 64 << 20;

/// The mark before each message. The schema's follows the magic and its padding of up to 64 bytes.
const MARK: [u8; 4] = [0xFF; 4];
const MAX_PADDING: usize = 64;

/// Whether a schema has the keys of a catalog. Several keys are tried, because one may be damaged.
fn has_keys(schema: &[u8]) -> bool {
    [VERSION_KEY, FINGERPRINT_KEY, BASE_URL_KEY, LISTING_KEY]
        .iter()
        .any(|key| schema.windows(key.len()).any(|text| text == key.as_bytes()))
}

/// Whether a file that begins with these bytes is a catalog.
pub(crate) fn begins_a_catalog(head: &[u8]) -> bool {
    let schema = (MARK.len()..=MAX_PADDING).step_by(MARK.len()).find_map(|at| {
        let (length, schema) = head.get(at..)?.strip_prefix(&MARK)?.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        Some(&schema[..length.min(schema.len())])
    });
    // Without the mark there is damage, and the whole beginning is searched.
    head.starts_with(MAGIC) && has_keys(schema.unwrap_or(head))
}

/// Whether a file is a catalog, complete or not.
pub(crate) fn is_catalog(file: &File) -> std::io::Result<bool> {
    /// The length of the file's end: the footer's length and the magic.
    const TAIL: u64 = 4 + MAGIC.len() as u64;
    let length = file.metadata()?.len();
    let mut head = vec![0; length.min(HEAD as u64) as usize];
    file.read_exact_at(&mut head, 0)?;
    if begins_a_catalog(&head) {
        return Ok(true);
    }
    let Some(end) = length.checked_sub(TAIL) else { return Ok(false) };
    let mut tail = [0; TAIL as usize];
    file.read_exact_at(&mut tail, end)?;
    let Some((footer, magic)) = tail.split_first_chunk::<4>() else { return Ok(false) };
    let footer = u64::from(u32::from_le_bytes(*footer));
    if magic != MAGIC || footer > end.min(MAX_FOOTER) {
        return Ok(false);
    }
    let mut bytes = vec![0; footer as usize];
    file.read_exact_at(&mut bytes, end - footer)?;
    Ok(has_keys(&bytes))
}

#[cfg(test)]
mod tests {
    use foreread_tier::Object;

    use crate::Catalog;

    #[test]
    // semantics: SAMPLE-19
    fn damaged_catalog_is_recognised_whatever_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.arrow");
        let object = Object { path: "cat/1.jpg".into(), size: 3, version: None };
        let bytes = Catalog::from_objects("/data", [object]).unwrap().to_bytes().unwrap();
        let is_one = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Catalog::is_catalog_file(&path)
        };
        assert!(is_one(&bytes));
        for cut in [1, bytes.len() / 4, bytes.len() / 2] {
            assert!(is_one(&bytes[..bytes.len() - cut]), "{cut}");
        }
        for at in (0..bytes.len()).step_by(7) {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0x20;
            assert!(is_one(&damaged), "byte {at}");
            assert!(Catalog::open(&path).is_err(), "byte {at}");
        }
        assert!(!is_one(b"") && !is_one(b"ARROW1") && !is_one(&[0; 100]));
    }
}
