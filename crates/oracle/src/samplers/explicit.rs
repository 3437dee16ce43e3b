//! Orders that were handed in: any sampler whose future somebody else computed, a Python one that was run ahead among them.

use foreread_types::Fingerprint;

use crate::error::Reason;
use crate::{Fingerprinter, OracleError, Order, Sampler};

/// Epoch `e` reads the `e`-th of the orders that were handed in; behind the last, the future is unknown.
///
/// Ids may repeat or be left out. All orders have one length, because a run's later passes are counted before their
/// orders are looked at.
#[derive(Clone, Debug)]
pub struct Explicit {
    population: u64,
    len: u64,
    distinct: bool,
    orders: Vec<Order>,
    fingerprint: Fingerprint,
}

impl Explicit {
    /// Orders over a dataset of `population` samples, one for each epoch.
    ///
    /// # Errors
    /// No order, orders of different lengths, or an id that is not below `population`.
    pub fn new(population: u64, orders: Vec<Vec<u64>>) -> Result<Self, OracleError> {
        let expected = orders.first().ok_or(Reason::NoOrders)?.len() as u64;
        let mut print =
            Fingerprinter::new("explicit 1").number(population).number(orders.len() as u64).number(expected);
        let mut tables = Vec::with_capacity(orders.len());
        for (epoch, ids) in orders.into_iter().enumerate() {
            let found = ids.len() as u64;
            if found != expected {
                return Err(Reason::Lengths { epoch, found, expected }.into());
            }
            if let Some(&id) = ids.iter().find(|&&id| id >= population) {
                return Err(
                    Reason::Id { id, place: format!("the order of epoch {epoch}"), population }.into()
                );
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

    /// Whether this holds for all of the orders.
    fn is_distinct(&self) -> bool {
        self.distinct
    }

    fn epochs(&self) -> Option<u64> {
        Some(self.orders.len() as u64)
    }

    fn order(&self, epoch: u64) -> Result<Order, OracleError> {
        let order = usize::try_from(epoch).ok().and_then(|epoch| self.orders.get(epoch));
        order.cloned().ok_or_else(|| Reason::Epoch { epoch, epochs: self.orders.len() as u64 }.into())
    }

    /// Names every id of every order, so a run with more orders is another run.
    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}
