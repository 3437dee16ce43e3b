//! The global order of one pass, before it is dealt to ranks.
//!
//! An order is a value: cheap to clone, readable at any position, and invertible. It holds one enum
//! that is matched once per chunk of positions. Only custom orders pay for a virtual call, also
//! once per chunk. Tables hold 4 bytes per sample if the ids fit, otherwise 8. Identity and Feistel
//! orders hold no table.

use std::fmt;
use std::sync::Arc;

use foreread_types::SampleId;

use crate::error::{OracleError, OracleReason};
use crate::samplers::Permutation;
use crate::uses::OrderInverse;

/// The maximum number of samples in an order.
pub(crate) const MAX_SAMPLES: u64 = 1 << 63;

/// The sample ids of one pass over a dataset, by position `0..len`, as all ranks together read
/// them.
///
/// ```
/// use foreread_oracle::{Sampler, Shuffle};
/// use foreread_types::SampleId;
/// # fn main() -> Result<(), foreread_oracle::OracleError> {
/// let order = Shuffle::new(1000, 42)?.order(0)?;
/// let mut every_tenth = [SampleId(0); 5];
/// order.fill(3, 10, &mut every_tenth);
/// assert_eq!(every_tenth[1], order.at(13));
/// assert_eq!(order.inverse().next(order.at(13), 0), Some(13));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Order {
    population: u64,
    len: u64,
    distinct: bool,
    kind: OrderKind,
}

#[derive(Clone)]
pub(crate) enum OrderKind {
    Identity,
    // A vector in an `Arc`, not a slice: filled in place, allocated fallibly, never copied.
    Small(Arc<Vec<u32>>),
    Large(Arc<Vec<u64>>),
    Feistel(Permutation),
    Custom(Arc<dyn ComputedOrder>),
}

/// An order that a custom sampler computes position by position, if a table of ids would not do.
///
/// It must be a pure function of the position. [`next`](Self::next) must agree with
/// [`fill`](Self::fill).
pub trait ComputedOrder: fmt::Debug + Send + Sync {
    /// The number of samples in the dataset. All ids lie below it.
    fn population(&self) -> u64;

    /// The number of positions.
    fn len(&self) -> u64;

    /// Whether there are no positions.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no id occurs twice.
    fn is_distinct(&self) -> bool;

    /// Writes the ids at positions `from`, `from + step`, ... into `out`. All positions lie below
    /// `len`.
    fn fill(&self, from: u64, step: u64, out: &mut [SampleId]);

    /// The first position at or after `from` that reads `id`.
    fn next(&self, id: SampleId, from: u64) -> Option<u64>;
}

impl Order {
    /// The order `0, 1, .., samples - 1`. Needs no memory.
    pub fn identity(samples: u64) -> Result<Self, OracleError> {
        check_samples(samples)?;
        Ok(Self { population: samples, len: samples, distinct: true, kind: OrderKind::Identity })
    }

    /// An order given as a table of ids below `population`. Ids may repeat or be missing.
    ///
    /// # Errors
    /// An id that is not below `population`, or a population of more than 2^63.
    pub fn table(population: u64, ids: Vec<u64>) -> Result<Self, OracleError> {
        check_samples(population)?;
        if let Some(at) = ids.iter().position(|&id| id >= population) {
            let place = format!("position {at} of the order");
            return Err(OracleReason::Id { id: ids[at], place, population }.into());
        }
        let distinct = is_distinct(population, &ids);
        Ok(if population <= 1 << 32 {
            Self::small(population, ids.into_iter().map(|id| id as u32).collect(), distinct)
        } else {
            Self::large(population, ids, distinct)
        })
    }

    /// An order that is computed position by position.
    ///
    /// # Errors
    /// A population or length of more than 2^63.
    pub fn custom(computed: Arc<dyn ComputedOrder>) -> Result<Self, OracleError> {
        check_samples(computed.population())?;
        check_samples(computed.len())?;
        Ok(Self {
            population: computed.population(),
            len: computed.len(),
            distinct: computed.is_distinct(),
            kind: OrderKind::Custom(computed),
        })
    }

    pub(crate) fn small(population: u64, ids: Vec<u32>, distinct: bool) -> Self {
        Self { population, len: ids.len() as u64, distinct, kind: OrderKind::Small(Arc::new(ids)) }
    }

    pub(crate) fn large(population: u64, ids: Vec<u64>, distinct: bool) -> Self {
        Self { population, len: ids.len() as u64, distinct, kind: OrderKind::Large(Arc::new(ids)) }
    }

    pub(crate) fn feistel(permutation: Permutation) -> Self {
        let samples = permutation.len();
        Self { population: samples, len: samples, distinct: true, kind: OrderKind::Feistel(permutation) }
    }

    pub(crate) fn kind(&self) -> &OrderKind {
        &self.kind
    }

    /// The number of positions.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no positions.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of samples in the dataset. All ids lie below it.
    pub fn population(&self) -> u64 {
        self.population
    }

    /// Whether no id occurs twice.
    pub fn is_distinct(&self) -> bool {
        self.distinct
    }

