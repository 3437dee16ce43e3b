//! Which of a node's ranks this is: they share its memory and its disks, whether they work together or not.

/// A rank on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OnNode {
    /// Which one it is, from 0.
    pub(crate) rank: u32,
    /// How many there are, at least 1.
    pub(crate) ranks: u32,
}

impl OnNode {
    /// A rank that has its node for itself, or does as if.
    pub(crate) const ALONE: Self = Self { rank: 0, ranks: 1 };

    /// What a launcher says, as far as it makes sense.
    pub(crate) fn told(rank: Option<u32>, ranks: Option<u32>) -> Self {
        let ranks = ranks.unwrap_or(1).max(1);
        Self { rank: rank.filter(|rank| *rank < ranks).unwrap_or(0), ranks }
    }
}
