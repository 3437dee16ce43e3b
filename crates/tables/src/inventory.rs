//! Lists of the objects of a bucket, which stand for a listing: AWS's inventories, and tables.
//!
//! AWS writes an inventory as a `manifest.json` and compressed files, as CSV without names of
//! columns or as Parquet. Keys in its CSV files are encoded as in URLs, with `+` for a space. Old
//! versions and deleted objects are rows as well, and are left out. ORC files are not read. Any
//! table with the columns `key`, `size` and, if known, `etag` is an inventory, too. The price: a
//! file is in memory, decompressed, while it is read, and the rows of one of JSON or Arrow, too.

use std::io::Read;

use arrow_array::Array;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use foreread_dataset::{DatasetError, DatasetErrorKind};
use foreread_types::setting;
use serde::Deserialize;

use crate::column;
use crate::{SampleTable, TableKind};

/// An object in an inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InventoryObject {
    /// The key in its bucket.
    pub key: String,
    /// Its length in bytes.
    pub size: u64,
    /// Its ETag, without quotes.
    pub etag: Option<String>,
}

/// An inventory that AWS has written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InventoryManifest {
    /// The bucket that is listed.
    pub bucket: String,
    /// The keys of its files, in the bucket of the manifest.
    pub files: Vec<String>,
    kind: TableKind,
    /// The names of the columns, of files that lack them.
    columns: Vec<String>,
}

/// The JSON of a manifest.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestJson {
    source_bucket: String,
    file_format: String,
    #[serde(default)]
    file_schema: String,
    files: Vec<ManifestFile>,
}

#[derive(Deserialize)]
struct ManifestFile {
    key: String,
}

impl InventoryManifest {
    /// Whether a file of this name is a manifest.
    pub fn is_named(name: &str) -> bool {
        name.rsplit('/').next() == Some("manifest.json")
    }

    /// Reads a `manifest.json`.
    ///
    /// # Errors
    /// [`DatasetErrorKind::Invalid`] for other JSON, [`DatasetErrorKind::Unsupported`] for ORC.
    pub fn read(name: &str, bytes: &[u8]) -> Result<Self, DatasetError> {
        let json: ManifestJson = serde_json::from_slice(bytes).map_err(|error| {
            let message = format!("{name}: no manifest of an inventory of S3: {error}");
            DatasetError::new(DatasetErrorKind::Invalid, message)
        })?;
        let kind = match json.file_format.to_ascii_uppercase().as_str() {
            "CSV" => TableKind::Csv,
            "PARQUET" => TableKind::Parquet,
            other => {
                let message =
                    format!("{name}: files in {other} are not read; have the inventory written as Parquet");
                return Err(DatasetError::new(DatasetErrorKind::Unsupported, message));
            }
        };
        let columns = match kind {
            TableKind::Csv => json.file_schema.split(',').map(|column| column.trim().to_owned()).collect(),
            _ => Vec::new(),
        };
        let files = json.files.into_iter().map(|file| file.key).collect();
        Ok(Self { bucket: json.source_bucket, files, kind, columns })
    }

    /// The objects in one of its files, part by part.
    ///
    /// # Errors
    /// Those of [`inventory`], and for damaged files.
    pub fn objects(&self, name: &str, bytes: Bytes) -> Result<InventoryParts, DatasetError> {
        if self.kind != TableKind::Csv {
            return inventory(name, self.kind, bytes);
        }
        let mut text = self.columns.join(",").into_bytes();
        text.push(b'\n');
        let read = match bytes.starts_with(&[0x1f, 0x8b]) {
            true => MultiGzDecoder::new(&bytes[..]).read_to_end(&mut text).map(drop),
            false => {
                text.extend_from_slice(&bytes);
                Ok(())
            }
        };
        read.map_err(|error| {
            DatasetError::new(DatasetErrorKind::Invalid, format!("{name}: the file is damaged: {error}"))
        })?;
        let (parts, name) = (inventory(name, TableKind::Csv, text.into())?, name.to_owned());
        Ok(Box::new(parts.map(move |part| {
            let mut objects = part?;
            for object in &mut objects {
                object.key = decoded(&object.key).ok_or_else(|| {
                    let message = format!("{name}: the key {:?} is not encoded as in a URL", object.key);
                    DatasetError::new(DatasetErrorKind::Invalid, message)
                })?;
            }
            Ok(objects)
        })))
    }
}

