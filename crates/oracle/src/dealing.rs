//! How a global order is split among the ranks.
//!
//! The positions of the order from `consumed` to its end form a list. `consumed` counts the
//! positions read before a resume, and is 0 at first. Every rank gets a share of the list. All
//! shares have the same length:
//!
//! * Without `drop_last` a share has `ceil(list / W)` samples for a world size of W. The list is
//!   padded with the *beginning of the epoch*, repeated as often as needed. Padding from the
//!   beginning of the remaining list would repeat other samples after a resume than the
//!   uninterrupted run repeats.
//! * With `drop_last` a share has `floor(list / W)` samples and the list is cut. With a batch size,
//!   the short last batch of a rank is dropped as well, as `DataLoader(drop_last=True)` does.
//!
//! The [`Deal`] selects the rank of each position. With either deal, the first `t` batches of all
//! ranks together are the first `t * W * B` positions of the list. So the number `consumed`
//! describes the progress of a run, whatever its next world size is.
//!
//! Everything is arithmetic on positions: no table, and O(1) in both directions.

use std::fmt;
use std::str::FromStr;

use foreread_types::Rank;

use crate::error::{OracleError, OracleReason};

/// How positions map to ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Deal {
    /// As PyTorch's `DistributedSampler`: rank r gets positions r, r + W, r + 2W, ...
    #[default]
    Torch,
    /// The global batch of step t is the next `W * B` positions, and rank r gets the r-th block of
    /// B of them. In the short last step each rank gets its block of the rest. Without a batch size
    /// the pass is one step.
    Blocks,
}

impl fmt::Display for Deal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Torch => "torch",
            Self::Blocks => "blocks",
        })
    }
}

impl FromStr for Deal {
    type Err = OracleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "torch" => Ok(Self::Torch),
            "blocks" => Ok(Self::Blocks),
            _ => Err(OracleReason::Deal(text.to_owned()).into()),
        }
    }
}

/// How a pass is split: the [`Deal`], the world size, the batch size and whether the remainder is
/// dropped.
///
/// Methods take `len`, the length of the global order, and `consumed`, the number of its positions
/// read before. Both count samples. `len` is at most 2^63 and `consumed` at most `len`.
///
/// ```
/// use foreread_oracle::{Deal, Dealing};
/// use foreread_types::Rank;
/// # fn main() -> Result<(), foreread_oracle::OracleError> {
/// let dealing = Dealing::new(Deal::Torch, 4, None, false)?;
/// assert_eq!(dealing.share(10, 0), 3);
/// // Rank 3 reads positions 3 and 7. Place 11 is after the end, so it is padded with position 1.
/// let positions: Vec<u64> = (0..3).map(|index| dealing.position(10, 0, Rank(3), index)).collect();
/// assert_eq!(positions, [3, 7, 1]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dealing {
    deal: Deal,
    world_size: u32,
    batch_size: Option<u64>,
    drop_last: bool,
}

impl Dealing {
    /// Deals to `world_size` ranks in batches of `batch_size` samples per rank. `None` makes one
    /// batch per pass.
    ///
    /// # Errors
    /// A world size or a batch size of 0.
    pub fn new(
        deal: Deal,
        world_size: u32,
        batch_size: Option<u64>,
        drop_last: bool,
    ) -> Result<Self, OracleError> {
        if world_size == 0 {
            return Err(OracleReason::WorldSize.into());
        }
        if batch_size == Some(0) {
            return Err(OracleReason::BatchSize.into());
        }
        Ok(Self { deal, world_size, batch_size, drop_last })
    }

    /// How positions map to ranks.
    pub fn deal(&self) -> Deal {
        self.deal
    }

    /// The number of ranks.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// The number of samples in a rank's batch. `None` means one batch per pass.
    pub fn batch_size(&self) -> Option<u64> {
        self.batch_size
    }

    /// Whether the remainder is dropped. Otherwise the last share is padded.
    pub fn drop_last(&self) -> bool {
        self.drop_last
    }

    /// The number of samples of each rank.
    pub fn share(&self, len: u64, consumed: u64) -> u64 {
        let list = len.saturating_sub(consumed);
        let ranks = u64::from(self.world_size);
        match (self.drop_last, self.batch_size) {
            (false, _) => list.div_ceil(ranks),
            (true, None) => list / ranks,
            (true, Some(batch)) => list / ranks / batch * batch,
        }
    }

    /// The number of batches of each rank, including a short last one.
    pub fn batches(&self, len: u64, consumed: u64) -> u64 {
        let share = self.share(len, consumed);
        match self.batch_size {
            Some(batch) => share.div_ceil(batch),
            None => share.min(1),
        }
    }

