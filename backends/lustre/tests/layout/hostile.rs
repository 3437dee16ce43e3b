//! Damaged and hostile layouts are unknown ones, without a panic and without much memory.
//!
//! `tests/corpus` has the begin of each random case. Fuzzing with coverage continues from there.

use std::fs;
use std::path::Path;

use foreread_lustre::Layout;
use foreread_tier::ObjectLayout;
use foreread_tier_testing::TestRandom;

use crate::vectors::{DOM, MDT, MIRRORS, POOL, STRIPED, bytes};

const MUTATIONS: u64 = 100_000;

#[track_caller]
fn assert_unknown(bytes: &[u8]) {
    let layout = Layout::parse(bytes);
    assert!(!layout.is_known(), "{layout:?}");
    assert!(!layout.is_released());
    assert_eq!((layout.server(0), layout.run(0)), (None, None));
}

/// Every answer of the layout of any bytes is consistent.
fn answer_everything(bytes: &[u8], random: &mut TestRandom) {
    let layout = Layout::parse(bytes);
    let limit = bytes.len() / 24;
    assert!(layout.stripe_count() <= limit, "more stripes than the bytes can have");
    let drawn = random.below(u64::MAX);
    for offset in [0, 65_536, 1 << 20, drawn, u64::MAX - 1, u64::MAX] {
        let target = layout.server(offset);
        match layout.run(offset) {
            Some(run) => {
                assert!(run.contains(&offset) && target.is_some(), "{run:?} {offset} {target:?}");
                assert_eq!(layout.server(run.start), target);
                assert_eq!(layout.server(run.end - 1), target);
            }
            None => assert_eq!(target, None),
        }
    }
}

fn corpus() -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 13, "{files:?}");
    files.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn mutated_layouts_never_panic() {
    let mut random = TestRandom::new();
    let corpus = corpus();
    for _ in 0..MUTATIONS {
        let mut bytes = corpus[random.below(corpus.len() as u64) as usize].clone();
        for _ in 0..=random.below(4) {
            mutate(&mut bytes, &corpus, &mut random);
        }
        answer_everything(&bytes, &mut random);
    }
}

fn mutate(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut TestRandom) {
    let at = random.below(bytes.len() as u64 + 1) as usize;
    match random.below(6) {
        0 => bytes.truncate(at),
        1 => bytes.extend_from_slice(&corpus[random.below(corpus.len() as u64) as usize]),
        // A field, with a value from the ends of its range.
        2 | 3 => {
            let value = [0, 1, 0x10, 0xffff, 0x7fff_ffff, 0xffff_ffff][random.below(6) as usize];
            let field = at / 4 * 4;
            if let Some(field) = bytes.get_mut(field..field + 4) {
                field.copy_from_slice(&u32::to_le_bytes(value));
            }
        }
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
    }
}

#[test]
fn every_prefix_of_a_layout_is_unknown_or_not_instantiated() {
    for vector in [STRIPED, POOL, DOM, MIRRORS] {
        let whole = bytes(vector);
        for length in 0..whole.len() {
            let layout = Layout::parse(&whole[..length]);
            assert_eq!(layout.server(0), None, "{length} bytes");
            // A map that ends after its header has no objects yet.
            let is_header = (vector == STRIPED && length == 32) || (vector == POOL && length == 48);
            assert_eq!(layout.is_known(), is_header, "{length} bytes");
        }
    }
}

#[test]
fn counts_and_sizes_beyond_the_bytes_are_unknown() {
    let with = |vector, at: usize, new: &[u8]| {
        let mut bytes = bytes(vector);
        bytes[at..at + new.len()].copy_from_slice(new);
        bytes
    };
    assert_unknown(&[]);
    assert_unknown(&[0; 65_536]);
    assert_unknown(&[0xff; 65_536]);
    assert_unknown(&with(STRIPED, 0, &[0x0b, 0xd1, 0x0b, 0xd0]));
    assert_unknown(&with(STRIPED, 28, &[0xff, 0xff]));
    assert_unknown(&with(STRIPED, 28, &[3, 0]));
    // Stripe sizes: none, and no multiple of 64 KiB.
    assert_unknown(&with(STRIPED, 24, &[0; 4]));
    assert_unknown(&with(STRIPED, 24, &[0, 0x80, 0, 0]));
    assert_unknown(&with(STRIPED, 24, &[1, 0, 0x10, 0]));
    // Patterns: parity, none, one of the future.
    for pattern in [4, 0, 8] {
        assert_unknown(&with(STRIPED, 4, &[pattern, 0, 0, 0]));
    }
    // Composites: their size, their entries, a component's place and size.
    assert_unknown(&with(DOM, 4, &[0xc1, 0, 0, 0]));
    assert_unknown(&with(DOM, 4, &[0xff; 4]));
    assert_unknown(&with(DOM, 14, &[0xff, 0xff]));
    assert_unknown(&with(DOM, 14, &[4, 0]));
    assert_unknown(&with(DOM, 32 + 24, &[0xff; 4]));
    assert_unknown(&with(DOM, 32 + 24, &[0xff; 8]));
    assert_unknown(&with(DOM, 32 + 28, &[0x41, 0, 0, 0]));
    assert_unknown(&with(DOM, 32 + 28, &[0; 4]));
    // A component that ends before it begins.
    assert_unknown(&with(DOM, 32 + 8, &[0, 0, 2, 0]));
}

#[test]
fn foreign_component_is_skipped() {
    let mut bytes = bytes(DOM);
    bytes[160..164].copy_from_slice(&[0xd0, 0x0b, 0xd7, 0x0b]);
    // As if instantiated, with a map that no reader understands.
    bytes[32 + 48 + 4] = 0x10;
    let layout = Layout::parse(&bytes);
    assert!(layout.is_known());
    assert_eq!(layout.server(0), MDT);
    assert_eq!(layout.server(65_536), None);
}

/// 600 entries that all name the same 1,500 objects would become 900,000.
#[test]
fn components_with_shared_bytes_are_unknown() {
    const ENTRIES: usize = 600;
    const OBJECTS: usize = 1_500;
    let mut map = [bytes(&STRIPED[..64]), bytes(&STRIPED[64..112]).repeat(OBJECTS)].concat();
    map[28..30].copy_from_slice(&(OBJECTS as u16).to_le_bytes());
    let mut layout = bytes(&DOM[..64]);
    let entry = {
        let mut entry = bytes(&DOM[64..160]);
        entry[24..28].copy_from_slice(&((32 + ENTRIES * 48) as u32).to_le_bytes());
        entry[28..32].copy_from_slice(&(map.len() as u32).to_le_bytes());
        entry
    };
    layout[14..16].copy_from_slice(&(ENTRIES as u16).to_le_bytes());
    layout.extend(entry.repeat(ENTRIES));
    layout.extend(&map);
    let size = layout.len() as u32;
    layout[4..8].copy_from_slice(&size.to_le_bytes());
    assert_unknown(&layout);
    // With one entry the same bytes are a layout.
    assert_eq!(Layout::parse(&map).stripe_count(), OBJECTS);
}