/// A key as it was before its encoding.
fn decoded(key: &str) -> Option<String> {
    if !key.contains(['%', '+']) {
        return Some(key.to_owned());
    }
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((&byte, more)) = rest.split_first() {
        rest = more;
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = std::str::from_utf8(more.get(..2)?).ok()?;
                rest = &more[2..];
                u8::from_str_radix(digits, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// The objects of an inventory, in parts of some rows. Each is parsed when it is requested.
pub type InventoryParts = Box<dyn Iterator<Item = Result<Vec<InventoryObject>, DatasetError>> + Send>;

/// The objects in a table with the columns `key`, `size` and `etag`, whatever their case. Rows of
/// old versions and deleted objects are left out, where the table has `is_latest` and
/// `is_delete_marker`. So are keys that stand for directories.
///
/// # Errors
/// [`DatasetErrorKind::Invalid`] for missing columns or values.
pub fn inventory(name: &str, kind: TableKind, bytes: Bytes) -> Result<InventoryParts, DatasetError> {
    let parts = SampleTable::read_in_parts(name, kind, bytes)?;
    Ok(Box::new(parts.map(|part| objects(&part?))))
}

/// The objects in the rows of a table.
fn objects(table: &SampleTable) -> Result<Vec<InventoryObject>, DatasetError> {
    let plain = |text: &str| text.to_ascii_lowercase().replace('_', "");
    let find = |wanted: &str| table.names().iter().find(|column| plain(column) == wanted).cloned();
    let needed = |wanted: &str| {
        find(wanted).ok_or_else(|| {
            let columns = table.names().join(", ");
            table.invalid(format!("{} needs a column {wanted:?}; it has {columns}", setting("inventory")))
        })
    };
    let (key, size, etag) = (needed("key")?, needed("size")?, find("etag"));
    let flags = [(find("islatest"), true), (find("isdeletemarker"), false)];
    let what = setting("inventory").to_string();
    let failed = |why: String| table.invalid(why);
    let keys = column::texts(table.array(&key, &what)?).map_err(failed)?;
    let tags = etag.map(|etag| column::texts(table.array(&etag, &what)?).map_err(failed)).transpose()?;
    let mut wanted = vec![true; table.len()];
    for (flag, is) in flags.into_iter().filter_map(|(flag, is)| Some((flag?, is))) {
        let texts = column::texts(table.array(&flag, &what)?).map_err(failed)?;
        for (row, wanted) in wanted.iter_mut().enumerate() {
            let text =
                if texts.is_valid(row) { texts.value(row).to_ascii_lowercase() } else { String::new() };
            *wanted &= text.is_empty() || (text == "true") == is;
        }
    }
    // A deleted object has no size.
    let sizes = column::texts(table.array(&size, &what)?).map_err(failed)?;
    let mut objects = Vec::new();
    for row in (0..table.len()).filter(|row| wanted[*row]) {
        let key = if keys.is_valid(row) { keys.value(row) } else { "" };
        if key.is_empty() || key.ends_with('/') {
            continue;
        }
        // pandas has numbers with fractions where one is missing.
        let count = |text: &str| text.strip_suffix(".0").unwrap_or(text).parse().ok();
        let size = if sizes.is_valid(row) { count(sizes.value(row)) } else { None };
        let size = size.ok_or_else(|| table.invalid(format!("the object {key:?} has no size")))?;
        let etag = tags.as_ref().filter(|tags| tags.is_valid(row)).map(|tags| tags.value(row));
        let etag = etag.map(|tag| tag.trim_matches('"').to_owned()).filter(|tag| !tag.is_empty());
        objects.push(InventoryObject { key: key.to_owned(), size, etag });
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(parts: Result<InventoryParts, DatasetError>) -> Result<Vec<InventoryObject>, DatasetError> {
        Ok(parts?.collect::<Result<Vec<_>, _>>()?.concat())
    }

    #[test]
    fn keys_are_decoded_as_amazon_encodes_them() {
        assert_eq!(decoded("a+b%2Bc%25/%ED%95%9C").as_deref(), Some("a b+c%/한"));
        assert_eq!(decoded("plain/key-1.jpg").as_deref(), Some("plain/key-1.jpg"));
        for damaged in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(decoded(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn old_versions_and_deleted_objects_are_left_out() {
        let manifest = br#"{"sourceBucket": "b", "destinationBucket": "arn:aws:s3:::d", "fileFormat": "CSV",
            "fileSchema": "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, ETag",
            "files": [{"key": "inv/1.csv.gz", "size": 1, "MD5checksum": "x"}]}"#;
        let manifest = InventoryManifest::read("m", manifest).unwrap();
        assert_eq!((&*manifest.bucket, &*manifest.files), ("b", &["inv/1.csv.gz".to_owned()][..]));
        let rows = "b,a+b,1,true,false,3,e1\nb,a+b,0,false,false,9,e0\n\
                    b,gone,2,true,true,,\nb,dir/,2,true,false,0,e2\n";
        let objects = all(manifest.objects("1.csv", Bytes::from(rows))).unwrap();
        assert_eq!(objects, [InventoryObject { key: "a b".into(), size: 3, etag: Some("e1".into()) }]);
    }

    #[test]
    fn rows_of_large_files_are_parsed_in_parts() {
        let mut text = String::from("key,size\n");
        (0..150_000).for_each(|row| text.push_str(&format!("{row},{}\n", row % 7)));
        let parts: Vec<_> = inventory("t", TableKind::Csv, Bytes::from(text)).unwrap().collect();
        assert_eq!(parts.len(), 3);
        let rows = all(Ok(Box::new(parts.into_iter()))).unwrap();
        assert!(rows.iter().enumerate().all(|(row, object)| object.key == row.to_string()));
        assert_eq!(rows.len(), 150_000);
    }

    #[test]
    fn tables_need_keys_and_sizes() {
        let read = |text: &'static str| all(inventory("t", TableKind::Csv, Bytes::from(text)));
        let failed = |text: &'static str| read(text).unwrap_err().to_string();
        assert!(failed("name,size\na,1\n").contains("needs a column \"key\"; it has name, size"));
        assert!(failed("name,size\n").contains("needs a column \"key\""));
        assert!(failed("key,size\na,\n").contains("the object \"a\" has no size"));
        let plain = read("Size,KEY\n7,a+b\n").unwrap();
        assert_eq!(plain, [InventoryObject { key: "a+b".into(), size: 7, etag: None }]);
        let orc = br#"{"sourceBucket": "b", "fileFormat": "ORC", "files": []}"#;
        assert!(InventoryManifest::read("m", orc).unwrap_err().to_string().contains("Parquet"));
    }
}
