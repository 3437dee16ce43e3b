//! Layouts whose meaning a second parser has confirmed, and variants of them.
//!
//! The corpus has the same bytes in files. The test that compares them keeps both equal.

use foreread_lustre::{Layout, LayoutTargets, Target};

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
fn assert_targets(layout: &Layout, expected: &[(u64, Target)]) {
    assert!(layout.is_known());
    for &(offset, target) in expected {
        assert_eq!(layout.target_of(offset, u64::MAX), target, "offset {offset}");
    }
}

#[test]
fn stripes_alternate_between_their_osts() {
    let layout = Layout::parse(&bytes(STRIPED));
    let (three, seven) = (Target::Ost(3), Target::Ost(7));
    assert_targets(
        &layout,
        &[(0, three), (MIB - 1, three), (MIB, seven), (2 * MIB, three), (3 * MIB, seven)],
    );
    assert_eq!(layout.stripe_run(0), Some(0..MIB));
    assert_eq!(layout.stripe_run(MIB + 5), Some(MIB..2 * MIB));
    let targets =
        LayoutTargets { stripe_count: 2, stripe_size: MIB as u32, mirror_count: 1, ..Default::default() };
    assert_eq!(layout.targets(), &targets);
    assert!(!layout.released());
}

#[test]
fn offsets_beyond_the_file_have_no_target() {
    let layout = Layout::parse(&bytes(STRIPED));
    assert_eq!(layout.target_of(MIB, MIB + 1), Target::Ost(7));
    assert_eq!(layout.target_of(MIB, MIB), Target::Unknown);
    assert_eq!(layout.target_of(0, 0), Target::Unknown);
}

#[test]
fn released_layout_has_no_targets() {
    let layout = with(STRIPED, 4, &[1, 0, 0, 0x80]);
    assert!(layout.released());
    assert_targets(&layout, &[(0, Target::Unknown), (MIB, Target::Unknown)]);
    assert_eq!(layout.stripe_run(0), None);
    // Without its void objects.
    assert!(Layout::parse(&bytes(&STRIPED.replace("d10b01000000", "d10b01000080")[..64])).released());
}

#[test]
fn overstriped_layout_has_the_same_map() {
    let layout = with(STRIPED, 4, &[1, 2, 0, 0]);
    assert_targets(&layout, &[(0, Target::Ost(3)), (MIB, Target::Ost(7)), (2 * MIB, Target::Ost(3))]);
}

#[test]
fn pool_of_a_v3_layout_has_its_name() {
    let layout = Layout::parse(&bytes(POOL));
    assert_targets(
        &layout,
        &[(0, Target::Ost(12)), (4 * MIB, Target::Ost(12)), (u64::MAX - 1, Target::Ost(12))],
    );
    assert_eq!(layout.stripe_run(9), Some(0..u64::MAX), "one stripe is one run");
    assert_eq!(layout.targets().pool.as_deref(), Some("flash"));
    assert_eq!((layout.targets().stripe_count, layout.targets().stripe_size), (1, 4 << 20));
    // A name without the zero at its end has 16 bytes. Control characters are never printed.
    assert_eq!(with(POOL, 32, b"sixteen-long-abc").targets().pool.as_deref(), Some("sixteen-long-abc"));
    assert_eq!(with(POOL, 32, b"\x1b[2J").targets().pool, None);
    assert_eq!(with(POOL, 32, &[0; 16]).targets().pool, None);
}

#[test]
fn data_on_the_mdt_ends_where_its_component_ends() {
    let layout = Layout::parse(&bytes(DOM));
    assert_targets(&layout, &[(0, Target::Mdt), (65_535, Target::Mdt), (65_536, Target::Unknown)]);
    assert_eq!(layout.stripe_run(100), Some(0..65_536));
    assert_eq!(layout.stripe_run(65_536), None);
    assert_eq!(layout.targets().dom_size, 65_536);
    // The other magic of composites.
    assert_targets(&with(DOM, 0, &[0xd0, 0x0b, 0xd8, 0x0b]), &[(0, Target::Mdt)]);
}

#[test]
fn stale_mirror_is_not_read() {
    let layout = Layout::parse(&bytes(MIRRORS));
    assert_targets(&layout, &[(0, Target::Ost(2)), (1 << 40, Target::Ost(2))]);
    assert_eq!(layout.targets().mirror_count, 2);
    for unused in [0x18, 0x50, 0x90, 0] {
        let other = with(MIRRORS, 32 + 48 + 4, &[unused]);
        assert_targets(&other, &[(0, Target::Ost(2))]);
    }
}

#[test]
fn one_of_several_live_mirrors_must_be_preferred() {
    let second = 32 + 48;
    let both = with(MIRRORS, second + 4, &[0x10]);
    assert_targets(&both, &[(0, Target::Unknown)]);
    assert_eq!(both.stripe_run(0), None);
    assert_targets(&with(MIRRORS, second + 4, &[0x12]), &[(0, Target::Ost(9))]);
    let mut two_preferred = bytes(MIRRORS);
    two_preferred[32 + 4] = 0x12;
    two_preferred[second + 4] = 0x12;
    assert_targets(&Layout::parse(&two_preferred), &[(0, Target::Unknown)]);
    // A second mirror that begins at 3 MiB ends the run of the first.
    let mut later = bytes(MIRRORS);
    later[second + 4] = 0x10;
    later[second + 8..second + 16].copy_from_slice(&(3 * MIB).to_le_bytes());
    let later = Layout::parse(&later);
    assert_targets(&later, &[(0, Target::Ost(2)), (3 * MIB - 1, Target::Ost(2)), (3 * MIB, Target::Unknown)]);
    assert_eq!(later.stripe_run(MIB), Some(0..3 * MIB));
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
    let (three, seven, unknown) = (Target::Ost(3), Target::Ost(7), Target::Unknown);
    assert_targets(&layout, &[(0, unknown), (MIB / 2 * 3, seven), (2 * MIB, three), (9 * MIB, unknown)]);
    assert_eq!(layout.stripe_run(MIB / 2 * 3), Some(MIB / 2 * 3..2 * MIB));
    assert_eq!(layout.stripe_run(0), None);
}

#[test]
fn released_composite_is_released() {
    let released = with(DOM, 160 + 4, &[1, 0, 0, 0x80]);
    assert!(released.released() && released.is_known());
    let stale_only = with(MIRRORS, 0xb8 + 4, &[1, 0, 0, 0x80]);
    assert!(!stale_only.released());
    assert_targets(&stale_only, &[(0, Target::Ost(2))]);
}

#[test]
fn corpus_has_the_vectors() {
    for (name, vector) in [("striped", STRIPED), ("pool", POOL), ("dom", DOM), ("mirrors", MIRRORS)] {
        let path = format!("{}/tests/corpus/{name}.lov", env!("CARGO_MANIFEST_DIR"));
        assert_eq!(std::fs::read(&path).unwrap(), bytes(vector), "{path}");
    }
}
