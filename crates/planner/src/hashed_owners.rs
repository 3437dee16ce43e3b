//! The owners of samples in a cluster whose nodes come and go: the owner reads a sample from
//! storage and keeps it for all nodes.
//!
//! Rendezvous hashing with weights: each node draws a number for a sample, and the best one wins.
//! So every node computes the same owners from the same list. When a node joins or leaves, only its
//! own samples move. The weight of a node is its memory.
//!
//! # Decision and price
//!
//! Numbers are drawn for [`BUCKETS`] buckets of samples and not for each sample. So a look-up is a
//! hash, however many nodes there are. The price is that shares differ from the memories by about
//! one in a hundred, and a table of 128 KiB.
//!
//! A node draws `-log(u) / weight` for a uniform `u`, and the lowest wins (Efraimidis and Spirakis,
//! "Weighted random sampling with a reservoir", 2006). The logarithm is computed in integers, so
//! that machines with other mathematical libraries have the same owners.

use std::sync::Arc;

use foreread_types::mix;

/// The buckets that samples are divided into.
const BUCKETS: usize = 1 << 16;

/// No node has any memory.
const NONE: u16 = u16::MAX;

/// The fractional bits of logarithms.
const FRACTION: u32 = 24;

/// A node that may own samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerNode {
    /// A hash of its name. Each node has another one.
    pub name: u64,
    /// The bytes that it has for samples. Without any, it owns none.
    pub bytes: u64,
}

/// The owners of samples. Cheap to clone.
///
/// ```
/// use foreread_planner::{HashedOwners, OwnerNode};
/// let nodes = [OwnerNode { name: 17, bytes: 3_000_000 }, OwnerNode { name: 4, bytes: 1_000_000 }];
/// let owners = HashedOwners::new(&nodes);
/// let of_first = (0..10_000).filter(|&sample| owners.of(1, sample) == Some(0)).count();
/// assert!((7300..7700).contains(&of_first));
/// assert_eq!(HashedOwners::new(&[]).of(1, 0), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashedOwners {
    /// The index of a node, for each bucket. Empty without nodes.
    buckets: Arc<[u16]>,
}

impl HashedOwners {
    /// The number of buckets.
    pub const BUCKETS: usize = BUCKETS;

    /// The owners among at most 65,534 nodes. Others own nothing.
    pub fn new(nodes: &[OwnerNode]) -> Self {
        let nodes = &nodes[..nodes.len().min(usize::from(NONE))];
        if nodes.iter().all(|node| node.bytes == 0) {
            return Self::default();
        }
        Self { buckets: (0..BUCKETS as u64).map(|bucket| winner(nodes, bucket)).collect() }
    }

    /// The owner of a sample, as an index of the nodes. `None` if no node has memory. `dataset` is
    /// any number that all nodes have for the dataset.
    pub fn of(&self, dataset: u64, sample: u64) -> Option<usize> {
        self.of_bucket(Self::bucket(dataset, sample))
    }

    /// The bucket of a sample, below [`BUCKETS`](Self::BUCKETS). It is the same for all lists of
    /// nodes.
    pub fn bucket(dataset: u64, sample: u64) -> usize {
        mix(dataset ^ mix(sample)) as usize % BUCKETS
    }

    /// The owner of all samples of a bucket.
    pub fn of_bucket(&self, bucket: usize) -> Option<usize> {
        self.buckets.get(bucket).map(|node| usize::from(*node))
    }
}

/// The node of a bucket.
fn winner(nodes: &[OwnerNode], bucket: u64) -> u16 {
    let mut best: Option<(u64, OwnerNode, u16)> = None;
    for (index, node) in (0..).zip(nodes).filter(|(_, node)| node.bytes > 0) {
        let drawn = minus_log2(mix(mix(node.name) ^ bucket));
        // Of quotients, without a division.
        let is_better = best.is_none_or(|(least, other, _)| {
            let (own, others) =
                (u128::from(drawn) * u128::from(other.bytes), u128::from(least) * u128::from(node.bytes));
            own < others || own == others && node.name < other.name
        });
        if is_better {
            best = Some((drawn, *node, index));
        }
    }
    best.map_or(NONE, |(.., index)| index)
}

/// `-log2` of a 64-bit number as a part of 2^64, with [`FRACTION`] bits after the point.
fn minus_log2(number: u64) -> u64 {
    let number = number | 1;
    let zeros = number.leading_zeros();
    // The mantissa, from 1 to below 2, with 31 bits after the point.
    let mut mantissa = number << zeros >> 32;
    let mut fraction = 0;
    for _ in 0..FRACTION {
        // Squaring doubles the logarithm.
        mantissa = (mantissa * mantissa) >> 31;
        let is_2 = mantissa >> 32;
        mantissa >>= is_2;
        fraction = fraction << 1 | is_2;
    }
    ((u64::from(zeros) + 1) << FRACTION) - fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: u64, bytes: u64) -> OwnerNode {
        OwnerNode { name, bytes }
    }

    fn count(owners: &HashedOwners, index: usize) -> usize {
        (0..100_000).filter(|&sample| owners.of(7, sample) == Some(index)).count()
    }

    #[test]
    fn logarithms_are_right() {
        for number in [1, 3, 1 << 40, u64::MAX / 3, u64::MAX / 2 + 1, u64::MAX] {
            let exact = 64.0 - ((number | 1) as f64).log2();
            let found = minus_log2(number) as f64 / f64::from(1 << FRACTION);
            assert!((found - exact).abs() < 1e-6, "{number}: {found} {exact}");
        }
    }

    #[test]
    // semantics: CONTROL-10
    fn shares_are_those_of_the_memories() {
        let owners =
            HashedOwners::new(&[node(1, 10 << 30), node(2, 0), node(3, 20 << 30), node(4, 10 << 30)]);
        let shares = [0, 1, 2, 3].map(|index| count(&owners, index));
        for (share, wanted) in shares.into_iter().zip([25_000, 0, 50_000, 25_000]) {
            assert!(share.abs_diff(wanted) <= wanted / 50, "{shares:?}");
        }
    }

    #[test]
    // semantics: CONTROL-10
    fn only_samples_of_a_node_move_when_it_leaves() {
        let all: Vec<OwnerNode> = (1..=8).map(|name| node(name, 1000 + name)).collect();
        let without: Vec<OwnerNode> = all.iter().copied().filter(|node| node.name != 5).collect();
        let (before, after) = (HashedOwners::new(&all), HashedOwners::new(&without));
        for sample in 0..20_000 {
            let (old, new) = (before.of(3, sample).unwrap(), after.of(3, sample).unwrap());
            assert!(all[old].name == 5 || all[old].name == without[new].name);
        }
    }

    #[test]
    fn order_of_the_nodes_does_not_matter() {
        let nodes = [node(9, 5), node(2, 5), node(6, 5)];
        let turned = [nodes[2], nodes[0], nodes[1]];
        let (one, other) = (HashedOwners::new(&nodes), HashedOwners::new(&turned));
        assert!(
            (0..5000).all(|sample| nodes[one.of(1, sample).unwrap()] == turned[other.of(1, sample).unwrap()])
        );
        let none = [node(1, 0); 3];
        assert_eq!(HashedOwners::new(&none).of(0, 0), None);
    }
}
