//! LitData: chunks with table and frames that no writer makes, damaged ones, and the reads of an
//! index. `tables.rs` has the chunks of the real writer.

use bytes::Bytes;
use foreread_formats::decode::decode;
use foreread_formats::{Extents, FileSource, FormatErrorKind, FoundSamples, litdata};
use foreread_types::Recipe;
use futures::executor::block_on;
use serde_json::json;

use crate::counting::Counted;

/// A chunk of LitData with two samples of an `int` and a `bytes` leaf, and its index.
fn chunk(int: &[u8], after: &[u8]) -> (Bytes, litdata::LitIndex) {
    let samples = [&b"one"[..], b"three"].map(|text| {
        let sizes = [int.len() as u32, text.len() as u32].map(u32::to_le_bytes);
        [&sizes.concat(), int, text].concat()
    });
    let first = 16 + samples[0].len() as u32;
    let table = [2, 16, first, first + samples[1].len() as u32].map(u32::to_le_bytes);
    let file = [&table.concat(), &samples.concat()[..], after].concat();
    let index = json!({
        "chunks": [{"chunk_bytes": file.len(), "chunk_size": 2, "dim": null, "filename": "chunk-0-0.bin"}],
        "config": {"data_format": ["int", "bytes"], "item_loader": "PyTreeLoader"},
    });
    (file.into(), litdata::parse_index(index.to_string().as_bytes()).unwrap())
}

#[test]
fn litdata_sizes_of_other_serializers_are_read() {
    for (int, width) in [(&[7; 8][..], 8), (&[7; 4], 4)] {
        let (file, index) = chunk(int, b"");
        let found = block_on(litdata::index(&file, &index, &index.chunks[0], None)).unwrap();
        let fields = &found.fields.unwrap()[1];
        assert_eq!((fields[0].length, fields[1].offset, fields[1].length), (width, 8 + width, 5));
    }
}

#[test]
fn litdata_samples_before_an_arrow_table_are_found() {
    let (file, index) = chunk(&[7; 8], b"ARROW1\x06\0\0\0LDARW01\0");
    assert_eq!(block_on(litdata::index(&file, &index, &index.chunks[0], None)).unwrap().len(), 2);
    for tail in ["ARROW1\x06\0\0\0LDARW02\0", "ARROW1\x07\0\0\0LDARW01\0", "RW01\0"] {
        let (file, index) = chunk(&[7; 8], tail.as_bytes());
        let error = block_on(litdata::index(&file, &index, &index.chunks[0], None)).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::Damaged, "{tail:?}");
    }
}

/// A frame of Zstandard with these bytes as they are.
fn frame(bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len() as u32;
    let mut frame = [&[0x28, 0xb5, 0x2f, 0xfd, 0xa0][..], &length.to_le_bytes()].concat();
    for (number, block) in bytes.chunks(1 << 17).enumerate() {
        let is_last = (number + 1) << 17 >= bytes.len();
        frame.extend(&((block.len() as u32) << 3 | u32::from(is_last)).to_le_bytes()[..3]);
        frame.extend(block);
    }
    frame
}

/// A chunk with three frames of two samples, each a leaf of `length` bytes, and its index.
fn frames(length: usize) -> (Vec<u8>, litdata::LitIndex) {
    let sample = [&(length as u32).to_le_bytes()[..], &vec![7; length]].concat();
    let frame = frame(&sample.repeat(2));
    let offsets: Vec<u32> = (0..7).map(|number| number * sample.len() as u32).collect();
    let mut file = b"LDFZ01\0\0\x01\0\0\0".to_vec();
    file.extend([6u32, 2, 3].iter().chain(&offsets).flat_map(|number| number.to_le_bytes()));
    let first = file.len() + 3 * 24;
    for number in 0..3u32 {
        file.extend([2 * number, 2].iter().flat_map(|number| number.to_le_bytes()));
        file.extend(((first + number as usize * frame.len()) as u64).to_le_bytes());
        file.extend([frame.len(), 2 * sample.len()].iter().flat_map(|number| (*number as u32).to_le_bytes()));
    }
    file.extend(frame.repeat(3));
    let index = json!({
        "chunks": [{"chunk_bytes": file.len(), "chunk_size": 6, "dim": null, "filename": "chunk-0-0.bin"}],
        "config": {
            "data_format": ["bytes"], "item_loader": "PyTreeLoader", "compression": "zstd",
            "compression_level": "batch",
        },
    });
    (file, litdata::parse_index(index.to_string().as_bytes()).unwrap())
}

/// A decoded sample.
fn sample(file: &[u8], found: &FoundSamples, row: usize) -> Vec<u8> {
    let Extents::Rows(rows) = &found.extents else { panic!("runs") };
    let ((at, length), all) = (rows[row], found.made.as_ref().unwrap());
    let made = all.rows[row];
    let decoders = &all.recipes[made.recipe.unwrap() as usize][..];
    let stored = &file[at as usize..(at + made.stored) as usize];
    let decoded = decode(&Recipe::new(decoders, made.decoded).unwrap(), stored).unwrap();
    decoded[made.slice as usize..(made.slice + length) as usize].to_vec()
}