    /// The position in the global order that `rank` reads as its `index`-th sample.
    ///
    /// # Panics
    /// If `index` is not below [`share`](Self::share), or `rank` not below the world size.
    pub fn position(&self, len: u64, consumed: u64, rank: Rank, index: u64) -> u64 {
        let share = self.share(len, consumed);
        assert!(index < share, "sample {index} of a share of {share}");
        assert!(rank.0 < self.world_size, "rank {rank} of {}", self.world_size);
        order_position(len, consumed, self.list_index(share, rank, index))
    }

    /// The rank that reads a position of the global order, and the index of the sample on that
    /// rank. `None` if no rank reads it, because it was consumed before or is dropped. If padding
    /// repeats the position, this is the first use.
    pub fn locate(&self, len: u64, consumed: u64, position: u64) -> Option<(Rank, u64)> {
        let share = self.share(len, consumed);
        match position.checked_sub(consumed) {
            Some(list_index) if position < len => self.reader(share, list_index),
            // A consumed position is only read again by padding.
            _ => self.reader(share, (len - consumed).checked_add(position).filter(|_| position < len)?),
        }
    }

    /// Writes the ranks of the places `from`, `from + 1`, ... of the padded list. The padded list
    /// has the positions from `consumed` on and then the padding, `share * world_size` places in
    /// all. The counterpart of [`AccessStream::fill_list`](crate::AccessStream::fill_list).
    ///
    /// ```
    /// use foreread_oracle::{Deal, Dealing};
    /// use foreread_types::Rank;
    /// # fn main() -> Result<(), foreread_oracle::OracleError> {
    /// let mut ranks = [Rank(0); 6];
    /// Dealing::new(Deal::Blocks, 2, Some(2), false)?.fill_ranks(6, 0, 0, &mut ranks);
    /// assert_eq!(ranks.map(|rank| rank.0), [0, 0, 1, 1, 0, 1]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If `from + out.len()` exceeds the list.
    pub fn fill_ranks(&self, len: u64, consumed: u64, from: u64, out: &mut [Rank]) {
        let share = self.share(len, consumed);
        let ranks = u64::from(self.world_size);
        let end = from.checked_add(out.len() as u64);
        assert!(end.is_some_and(|end| end <= share * ranks), "{} places from {from}", out.len());
        match self.deal {
            Deal::Torch => {
                let mut rank = (from % ranks) as u32;
                for slot in out {
                    *slot = Rank(rank);
                    rank = if rank + 1 == self.world_size { 0 } else { rank + 1 };
                }
            }
            Deal::Blocks => {
                let (mut list_index, mut out) = (from, out);
                while !out.is_empty() {
                    let block = self.block(share, list_index / ranks);
                    let within = list_index - block.start * ranks;
                    let here = (block.size - within % block.size).min(out.len() as u64);
                    let (now, later) = out.split_at_mut(here as usize);
                    now.fill(Rank((within / block.size) as u32));
                    (list_index, out) = (list_index + here, later);
                }
            }
        }
    }

    /// The place in the padded list of a rank's `index`-th sample, with `share` samples per rank.
    #[inline]
    pub(crate) fn list_index(&self, share: u64, rank: Rank, index: u64) -> u64 {
        let ranks = u64::from(self.world_size);
        match self.deal {
            Deal::Torch => index * ranks + u64::from(rank.0),
            Deal::Blocks => {
                let block = self.block(share, index);
                block.start * ranks + u64::from(rank.0) * block.size + (index - block.start)
            }
        }
    }

    /// The rank that reads a place of the padded list, and the index of the sample on that rank.
    pub(crate) fn reader(&self, share: u64, list_index: u64) -> Option<(Rank, u64)> {
        let ranks = u64::from(self.world_size);
        // The first index of a step is below `share`, so the products stay below list + W.
        if list_index / ranks >= share {
            return None;
        }
        Some(match self.deal {
            Deal::Torch => (Rank((list_index % ranks) as u32), list_index / ranks),
            Deal::Blocks => {
                // The samples of earlier steps come first, for all ranks. `list_index / ranks` is
                // within the same step.
                let block = self.block(share, list_index / ranks);
                let within = list_index - block.start * ranks;
                (Rank((within / block.size) as u32), block.start + within % block.size)
            }
        })
    }

    /// The step of a rank's `index`: its first index and the number of samples per rank.
    #[inline]
    pub(crate) fn block(&self, share: u64, index: u64) -> StepBlock {
        let batch = self.batch_size.unwrap_or(share).max(1);
        let start = index / batch * batch;
        StepBlock { start, size: batch.min(share - start) }
    }
}

/// One step of a rank: its samples `start..start + size`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepBlock {
    pub(crate) start: u64,
    pub(crate) size: u64,
}

/// Maps a place in the padded list to a position of the global order.
#[inline]
pub(crate) fn order_position(len: u64, consumed: u64, list_index: u64) -> u64 {
    let list = len - consumed;
    if list_index < list { consumed + list_index } else { (list_index - list) % len }
}
