//! RecordIO files that MXNet wrote, against MXNet's own reader.
//!
//! `crates/formats/tests/fixtures/make_parts.py` writes them, by the C library in MXNet's wheel.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use foreread_dataset::{Catalog, DatasetErrorKind, Format, IndexOptions, SampleValue};
use foreread_tier::Span;
use foreread_types::SampleId;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::origin::{Content, Held};

pub fn file(name: &str) -> Vec<u8> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/fixtures/parts");
    std::fs::read(fixtures.join(name)).unwrap()
}

fn options(field: Option<&str>) -> IndexOptions {
    let mut options = IndexOptions::default();
    options.format_options.fields = field.into_iter().map(str::to_owned).collect();
    options
}

fn label(catalog: &Catalog, id: u64) -> Value {
    match catalog.value(SampleId(id), "label").unwrap() {
        None => Value::Null,
        Some(SampleValue::Integer(label)) => json!(label as f64),
        Some(SampleValue::Float(label)) => json!(label),
        Some(SampleValue::Array(array, bytes)) => {
            assert_eq!((&*array.dtype, &array.shape[..]), ("<f4", &[Some(bytes.len() as u64 / 4)][..]));
            bytes.as_chunks().0.iter().map(|float| f64::from(f32::from_le_bytes(*float))).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
// semantics: FORMAT-1, FORMAT-2, FORMAT-6
async fn records_are_those_that_mxnet_reads() {
    let expected: Value = serde_json::from_slice(&file("expected.json")).unwrap();
    let mut several = 0;
    for case in expected["recordio"].as_array().unwrap() {
        let (name, samples) = (case["file"].as_str().unwrap(), case["samples"].as_array().unwrap());
        let origin = Held::new([(name, file(name))]);
        let indexed = origin.index(&options(case["field"].as_str())).await;
        if samples.is_empty() {
            assert_eq!(indexed.unwrap_err().kind(), DatasetErrorKind::Empty);
            continue;
        }
        let indexed = indexed.unwrap();
        let opened = Catalog::from_bytes(indexed.to_bytes().unwrap(), "x").unwrap();
        assert_eq!((opened.format(), opened.len()), (Format::RecordIo, samples.len() as u64), "{name}");
        for (sample, id) in samples.iter().zip(0..) {
            let found: String = origin.sample(&opened, id).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, sample.as_str().unwrap(), "{name} {id}");
            let expected = case["labels"].get(id as usize).unwrap_or(&Value::Null);
            assert_eq!(label(&opened, id), *expected, "{name} {id}");
            several += u64::from(matches!(opened.entry(SampleId(id)).unwrap().span, Span::Made(_)));
        }
        let summary = opened.summary().unwrap();
        assert!(summary.starts_with(&format!("RecordIO: {} ", samples.len())), "{summary}");
        assert_eq!(summary.contains("no labels"), name == "boxes.rec" && case["field"].is_null());
    }
    assert!(several > 10, "{several}");
}

#[tokio::test]
// semantics: FORMAT-4
async fn records_without_a_header_of_images_are_refused() {
    let both = [file("classes.rec"), file("plain.rec")].concat();
    let origin = Held::new([("a.rec", both)]);
    let error = origin.index(&options(None)).await.unwrap_err();
    assert_eq!(error.kind(), DatasetErrorKind::Unsupported);
    assert!(error.to_string().contains("set `field` \"record\""), "{error}");
    assert_eq!(origin.index(&options(Some("record"))).await.unwrap().len(), 54);
    let error = origin.index(&options(Some("x"))).await.unwrap_err();
    assert!(error.to_string().contains("no field \"x\" of records: expected data or record"), "{error}");
    // Records that begin with other ones.
    let both = [file("plain.rec"), file("classes.rec")].concat();
    assert_eq!(Held::new([("a.rec", both)]).index(&options(None)).await.unwrap().len(), 54);
}

/// InsightFace writes a header alone first, and one per identity at the end.
#[tokio::test]
// semantics: FORMAT-2
async fn records_with_a_header_alone_are_left_out() {
    let record = |flag: u32, label: f32, rest: &[u8]| {
        let head = [&flag.to_le_bytes()[..], &label.to_le_bytes(), &[0; 16], rest].concat();
        let mut bytes = [0xced7_230a_u32, head.len() as u32].map(u32::to_le_bytes).concat();
        bytes.extend(head);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let identity = |ends: [f32; 2]| record(2, 0.0, ends.map(f32::to_le_bytes).as_flattened());
    let image = |label, rest: &[u8]| record(0, label, &[b"\xff\xd8\xff", rest].concat());
    let records = [identity([3.0, 4.0]), image(7.0, b"one"), image(8.0, b"two"), identity([1.0, 2.0])];
    let origin = Held::new([("train.rec", records.concat())]);
    let catalog = origin.index(&options(None)).await.unwrap();
    let samples: Vec<_> = (0..catalog.len()).map(|id| origin.sample(&catalog, id)).collect();
    assert_eq!(samples, [b"\xff\xd8\xffone", b"\xff\xd8\xfftwo"]);
    assert_eq!([0, 1].map(|id| label(&catalog, id)), [json!(7.0), json!(8.0)]);
    assert!(catalog.summary().unwrap().contains("2 records have a header and no image"));
    assert_eq!(origin.index(&options(Some("record"))).await.unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
// semantics: SHARD-9
async fn large_file_of_records_is_scanned_in_parallel() {
    let mut content = Content::default();
    for number in 0..50_000_u32 {
        let size = 60_000 + number * 7919 % 100_000;
        content.push([0xced7_230a_u32, size].map(u32::to_le_bytes).concat());
        content.hole(size.next_multiple_of(4).into());
    }
    let origin = Held::new([("a.rec", content)]).slow(Duration::from_millis(10));
    let began = Instant::now();
    let catalog = origin.index(&options(Some("record"))).await.unwrap();
    let (requests, bytes) = (origin.requests.load(Relaxed), origin.bytes.load(Relaxed));
    assert_eq!(catalog.len(), 50_000);
    assert_eq!(catalog.sizes().bytes(SampleId(49_999)), u64::from(60_000 + 49_999 * 7919_u32 % 100_000));
    // One scan in sequence would take 500 s.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(requests < 60_000 && bytes < 200_000_000, "{requests} requests, {bytes} bytes of 5 GB");
}
