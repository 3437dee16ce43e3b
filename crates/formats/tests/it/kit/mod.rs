//! Where the fixtures are, and how long the tests of damaged files run.

use std::path::PathBuf;

/// The fixtures of one recipe: in the tree, or in the folder `FOREREAD_FIXTURES`, for which
/// `cargo xtask soak --only formats` has run the recipes with other seeds.
pub fn fixtures(recipe: &str) -> PathBuf {
    let tree = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    std::env::var_os("FOREREAD_FIXTURES").map_or_else(tree, PathBuf::from).join(recipe)
}

/// The number of damaged copies: `count`, or 20 times as many in a soak.
pub fn copies(count: usize) -> usize {
    if std::env::var_os("FOREREAD_SOAK").is_some() { 20 * count } else { count }
}