#[test]
// semantics: SHARD-9
fn litdata_frames_are_read_for_labels_only() {
    let (file, mut index) = frames(300_000);
    let source = Counted::new(Bytes::from(file.clone()));
    let found = block_on(litdata::index(&source, &index, &index.chunks[0], None)).unwrap();
    assert!(source.cost().1 < 16_384);
    let made = found.made.as_ref().unwrap();
    // Two samples share a frame, and the next two another one.
    let Extents::Rows(rows) = &found.extents else { panic!("runs") };
    let unit = |row: usize| (rows[row].0, made.rows[row].stored, made.rows[row].recipe);
    assert!(unit(0) == unit(1) && unit(1) != unit(2) && unit(2) == unit(3));
    assert_eq!((made.rows[1].slice, made.rows[2].slice), (300_004, 0));
    let bytes = sample(&file, &found, 3);
    assert_eq!((bytes.len(), bytes[0], &bytes[4..9]), (300_004, 0xe0, &[7; 5][..]));
    // Sizes of two leaves stand in the frames, and each frame is read once.
    let mut file = file;
    for number in 0..3 {
        let at = 24 + 28 + 72 + number * (file.len() - 124) / 3 + 9 + 3;
        file[at..at + 8].copy_from_slice(&[100_000u32, 199_996].map(u32::to_le_bytes).concat());
        // The second sample is in the third block.
        let second = at + 300_004 + 2 * 3;
        file[second..second + 8].copy_from_slice(&[1u32, 299_995].map(u32::to_le_bytes).concat());
    }
    index.leaves.push(index.leaves[0].clone());
    let source = Counted::new(Bytes::from(file));
    let found = block_on(litdata::index(&source, &index, &index.chunks[0], None)).unwrap();
    let fields = found.fields.unwrap();
    assert_eq!((fields[4][1].offset, fields[4][1].length, fields[5][1].length), (100_008, 199_996, 299_995));
    let (read, size) = (source.cost().1, source.size());
    assert!(read < size + 16_384, "{read} of {size} bytes");
}

#[test]
// semantics: FORMAT-4
fn litdata_frames_that_are_damaged_are_named() {
    let why = |change: &dyn Fn(&mut Vec<u8>, &mut litdata::LitIndex)| {
        let (mut file, mut index) = frames(5);
        change(&mut file, &mut index);
        let chunk = index.chunks[0].clone();
        block_on(litdata::index(&Bytes::from(file), &index, &chunk, None)).unwrap_err().to_string()
    };
    let at = |at: usize, value: u32| {
        move |file: &mut Vec<u8>, _: &mut litdata::LitIndex| {
            file[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
    };
    let first = 24 + 28;
    for (found, expected) in [
        (why(&at(0, 0)), "does not begin with LDFZ01"),
        (why(&at(8, 2)), "frames of version 2: expected 1"),
        (why(&at(12, 7)), "the file has 7 samples, its index 6"),
        (why(&at(20, u32::MAX)), "cut short"),
        (why(&at(20, 2)), "does not have each sample once"),
        (why(&at(24, 1)), "has samples that do not follow each other"),
        (why(&at(32, 999)), "has samples that do not follow each other"),
        (why(&at(first, 1)), "does not have each sample once"),
        (why(&at(first + 4, 3)), "does not have each sample once"),
        (why(&at(first + 8, 3)), "has a frame outside of the file"),
        (why(&at(first + 16, 9999)), "has a frame outside of the file"),
        (why(&at(first + 20, 19)), "does not have each sample once"),
        (why(&|_, index| index.chunks[0].samples = u64::from(u32::MAX)), "the file has 6 samples"),
        (why(&|_, index| index.chunks[0].bytes += 1), "its index says"),
        (why(&|file, _| file.truncate(23)), "its index says"),
    ] {
        assert!(found.contains(expected), "{found}: {expected}");
    }
}

/// A chunk that is one frame, and a chunk of samples whose frames have no length.
#[test]
// semantics: FORMAT-4
fn litdata_chunks_far_longer_than_frames_are_refused() {
    let (file, mut index) = frames(5);
    index.compression = Some(litdata::LitCompression::Chunk);
    index.chunks[0].bytes = 65 << 20;
    let mut head = frame(&[0; 9000]);
    head[5..9].copy_from_slice(&(65u32 << 20).to_le_bytes());
    let find = |file: &[u8], index: &litdata::LitIndex| {
        block_on(litdata::index(&Bytes::copy_from_slice(file), index, &index.chunks[0], None)).unwrap_err()
    };
    let error = find(&head, &index);
    assert_eq!(error.kind(), FormatErrorKind::Unsupported);
    assert!(error.why().contains("one frame of 68157440 bytes: write it again with"), "{error}");
    index.chunks[0].bytes = 4;
    assert!(find(&head, &index).why().contains("68157440 bytes, its index says 4"));
    assert!(find(&file, &index).why().contains("no frame of Zstandard"));
    head[5..9].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(find(&head, &index).why().contains("has 4294967295 bytes: write the samples again"));
    let mut small = frame(&[0; 90]);
    small[5..9].copy_from_slice(&(60u32 << 20).to_le_bytes());
    assert!(find(&small, &index).why().contains("102 bytes cannot become 62914560 bytes"));
}
