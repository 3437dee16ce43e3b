//! Layouts whose meaning a second parser has confirmed, and variants of them.
//!
//! The corpus has the same bytes in files. The test that compares them keeps both equal.

use foreread_lustre::Layout;
use foreread_tier::{ObjectLayout, StorageServer};

/// Stripes of 1 MiB over the OSTs 3 and 7.
pub const STRIPED: &str = "\
    d00bd10b0100000005000000000000000104000002000000000010000200ffff00040040020000000010000000000000\
    0000000003000000000400400200000001100000000000000000000007000000";
/// v3: the pool `flash`, 4 MiB, OST 12.
pub const POOL: &str = "\
    d00bd30b0100000005000000000000000104000002000000000040000100ffff666c6173680000000000000000000000\
    00040040020000000010000000000000000000000c000000";
/// Data on the MDT up to 64 KiB, then four stripes that are not instantiated.
pub const DOM: &str = "\
    d00bd60bc000000004000000000002000000000000000000000000000000000001000000100000000000000000000000\
    000001000000000080000000200000000000000000000000000000000000000002000000000000000000010000000000\
    ffffffffffffffffa00000002000000000000000000000000000000000000000d00bd10b000100000000000000000000\
    0000000000000000000001000000ffffd00bd10b0100000000000000000000000000000000000000000010000400ffff";
/// Two mirrors: OST 2, and OST 9 which is stale.
pub const MIRRORS: &str = "\
    d00bd60bf000000004000000010002000100000000000000000000000000000001000100100000000000000000000000\
    ffffffffffffffff80000000380000000000000000000000000000000000000001000200110000000000000000000000\
    ffffffffffffffffb80000003800000000000000000000000000000000000000d00bd10b010000000000000000000000\
    0000000000000000000010000100ffff000400400200000000100000000000000000000002000000d00bd10b01000000\
    00000000000000000000000000000000000010000100ffff000400400200000000100000000000000000000009000000";

const MIB: u64 = 1 << 20;

pub const MDT: Option<StorageServer> = Some(StorageServer::Metadata);

const fn ost(index: u32) -> Option<StorageServer> {
    Some(StorageServer::Data(index))
}

pub fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits: Vec<_> = hexadecimal.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn with(hexadecimal: &str, at: usize, new: &[u8]) -> Layout {
    let mut bytes = bytes(hexadecimal);
    bytes[at..at + new.len()].copy_from_slice(new);
    Layout::parse(&bytes)
}

#[track_caller]
fn assert_targets(layout: &Layout, expected: &[(u64, Option<StorageServer>)]) {
    assert!(layout.is_known());
    for &(offset, target) in expected {
        assert_eq!(layout.server(offset), target, "offset {offset}");
    }
}

#[test]
fn stripes_alternate_between_their_osts() {
    let layout = Layout::parse(&bytes(STRIPED));
    let (three, seven) = (ost(3), ost(7));
    assert_targets(
        &layout,
        &[(0, three), (MIB - 1, three), (MIB, seven), (2 * MIB, three), (3 * MIB, seven)],
    );
    assert_eq!(layout.run(0), Some(0..MIB));
    assert_eq!(layout.run(MIB + 5), Some(MIB..2 * MIB));
    assert_eq!(layout.stripe_count(), 2);
    assert!(!layout.is_released());
}

#[test]
fn released_layout_has_no_targets() {
    let layout = with(STRIPED, 4, &[1, 0, 0, 0x80]);
    assert!(layout.is_released());
    assert_targets(&layout, &[(0, None), (MIB, None)]);
    assert_eq!(layout.run(0), None);
    // Without its void objects.
    assert!(Layout::parse(&bytes(&STRIPED.replace("d10b01000000", "d10b01000080")[..64])).is_released());
}

#[test]
fn overstriped_layout_has_the_same_map() {
    let layout = with(STRIPED, 4, &[1, 2, 0, 0]);
    assert_targets(&layout, &[(0, ost(3)), (MIB, ost(7)), (2 * MIB, ost(3))]);
}

#[test]
fn layout_with_a_pool_has_its_objects_after_the_name() {
    let layout = Layout::parse(&bytes(POOL));
    assert_targets(&layout, &[(0, ost(12)), (4 * MIB, ost(12)), (u64::MAX - 1, ost(12))]);
    assert_eq!(layout.run(9), Some(0..u64::MAX), "one stripe is one run");
    assert_eq!(layout.stripe_count(), 1);
    assert_targets(&with(POOL, 32, b"sixteen-long-abc"), &[(0, ost(12))]);
}

