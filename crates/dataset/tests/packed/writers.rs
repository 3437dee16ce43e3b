//! Shards from real writers are read like other real readers read them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use foreread_dataset::{Catalog, DatasetErrorKind, Format, IndexOptions};
use foreread_types::SampleId;
use sha2::{Digest, Sha256};

use crate::origin::{Content, Held};

pub fn file(name: &str) -> Vec<u8> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Tuples (key or number, field, hash), in order.
type Seen = Vec<(String, String, String)>;

fn expected() -> BTreeMap<String, Seen> {
    let mut all: BTreeMap<String, Seen> = BTreeMap::new();
    for line in String::from_utf8(file("expected.tsv")).unwrap().lines() {
        let [name, key, field, hash] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        // WebDataset reads `c/.hidden.jpg` as the field `hidden.jpg` of `c/`. Here hidden files are
        // not samples.
        if !key.ends_with('/') {
            all.entry(name.to_owned()).or_default().push((key.to_owned(), field.to_owned(), hash.to_owned()));
        }
    }
    all
}

/// The samples of a catalog's only shard.
fn seen(origin: &Held, catalog: &Catalog) -> Seen {
    let mut seen = Seen::new();
    for id in 0..catalog.len() {
        let sample = origin.sample(catalog, id);
        assert_eq!(sample.len() as u64, catalog.sizes().bytes(SampleId(id)));
        let key = catalog.key(SampleId(id)).unwrap().map_or_else(|| id.to_string(), Into::into);
        let path = catalog.path(SampleId(id)).unwrap().into_owned();
        assert!(path.ends_with(&format!("/{key}")), "{path} of {key}");
        let fields = catalog.fields(SampleId(id)).unwrap();
        let sum = catalog.checksum(SampleId(id));
        assert_eq!(sum.is_some(), matches!(catalog.format(), Format::TfRecord | Format::Zip));
        assert!(sum.is_none_or(|sum| sum.of(&sample) == sum.expected()));
        for field in &fields {
            let range = field.range.start as usize..field.range.end as usize;
            seen.push((key.clone(), field.name.to_owned(), sha(&sample[range])));
            assert_eq!(catalog.field(SampleId(id), field.name), Some(field.range.clone()));
        }
        assert_eq!(catalog.field(SampleId(id), "nothing"), None);
        if catalog.format() != Format::Tar {
            assert!(fields.is_empty());
            seen.push((key, String::new(), sha(&sample)));
        }
    }
    seen
}

#[tokio::test]
// semantics: SHARD-3
async fn samples_equal_what_the_format_libraries_read() {
    let expected = expected();
    assert_eq!(expected.len(), 11);
    for (name, expected) in expected {
        let origin = Held::new([(name.clone(), file(&name))]);
        let catalog = origin.index(&IndexOptions::default()).await.unwrap();
        assert_eq!(Some(catalog.format()), Format::of_shard(&name));
        assert_eq!(seen(&origin, &catalog), expected, "{name}");
        // Also from its file.
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.foreread");
        catalog.save(&path).unwrap();
        let opened = Catalog::open(&path).unwrap();
        assert_eq!(seen(&origin, &opened), expected, "{name}");
        assert_eq!(opened.fingerprint(), catalog.fingerprint());
    }
}

#[tokio::test]
// semantics: SHARD-6
async fn members_above_8_gib_are_indexed_by_their_headers() {
    for name in ["gnutar-gnu", "gnutar-pax", "python-gnu", "python-pax"] {
        let mut content = Content::default();
        content.push(file(&format!("{name}-9GiB.header")));
        let start = content.size;
        content.hole(9 << 30);
        let small = file("webdataset.tar");
        content.push(small);
        let origin = Held::new([("a.tar", content)]);
        let catalog = origin.index(&IndexOptions::default()).await.unwrap();
        assert_eq!(catalog.len(), 4, "{name}");
        assert_eq!(catalog.key(SampleId(0)).unwrap().as_deref(), Some("big"));
        assert_eq!(catalog.field(SampleId(0), "bin"), Some(0..9 << 30));
        assert_eq!(
            catalog.entry(SampleId(0)).unwrap().span,
            foreread_tier::Span::Range(start..start + (9 << 30))
        );
        let read = origin.bytes.load(std::sync::atomic::Ordering::Relaxed);
        assert!(read < 100_000, "{name}: {read} bytes");
    }
}

#[tokio::test]
// semantics: FORMAT-5
async fn deflated_members_are_those_that_were_packed() {
    let of = async |name: &'static str| {
        let origin = Held::new([(name, file(name))]);
        let catalog = origin.index(&IndexOptions::default()).await.unwrap();
        let stored = catalog.stored_sizes().map(|sizes| sizes.total());
        (seen(&origin, &catalog), catalog.total_bytes(), stored)
    };
    let (deflated, bytes, stored) = of("python-deflated.zip").await;
    let (plain, expected, none) = of("python-stored.zip").await;
    assert_eq!((deflated, bytes, none), (plain, expected, None));
    // Members of a few bytes become longer.
    assert_ne!(stored, Some(bytes));
}

#[tokio::test]
// semantics: SHARD-7
async fn compressed_or_encrypted_shard_is_refused_with_the_remedy() {
    for (name, why, remedy) in [
        ("gnutar-gnu-sparse.tar", "sparse", "without --sparse"),
        ("gnutar-pax-sparse.tar", "sparse", "without --sparse"),
        ("tensorflow-gzip.tfrecord", "compressed (gzip)", "without compression"),
        ("tensorflow-zlib.tfrecord", "compressed (zlib)", "without compression"),
    ] {
        let error = Held::new([(name, file(name))]).index(&IndexOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::Unsupported, "{error}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("/data: {name}: byte ")), "{text}");
        assert!(text.contains(why) && text.contains(remedy) && !text.contains('\n'), "{text}");
    }
}
