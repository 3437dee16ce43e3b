//! Orders over chosen samples of a dataset: a part for training, another for validation.
//!
//! The inner sampler draws positions among the chosen samples, and a table turns them into ids. So
//! passes over different parts of one dataset have one id for one sample, and its caches serve all
//! of them. The price: an order has a table of ids, even where the inner sampler computes its own.

use std::fmt;
use std::sync::Arc;

use foreread_types::{Fingerprint, SampleId};

use crate::error::OracleReason;
use crate::order::{check_samples, is_distinct, try_with_capacity};
use crate::{Fingerprinter, OracleError, Order, Sampler};

/// Reads chosen samples of a dataset in the order that another sampler draws over their positions.
///
/// ```
/// use std::sync::Arc;
/// use foreread_oracle::{Sampler, Sequential, Subset};
/// # fn main() -> Result<(), foreread_oracle::OracleError> {
/// let chosen: Arc<[u64]> = [7, 2, 5].into();
/// let sampler = Subset::new(10, chosen, Arc::new(Sequential::new(3)?))?;
/// let order = sampler.order(0)?;
/// assert_eq!((order.population(), order.len(), order.at(1).0), (10, 3, 2));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Subset {
    population: u64,
    ids: Arc<[u64]>,
    inner: Arc<dyn Sampler>,
    distinct: bool,
    fingerprint: Fingerprint,
}

impl Subset {
    /// The samples `ids` of a dataset of `population` samples, in the orders of `inner`. Ids may
    /// repeat.
    ///
    /// # Errors
    /// An id that is not below `population`, or an inner sampler over another number of samples.
    pub fn new(population: u64, ids: Arc<[u64]>, inner: Arc<dyn Sampler>) -> Result<Self, OracleError> {
        check_samples(population)?;
        if let Some(at) = ids.iter().position(|id| *id >= population) {
            let place = format!("position {at} of the chosen samples");
            return Err(OracleReason::Id { id: ids[at], place, population }.into());
        }
        let (found, expected) = (inner.population(), ids.len() as u64);
        if found != expected {
            return Err(OracleReason::Subset { found, expected }.into());
        }
        let print = Fingerprinter::new("subset 1").number(population).part(inner.fingerprint());
        let fingerprint = print.numbers(ids.iter().copied()).finish();
        let distinct = is_distinct(population, &ids);
        Ok(Self { population, ids, inner, distinct, fingerprint })
    }

    /// The ids of `order`'s positions, in entries of this type.
    fn table<T>(&self, order: &Order, entry: impl Fn(u64) -> T) -> Result<Vec<T>, OracleError> {
        const CHUNK: usize = 1024;
        let mut table = try_with_capacity(order.len())?;
        let mut chunk = [SampleId(0); CHUNK];
        for from in (0..order.len()).step_by(CHUNK) {
            let chunk = &mut chunk[..CHUNK.min((order.len() - from) as usize)];
            order.fill(from, 1, chunk);
            table.extend(chunk.iter().map(|position| entry(self.ids[position.0 as usize])));
        }
        Ok(table)
    }
}

impl Sampler for Subset {
    fn population(&self) -> u64 {
        self.population
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn readable(&self) -> u64 {
        self.population.min(self.ids.len() as u64)
    }

    fn is_distinct(&self) -> bool {
        self.distinct && self.inner.is_distinct()
    }

    fn repeats(&self) -> bool {
        self.inner.repeats()
    }

    fn epochs(&self) -> Option<u64> {
        self.inner.epochs()
    }

    fn order(&self, epoch: u64) -> Result<Order, OracleError> {
        let order = self.inner.order(epoch)?;
        order.check_ids(self.ids.len() as u64)?;
        let distinct = self.distinct && order.is_distinct();
        Ok(if self.population <= 1 << 32 {
            Order::small(self.population, self.table(&order, |id| id as u32)?, distinct)
        } else {
            Order::large(self.population, self.table(&order, |id| id)?, distinct)
        })
    }

    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl fmt::Debug for Subset {
    /// The numbers, not the table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { population, inner, ids, .. } = self;
        f.debug_struct("Subset")
            .field("population", population)
            .field("chosen", &ids.len())
            .field("inner", inner)
            .finish()
    }
}
