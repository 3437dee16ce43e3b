//! The samples that one rank reads in one pass.

use std::sync::{Arc, OnceLock};

use foreread_types::{Rank, SampleId};

use crate::dealing::order_position;
use crate::error::{OracleError, OracleReason};
use crate::{Deal, Dealing, Order, OrderInverse};

/// The samples that one rank reads in one pass, by index `0..len`. Cheap to clone.
///
/// Forwards, it reads the order through the dealing's arithmetic, one chunk at a time. Backwards
/// ([`next_use`](Self::next_use)), it inverts the order at the first query and keeps the inverse,
/// shared among clones.
#[derive(Clone, Debug)]
pub struct AccessStream {
    order: Order,
    dealing: Dealing,
    rank: Rank,
    consumed: u64,
    share: u64,
    uses: Arc<OnceLock<OrderInverse>>,
    /// The rank's samples, if a plan deals them instead of arithmetic.
    dealt: Option<Arc<[SampleId]>>,
}

impl AccessStream {
    /// The stream of `rank` over `order`, of which `consumed` positions were read before.
    ///
    /// # Errors
    /// A rank that is not below the world size, or more consumed positions than the order has.
    pub fn new(order: Order, dealing: Dealing, rank: Rank, consumed: u64) -> Result<Self, OracleError> {
        check_rank(rank, dealing.world_size())?;
        let len = order.len();
        if consumed > len {
            return Err(OracleReason::Consumed { consumed, len }.into());
        }
        let share = dealing.share(len, consumed);
        Ok(Self { order, dealing, rank, consumed, share, uses: Arc::default(), dealt: None })
    }

    /// The stream of another rank of the same pass, as the arithmetic deals it. The order and its
    /// inverse are shared.
    ///
    /// # Errors
    /// A rank that is not below the world size.
    pub fn of_rank(&self, rank: Rank) -> Result<Self, OracleError> {
        check_rank(rank, self.dealing.world_size())?;
        Ok(Self { rank, dealt: None, ..self.clone() })
    }

    /// The same stream with the samples that a plan deals to this rank, in the order in which it
    /// reads them. Positions, shares and resumes are not affected.
    ///
    /// # Errors
    /// Another number of samples than the rank reads.
    pub fn dealt(self, samples: Vec<SampleId>) -> Result<Self, OracleError> {
        let found = samples.len() as u64;
        if found != self.share {
            return Err(OracleReason::Dealt { found, share: self.share }.into());
        }
        Ok(Self { dealt: Some(samples.into()), ..self })
    }

    /// The global order.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// The dealing of the order.
    pub fn dealing(&self) -> Dealing {
        self.dealing
    }

    /// The rank that reads.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The number of samples that the rank reads, including padding.
    pub fn len(&self) -> u64 {
        self.share
    }

    /// Whether the rank reads nothing.
    pub fn is_empty(&self) -> bool {
        self.share == 0
    }

    /// The rank's `index`-th sample. For many samples, [`fill`](Self::fill) is faster.
    ///
    /// # Panics
    /// If `index` is not below `len`.
    pub fn at(&self, index: u64) -> SampleId {
        if let Some(dealt) = &self.dealt {
            return dealt[index as usize];
        }
        self.order.at(self.dealing.position(self.order.len(), self.consumed, self.rank, index))
    }

    /// Writes the samples `from`, `from + 1`, ... into `out`, which may be empty.
    ///
    /// # Panics
    /// If `from + out.len()` exceeds `len`.
    pub fn fill(&self, from: u64, out: &mut [SampleId]) {
        let end = from.checked_add(out.len() as u64);
        assert!(
            end.is_some_and(|end| end <= self.share),
            "{} samples from {from} of a stream of {}",
            out.len(),
            self.share
        );
        if let Some(dealt) = &self.dealt {
            return out.copy_from_slice(&dealt[from as usize..from as usize + out.len()]);
        }
        match self.dealing.deal() {
            Deal::Torch => {
                self.fill_from_list(self.list_index(from), u64::from(self.dealing.world_size()), out);
            }
            Deal::Blocks => {
                let (mut from, mut out) = (from, out);
                while !out.is_empty() {
                    let block = self.dealing.block(self.share, from);
                    let here = (block.start + block.size - from).min(out.len() as u64);
                    let (now, later) = out.split_at_mut(here as usize);
                    self.fill_from_list(self.list_index(from), 1, now);
                    (from, out) = (from + here, later);
                }
            }
        }
    }

