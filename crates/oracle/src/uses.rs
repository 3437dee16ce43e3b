//! The inverse of an order: the positions of each sample.
//!
//! Identity and Feistel orders are inverted by computation. Tables are inverted once into arrays of
//! positions. If no id repeats, there is one entry per sample. If ids repeat, there are two arrays,
//! starts and positions, as in a compressed sparse row matrix. If an order names few samples of a
//! large dataset, there are sorted pairs. So memory follows the smaller of the two. Positions take
//! 4 bytes if they fit.

use std::fmt;
use std::sync::Arc;

use foreread_types::SampleId;

use crate::order::{ComputedOrder, Order, OrderKind};
use crate::samplers::Permutation;

/// The positions at which an order uses each sample. Made by [`Order::inverse`], cheap to clone.
#[derive(Clone)]
pub struct OrderInverse(Inverse);

#[derive(Clone)]
enum Inverse {
    Identity { len: u64 },
    Narrow(Arc<PositionTable<u32>>),
    Wide(Arc<PositionTable<u64>>),
    Feistel(Permutation),
    Custom(Arc<dyn ComputedOrder>),
}

impl OrderInverse {
    pub(crate) fn of(order: &Order) -> Self {
        Self(match order.kind() {
            OrderKind::Identity => Inverse::Identity { len: order.len() },
            OrderKind::Small(ids) => invert_table(order, ids),
            OrderKind::Large(ids) => invert_table(order, ids),
            OrderKind::Feistel(permutation) => Inverse::Feistel(permutation.clone()),
            OrderKind::Custom(computed) => Inverse::Custom(computed.clone()),
        })
    }

    /// The first position at or after `from` at which `id` is used. `None` if there is none, or no
    /// such sample.
    ///
    /// O(1) if no id repeats, O(log of the sample's uses) if ids repeat, O(log len) for sparse
    /// orders.
    pub fn next(&self, id: SampleId, from: u64) -> Option<u64> {
        match &self.0 {
            Inverse::Identity { len } => (id.0 >= from && id.0 < *len).then_some(id.0),
            Inverse::Narrow(lists) => lists.next(id.0, from),
            Inverse::Wide(lists) => lists.next(id.0, from),
            Inverse::Feistel(permutation) => (id.0 < permutation.len())
                .then(|| permutation.backward(id.0))
                .filter(|&position| position >= from),
            Inverse::Custom(computed) => computed.next(id, from),
        }
    }
}

impl fmt::Debug for OrderInverse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Inverse::Identity { .. } => "Uses(identity)",
            Inverse::Narrow(_) | Inverse::Wide(_) => "Uses(table)",
            Inverse::Feistel(_) => "Uses(feistel)",
            Inverse::Custom(_) => "Uses(custom)",
        })
    }
}

/// An integer of 4 or 8 bytes in a table.
trait TableWord: Copy + Ord {
    /// No position. Tables of 4 bytes are only used if all positions are below this.
    const NO_POSITION: Self;
    fn new(value: u64) -> Self;
    fn get(self) -> u64;
}

impl TableWord for u32 {
    const NO_POSITION: Self = Self::MAX;
    fn new(value: u64) -> Self {
        value as Self
    }
    fn get(self) -> u64 {
        u64::from(self)
    }
}

impl TableWord for u64 {
    const NO_POSITION: Self = Self::MAX;
    fn new(value: u64) -> Self {
        value
    }
    fn get(self) -> u64 {
        self
    }
}

enum PositionTable<P> {
    /// By id: its only position, or `NO_POSITION`.
    Once(Vec<P>),
    /// The positions of `id` are `positions[starts[id]..starts[id + 1]]`, ascending.
    Many { starts: Vec<P>, positions: Vec<P> },
    /// (id, position), ascending.
    Sparse(Vec<(u64, P)>),
}

fn invert_table<T: TableWord>(order: &Order, ids: &[T]) -> Inverse {
    if order.len() < u64::from(u32::MAX) {
        Inverse::Narrow(Arc::new(PositionTable::new(order.population(), order.is_distinct(), ids)))
    } else {
        Inverse::Wide(Arc::new(PositionTable::new(order.population(), order.is_distinct(), ids)))
    }
}

impl<P: TableWord> PositionTable<P> {
    fn new<T: TableWord>(population: u64, distinct: bool, ids: &[T]) -> Self {
        if population / 8 > ids.len() as u64 {
            let mut pairs: Vec<_> =
                ids.iter().enumerate().map(|(position, id)| (id.get(), P::new(position as u64))).collect();
            pairs.sort_unstable();
            return Self::Sparse(pairs);
        }
        if distinct {
            let mut table = vec![P::NO_POSITION; population as usize];
            for (position, id) in ids.iter().enumerate() {
                table[id.get() as usize] = P::new(position as u64);
            }
            return Self::Once(table);
        }
        // A counting sort: count, sum up, and place from the back. This leaves each start at its
        // final value.
        let mut starts = vec![P::new(0); population as usize + 1];
        for id in ids {
            let count = &mut starts[id.get() as usize];
            *count = P::new(count.get() + 1);
        }
        let mut end = 0;
        for start in &mut starts {
            end += start.get();
            *start = P::new(end);
        }
        let mut positions = vec![P::NO_POSITION; ids.len()];
        for (position, id) in ids.iter().enumerate().rev() {
            let start = &mut starts[id.get() as usize];
            *start = P::new(start.get() - 1);
            positions[start.get() as usize] = P::new(position as u64);
        }
        Self::Many { starts, positions }
    }

    fn next(&self, id: u64, from: u64) -> Option<u64> {
        let index = usize::try_from(id).ok()?;
        match self {
            Self::Once(table) => {
                let position = *table.get(index)?;
                (position != P::NO_POSITION && position.get() >= from).then(|| position.get())
            }
            Self::Many { starts, positions } => {
                let end = starts.get(index.checked_add(1)?)?.get() as usize;
                let uses = &positions[starts[index].get() as usize..end];
                uses.get(uses.partition_point(|position| position.get() < from))
                    .map(|position| position.get())
            }
            Self::Sparse(pairs) => {
                let at = pairs.partition_point(|&(other, position)| (other, position.get()) < (id, from));
                pairs.get(at).filter(|&&(other, _)| other == id).map(|&(_, position)| position.get())
            }
        }
    }
}