#[test]
fn data_on_the_mdt_ends_where_its_component_ends() {
    let layout = Layout::parse(&bytes(DOM));
    assert_targets(&layout, &[(0, MDT), (65_535, MDT), (65_536, None)]);
    assert_eq!(layout.run(100), Some(0..65_536));
    assert_eq!(layout.run(65_536), None);
    // The other magic of composites.
    assert_targets(&with(DOM, 0, &[0xd0, 0x0b, 0xd8, 0x0b]), &[(0, MDT)]);
}

#[test]
fn stale_mirror_is_not_read() {
    let layout = Layout::parse(&bytes(MIRRORS));
    assert_targets(&layout, &[(0, ost(2)), (1 << 40, ost(2))]);
    for unused in [0x18, 0x50, 0x90, 0] {
        let other = with(MIRRORS, 32 + 48 + 4, &[unused]);
        assert_targets(&other, &[(0, ost(2))]);
    }
}

#[test]
fn one_of_several_live_mirrors_must_be_preferred() {
    let second = 32 + 48;
    let both = with(MIRRORS, second + 4, &[0x10]);
    assert_targets(&both, &[(0, None)]);
    assert_eq!(both.run(0), None);
    assert_targets(&with(MIRRORS, second + 4, &[0x12]), &[(0, ost(9))]);
    let mut two_preferred = bytes(MIRRORS);
    two_preferred[32 + 4] = 0x12;
    two_preferred[second + 4] = 0x12;
    assert_targets(&Layout::parse(&two_preferred), &[(0, None)]);
    // A second mirror that begins at 3 MiB ends the run of the first.
    let mut later = bytes(MIRRORS);
    later[second + 4] = 0x10;
    later[second + 8..second + 16].copy_from_slice(&(3 * MIB).to_le_bytes());
    let later = Layout::parse(&later);
    assert_targets(&later, &[(0, ost(2)), (3 * MIB - 1, ost(2)), (3 * MIB, None)]);
    assert_eq!(later.run(MIB), Some(0..3 * MIB));
}

/// Stripes count from the file's begin, also in a component that begins later.
#[test]
fn component_that_begins_later_counts_from_the_file_begin() {
    let map = bytes(STRIPED);
    let mut layout = bytes(&DOM[..2 * (32 + 48)]);
    layout[4..8].copy_from_slice(&(80 + map.len() as u32).to_le_bytes());
    layout[14] = 1;
    layout[32 + 8..32 + 16].copy_from_slice(&(MIB / 2 * 3).to_le_bytes());
    layout[32 + 16..32 + 24].copy_from_slice(&(9 * MIB).to_le_bytes());
    layout[32 + 28..32 + 32].copy_from_slice(&(map.len() as u32).to_le_bytes());
    layout[32 + 24..32 + 28].copy_from_slice(&80_u32.to_le_bytes());
    layout.extend(map);
    let layout = Layout::parse(&layout);
    let (three, seven, unknown) = (ost(3), ost(7), None);
    assert_targets(&layout, &[(0, unknown), (MIB / 2 * 3, seven), (2 * MIB, three), (9 * MIB, unknown)]);
    assert_eq!(layout.run(MIB / 2 * 3), Some(MIB / 2 * 3..2 * MIB));
    assert_eq!(layout.run(0), None);
}

#[test]
fn released_composite_is_released() {
    let released = with(DOM, 160 + 4, &[1, 0, 0, 0x80]);
    assert!(released.is_released() && released.is_known());
    let stale_only = with(MIRRORS, 0xb8 + 4, &[1, 0, 0, 0x80]);
    assert!(!stale_only.is_released());
    assert_targets(&stale_only, &[(0, ost(2))]);
}

#[test]
fn corpus_has_the_vectors() {
    for (name, vector) in [("striped", STRIPED), ("pool", POOL), ("dom", DOM), ("mirrors", MIRRORS)] {
        let path = format!("{}/tests/corpus/{name}.lov", env!("CARGO_MANIFEST_DIR"));
        assert_eq!(std::fs::read(&path).unwrap(), bytes(vector), "{path}");
    }
}