    /// The number of places in the padded list that is dealt to all ranks.
    pub fn list_len(&self) -> u64 {
        self.share * u64::from(self.dealing.world_size())
    }

    /// Writes the samples at the places `from`, `from + 1`, ... of the padded list into `out`. The
    /// list holds the reads of all ranks together, step after step. [`Dealing::fill_ranks`] gives
    /// the rank of each place.
    ///
    /// # Panics
    /// If `from + out.len()` exceeds [`list_len`](Self::list_len).
    pub fn fill_list(&self, from: u64, out: &mut [SampleId]) {
        let end = from.checked_add(out.len() as u64);
        assert!(end.is_some_and(|end| end <= self.list_len()), "{} places from {from}", out.len());
        self.fill_from_list(from, 1, out);
    }

    /// The number of positions of the order that were read before.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Places `list_index`, `list_index + step`, ... of the padded list: first those of the order,
    /// then the padding.
    fn fill_from_list(&self, list_index: u64, step: u64, out: &mut [SampleId]) {
        let list = self.order.len() - self.consumed;
        let own = list.saturating_sub(list_index).div_ceil(step).min(out.len() as u64);
        let (own_out, padding) = out.split_at_mut(own as usize);
        self.order.fill(self.consumed + list_index.min(list), step, own_out);
        for (slot, nth) in padding.iter_mut().zip(own..) {
            *slot = self.order.at(order_position(self.order.len(), self.consumed, list_index + nth * step));
        }
    }

    fn list_index(&self, index: u64) -> u64 {
        self.dealing.list_index(self.share, self.rank, index)
    }

    /// The inverse of the global order. Computed at the first call, in O(len) for tables, and then
    /// kept.
    pub fn uses(&self) -> &OrderInverse {
        self.uses.get_or_init(|| self.order.inverse())
    }

    /// The first index at or after `from` at which this rank reads `id`. `None` if there is none.
    ///
    /// The first call inverts the order. Later calls are O(1) if no id repeats. If ids repeat, they
    /// are at most O(uses of the sample by all ranks). For a stream that was [`dealt`](Self::dealt)
    /// by a plan, every call is O(len).
    pub fn next_use(&self, id: SampleId, from: u64) -> Option<u64> {
        if from >= self.share || id.0 >= self.order.population() {
            return None;
        }
        if let Some(dealt) = &self.dealt {
            let later = dealt[from as usize..].iter().position(|other| *other == id);
            return later.map(|after| from + after as u64);
        }
        let len = self.order.len();
        let list = len - self.consumed;
        let own_index = |list_index: u64| {
            self.dealing
                .reader(self.share, list_index)
                .filter(|&(rank, index)| rank == self.rank && index >= from)
        };
        // A rank's places in the list ascend with its indices, so the first match is the next use.
        let first = self.list_index(from);
        let mut position = if first < list { self.uses().next(id, self.consumed + first) } else { None };
        while let Some(used) = position {
            if let Some((_, index)) = own_index(used - self.consumed) {
                return Some(index);
            }
            position = self.uses().next(id, used + 1);
        }
        // Padding: fewer than W places after the list, read from the order's beginning.
        let padding = self.list_len().saturating_sub(list);
        if padding > len {
            // With fewer samples than ranks, every rank reads a single one.
            return (from..self.share).find(|&index| self.at(index) == id);
        }
        let mut position = if padding > 0 { self.uses().next(id, 0) } else { None };
        while let Some(used) = position.filter(|&used| used < padding) {
            if let Some((_, index)) = own_index(list + used) {
                return Some(index);
            }
            position = self.uses().next(id, used + 1);
        }
        None
    }
}

/// Rejects a rank that is not below the world size.
pub(crate) fn check_rank(rank: Rank, world_size: u32) -> Result<(), OracleError> {
    if rank.0 < world_size { Ok(()) } else { Err(OracleReason::Rank { rank, world_size }.into()) }
}