    /// The sample that is read at `position`. For many positions, [`fill`](Self::fill) is faster.
    ///
    /// # Panics
    /// If `position` is not below `len`.
    pub fn at(&self, position: u64) -> SampleId {
        assert!(position < self.len, "position {position} of an order of {}", self.len);
        match &self.kind {
            OrderKind::Identity => SampleId(position),
            OrderKind::Small(ids) => SampleId(u64::from(ids[position as usize])),
            OrderKind::Large(ids) => SampleId(ids[position as usize]),
            OrderKind::Feistel(permutation) => SampleId(permutation.forward(position)),
            OrderKind::Custom(computed) => {
                let mut out = [SampleId(0)];
                computed.fill(position, 1, &mut out);
                out[0]
            }
        }
    }

    /// Writes the samples at positions `from`, `from + step`, `from + 2 * step`, ... into `out`,
    /// which may be empty.
    ///
    /// # Panics
    /// If one of the positions is not below `len`.
    pub fn fill(&self, from: u64, step: u64, out: &mut [SampleId]) {
        let Some(steps) = (out.len() as u64).checked_sub(1) else { return };
        let last = steps.checked_mul(step).and_then(|span| span.checked_add(from));
        assert!(
            last.is_some_and(|last| last < self.len),
            "{} positions from {from} by {step} of an order of {}",
            out.len(),
            self.len
        );
        match &self.kind {
            OrderKind::Identity => positions(from, step, out, |position| position),
            OrderKind::Small(ids) if step == 1 => {
                let ids = &ids[from as usize..];
                out.iter_mut().zip(ids).for_each(|(slot, &id)| *slot = SampleId(u64::from(id)));
            }
            OrderKind::Small(ids) => positions(from, step, out, |position| u64::from(ids[position as usize])),
            OrderKind::Large(ids) => positions(from, step, out, |position| ids[position as usize]),
            OrderKind::Feistel(permutation) => {
                positions(from, step, out, |position| permutation.forward(position))
            }
            OrderKind::Custom(computed) => computed.fill(from, step, out),
        }
    }

    /// Checks that all ids lie below `population`. Tables and permutations were checked on
    /// construction. Only a custom order is read through, once per pass.
    ///
    /// # Errors
    /// The first id that is out of range.
    pub(crate) fn check_ids(&self, population: u64) -> Result<(), OracleError> {
        const CHUNK: u64 = 1024;
        if self.population <= population && !matches!(self.kind, OrderKind::Custom(_)) {
            return Ok(());
        }
        let mut chunk = Vec::new();
        for from in (0..self.len).step_by(CHUNK as usize) {
            chunk.resize(CHUNK.min(self.len - from) as usize, SampleId(0));
            self.fill(from, 1, &mut chunk);
            if let Some(at) = chunk.iter().position(|id| id.0 >= population) {
                let place = format!("position {} of the order", from + at as u64);
                return Err(OracleReason::Id { id: chunk[at].0, place, population }.into());
            }
        }
        Ok(())
    }

    /// The positions of each sample. Takes O(len) time and 4 bytes per sample for tables, nothing
    /// for the others.
    pub fn inverse(&self) -> OrderInverse {
        OrderInverse::of(self)
    }
}

#[inline]
fn positions(from: u64, step: u64, out: &mut [SampleId], id: impl Fn(u64) -> u64) {
    let mut position = from;
    for slot in out {
        *slot = SampleId(id(position));
        // The step after the last position may overflow. Its value is not used.
        position = position.wrapping_add(step);
    }
}

impl fmt::Debug for Order {
    /// The kind and the numbers, not the table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.kind {
            OrderKind::Identity => "identity",
            OrderKind::Small(_) | OrderKind::Large(_) => "table",
            OrderKind::Feistel(_) => "feistel",
            OrderKind::Custom(_) => "custom",
        };
        f.debug_struct("Order")
            .field("kind", &kind)
            .field("population", &self.population)
            .field("len", &self.len)
            .field("distinct", &self.distinct)
            .finish()
    }
}

/// Rejects more samples than [`MAX_SAMPLES`].
pub(crate) fn check_samples(samples: u64) -> Result<(), OracleError> {
    if samples > MAX_SAMPLES { Err(OracleReason::Samples { samples }.into()) } else { Ok(()) }
}

/// An empty table with capacity for `samples` entries, or an error if memory does not suffice.
pub(crate) fn try_with_capacity<T>(samples: u64) -> Result<Vec<T>, OracleError> {
    let mut table = Vec::new();
    let entries = usize::try_from(samples).map_err(|_| OracleReason::Memory { samples })?;
    table.try_reserve_exact(entries).map_err(|_| OracleReason::Memory { samples })?;
    Ok(table)
}

/// Whether no id occurs twice. Uses a bitmap if the population is not much larger than the order,
/// otherwise sorting.
pub(crate) fn is_distinct(population: u64, ids: &[u64]) -> bool {
    if ids.len() as u64 > population {
        return false;
    }
    if population / 64 <= ids.len() as u64 {
        let mut seen = vec![0u64; (population / 64 + 1) as usize];
        return ids.iter().all(|&id| {
            let word = &mut seen[(id / 64) as usize];
            let bit = 1u64 << (id % 64);
            let new = *word & bit == 0;
            *word |= bit;
            new
        });
    }
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1])
}
