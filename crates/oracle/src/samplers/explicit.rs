//! Orders given by the caller, such as those of a Python sampler that was run ahead.

use foreread_types::Fingerprint;

use crate::error::OracleReason;
use crate::{Fingerprinter, OracleError, Order, Sampler};

/// Epoch `e` reads the `e`-th given order. After the last one, the order is unknown.
///
/// Ids may repeat or be missing. All orders have the same length, because a run counts later passes
/// before it computes their orders.
#[derive(Clone, Debug)]
pub struct Explicit {
    population: u64,
    len: u64,
    distinct: bool,
    orders: Vec<Order>,
    fingerprint: Fingerprint,
}

impl Explicit {
    /// Orders over a dataset of `population` samples, one per epoch.
    ///
    /// # Errors
    /// No order, orders of different lengths, or an id that is not below `population`.
    pub fn new(population: u64, orders: Vec<Vec<u64>>) -> Result<Self, OracleError> {
        let expected = orders.first().ok_or(OracleReason::NoOrders)?.len() as u64;
        let mut print =
            Fingerprinter::new("explicit 1").number(population).number(orders.len() as u64).number(expected);
        let mut tables = Vec::with_capacity(orders.len());
        for (epoch, ids) in orders.into_iter().enumerate() {
            let found = ids.len() as u64;
            if found != expected {
                return Err(OracleReason::Lengths { epoch, found, expected }.into());
            }
            if let Some(&id) = ids.iter().find(|&&id| id >= population) {
                return Err(OracleReason::Id {
                    id,
                    place: format!("the order of epoch {epoch}"),
                    population,
                }
                .into());
            }
            print = print.numbers(ids.iter().copied());
            tables.push(Order::table(population, ids)?);
        }
        Ok(Self {
            population,
            len: expected,
            distinct: tables.iter().all(Order::is_distinct),
            orders: tables,
            fingerprint: print.finish(),
        })
    }
}

impl Sampler for Explicit {
    fn population(&self) -> u64 {
        self.population
    }

    fn len(&self) -> u64 {
        self.len
    }

    /// Whether no order repeats an id.
    fn is_distinct(&self) -> bool {
        self.distinct
    }

    fn epochs(&self) -> Option<u64> {
        Some(self.orders.len() as u64)
    }

    fn order(&self, epoch: u64) -> Result<Order, OracleError> {
        let order = usize::try_from(epoch).ok().and_then(|epoch| self.orders.get(epoch));
        order.cloned().ok_or_else(|| OracleReason::Epoch { epoch, epochs: self.orders.len() as u64 }.into())
    }

    /// Covers every id of every order. So a run with more orders has another fingerprint.
    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}
