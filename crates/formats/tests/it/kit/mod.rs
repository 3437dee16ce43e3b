//! Where the fixtures are, and how long the tests of damaged files run.

use std::path::PathBuf;

use bytes::Bytes;

/// The fixtures of one recipe: in the tree, or in the folder `FOREREAD_FIXTURES`, for which
/// `.ci/soak formats` has run the recipes with other seeds.
pub fn fixtures(recipe: &str) -> PathBuf {
    let tree = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    std::env::var_os("FOREREAD_FIXTURES").map_or_else(tree, PathBuf::from).join(recipe)
}

/// A file of these fixtures.
pub fn read(recipe: &str, name: &str) -> Bytes {
    std::fs::read(fixtures(recipe).join(name)).unwrap().into()
}

/// FNV-1a over each piece's length and bytes, as in the recipes.
pub fn fnv<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut digest = 0xCBF2_9CE4_8422_2325u64;
    for piece in pieces {
        for byte in (piece.len() as u64).to_le_bytes().iter().chain(piece) {
            digest = (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3);
        }
    }
    format!("{digest:016x}")
}

/// The number of damaged copies: `count`, or 20 times as many in a soak.
pub fn copies(count: usize) -> usize {
    if std::env::var_os("FOREREAD_SOAK").is_some() { 20 * count } else { count }
}
