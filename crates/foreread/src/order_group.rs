//! One order for several jobs.
//!
//! A search over hyperparameters often gives each job a seed of its own. Jobs that read in one
//! order need a sample at about the same time. An agent then reads it once for all of them, however
//! small its cache is. The name of their group gives them that order: a seed that follows from it.
//!
//! Decision: the seed is computed and not agreed on. Jobs need not meet, may start at any time and
//! on any node, and resume with their order. The price: no job keeps the order of its own seed.

use xxhash_rust::xxh3::xxh3_64;

/// The seed of a group's order: the lower 32 bits of the name's XXH3. PyTorch's own samplers take
/// such a seed as well.
///
/// ```
/// assert_eq!(foreread::order_group_seed("search"), foreread::order_group_seed("search"));
/// assert_ne!(foreread::order_group_seed("search"), foreread::order_group_seed("other"));
/// ```
#[must_use]
pub fn order_group_seed(name: &str) -> u64 {
    xxh3_64(name.as_bytes()) & u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// States of runs have the seed. So it must never change.
    #[test]
    // semantics: AGENT-24
    fn seeds_of_groups_are_fixed() {
        assert_eq!(
            ["", "search", "s\u{e9}rie"].map(order_group_seed),
            [953_390_274, 2_612_920_538, 3_822_225_132]
        );
    }
}
