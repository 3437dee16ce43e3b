//! How a global order is split among the ranks.
//!
//! The positions of the order from `consumed` (what was read before a resume; 0 at first) to its end form a list. Every
//! rank gets a share of it, and all shares are equally long:
//!
//! * without `drop_last`, `ceil(list / W)` for a world size of W; the list is padded with the *epoch's own beginning*,
//!   repeated as often as needed. Padding from the beginning of what is left would, after a resume, repeat other samples
//!   than the uninterrupted run repeats; this way a resumed epoch pads as a whole one does;
//! * with `drop_last`, `floor(list / W)`: the list is cut. Where there is a batch size, a rank's short last batch is
//!   dropped as well, as `DataLoader(drop_last=True)` does.
//!
//! Who gets what is the [`Deal`]. Either way, the first `t` batches of all ranks together are the first `t * W * B`
//! positions of the list, so that one number, `consumed`, says what a run has read, whatever its world size is next.
//!
//! Everything is arithmetic on positions: no table, and O(1) in both directions.

use std::fmt;
use std::str::FromStr;

use foreread_types::Rank;

use crate::error::{OracleError, Reason};

/// Which rank gets which position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Deal {
    /// As PyTorch's `DistributedSampler`: rank r gets positions r, r + W, r + 2W, ...
    #[default]
    Torch,
    /// Step t's global batch is the next `W * B` positions and rank r gets the r-th block of B of them. In the short
    /// last step each rank gets its block of what remains. Without a batch size the pass is one step.
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
            _ => Err(Reason::Deal(text.to_owned()).into()),
        }
    }
}

/// How a pass is split: the [`Deal`], the world size, the batch size and whether what is left over is dropped.
///
/// Methods take `len`, the global order's length, and `consumed`, how many of its positions were read before; both in
/// samples. `len` is at most 2^63 and `consumed` at most `len`.
///
/// ```
/// use foreread_oracle::{Deal, Dealing};
/// use foreread_types::Rank;
/// # fn main() -> Result<(), foreread_oracle::OracleError> {
/// let dealing = Dealing::new(Deal::Torch, 4, None, false)?;
/// assert_eq!(dealing.share(10, 0), 3);
/// // Rank 3 reads positions 3 and 7; 11 lies behind the end, so it is padded with position 1.
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
    /// Deals to `world_size` ranks in batches of `batch_size` samples a rank; no batch size is one batch a pass.
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
            return Err(Reason::WorldSize.into());
        }
        if batch_size == Some(0) {
            return Err(Reason::BatchSize.into());
        }
        Ok(Self { deal, world_size, batch_size, drop_last })
    }

    /// Which rank gets which position.
    pub fn deal(&self) -> Deal {
        self.deal
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// How many samples a rank's batch has; `None` for one batch a pass.
    pub fn batch_size(&self) -> Option<u64> {
        self.batch_size
    }

    /// Whether what is left over is dropped, and not padded.
    pub fn drop_last(&self) -> bool {
        self.drop_last
    }

    /// How many samples each rank gets.
    pub fn share(&self, len: u64, consumed: u64) -> u64 {
        let list = len.saturating_sub(consumed);
        let ranks = u64::from(self.world_size);
        match (self.drop_last, self.batch_size) {
            (false, _) => list.div_ceil(ranks),
            (true, None) => list / ranks,
            (true, Some(batch)) => list / ranks / batch * batch,
        }
    }

    /// How many batches each rank gets, the short last one included.
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
        wrap(len, consumed, self.listed(share, rank, index))
    }

    /// Which rank reads a position of the global order, and as which of its samples; `None` where no rank does, because
    /// it was consumed before or is dropped. Where padding repeats the position, this is the first use.
    pub fn locate(&self, len: u64, consumed: u64, position: u64) -> Option<(Rank, u64)> {
        let share = self.share(len, consumed);
        match position.checked_sub(consumed) {
            Some(listed) if position < len => self.owner(share, listed),
            // Consumed before: only padding reads it again, if that reaches so far.
            _ => self.owner(share, (len - consumed).checked_add(position).filter(|_| position < len)?),
        }
    }

    /// Writes which ranks get the places `from`, `from + 1`, ... of the padded list: of the positions from `consumed` on,
    /// with the padding behind them, `share * world_size` in all. The other side of
    /// [`AccessStream::fill_list`](crate::AccessStream::fill_list).
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
                let (mut listed, mut out) = (from, out);
                while !out.is_empty() {
                    let block = self.block(share, listed / ranks);
                    let within = listed - block.start * ranks;
                    let here = (block.size - within % block.size).min(out.len() as u64);
                    let (now, later) = out.split_at_mut(here as usize);
                    now.fill(Rank((within / block.size) as u32));
                    (listed, out) = (listed + here, later);
                }
            }
        }
    }

    /// The place in the padded list of a rank's `index`-th sample, with `share` samples for each rank.
    #[inline]
    pub(crate) fn listed(&self, share: u64, rank: Rank, index: u64) -> u64 {
        let ranks = u64::from(self.world_size);
        match self.deal {
            Deal::Torch => index * ranks + u64::from(rank.0),
            Deal::Blocks => {
                let block = self.block(share, index);
                block.start * ranks + u64::from(rank.0) * block.size + (index - block.start)
            }
        }
    }

    /// The rank that gets a place in the padded list, and its index there.
    pub(crate) fn owner(&self, share: u64, listed: u64) -> Option<(Rank, u64)> {
        let ranks = u64::from(self.world_size);
        // One step's first index is below `share`, so the products stay below list + W.
        if listed / ranks >= share {
            return None;
        }
        Some(match self.deal {
            Deal::Torch => (Rank((listed % ranks) as u32), listed / ranks),
            Deal::Blocks => {
                // All ranks' samples of the steps before come before; listed / ranks is within the same step.
                let block = self.block(share, listed / ranks);
                let within = listed - block.start * ranks;
                (Rank((within / block.size) as u32), block.start + within % block.size)
            }
        })
    }

    /// The step that a rank's `index` lies in: its first index, and how many samples each rank has in it.
    #[inline]
    pub(crate) fn block(&self, share: u64, index: u64) -> Block {
        let batch = self.batch_size.unwrap_or(share).max(1);
        let start = index / batch * batch;
        Block { start, size: batch.min(share - start) }
    }
}

/// One step of a rank: its samples `start..start + size`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) start: u64,
    pub(crate) size: u64,
}

/// From a place in the padded list to a position of the global order.
#[inline]
pub(crate) fn wrap(len: u64, consumed: u64, listed: u64) -> u64 {
    let list = len - consumed;
    if listed < list { consumed + listed } else { (listed - list) % len }
}
