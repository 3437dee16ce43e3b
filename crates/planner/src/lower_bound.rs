//! The lower bound of origin bytes for any policy. JSON keys call it the floor.
//!
//! A use in epoch `e` that needs no origin read in epoch `e` was resident when the epoch began. So
//! it had been read before. At most C bytes are resident. So epoch `e` reads at least the distinct
//! bytes that it uses, minus C or minus the bytes seen before, whichever is smaller. A run reads at
//! least
//!
//! ```text
//! floor = sum over epochs e of  bytes(A_e) - min(C, bytes(A_e seen before e))
//! ```
//!
//! This holds for any policy, clairvoyant or not, prefetching or not. `A_e` are the distinct
//! samples of epoch `e` over all its phases. C are the bytes of all caches and of the look-ahead.
//! For whole epochs of one dataset of S bytes the bound is `S + (E - 1) * max(0, S - C)`. It is
//! reached if every epoch uses the same samples once each. If samples recur within an epoch or are
//! absent for several, it may lie below the best policy.

use foreread_oracle::Run;
use foreread_types::Sizes;

use crate::demand::{Demand, EpochDemand, Scope};
use crate::error::PlanError;
use crate::wide::narrow;

/// The formula: the lower bound of origin bytes with caches of `capacity` bytes. Saturates at
/// `u64::MAX`.
///
/// ```
/// use foreread_planner::{EpochDemand, floor};
/// let epochs = [EpochDemand { distinct: 100, seen: 0 }, EpochDemand { distinct: 100, seen: 100 }];
/// assert_eq!(floor(&epochs, 30), 100 + 70);
/// assert_eq!(floor(&epochs, 500), 100);
/// ```
pub fn floor(epochs: &[EpochDemand], capacity: u64) -> u64 {
    let sum: u128 =
        epochs.iter().map(|epoch| u128::from(epoch.distinct.saturating_sub(capacity.min(epoch.seen)))).sum();
    narrow(sum)
}

/// A lower bound, and whether it was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowerBound {
    /// Origin bytes.
    pub bytes: u64,
    /// Whether every pass was counted. If not, the run was too long (see [`Demand`]), and the
    /// figure is an estimate that may be too high or too low.
    pub exact: bool,
}

impl LowerBound {
    /// The lower bound of the rest of a run: of its rank alone, or of all ranks together.
    ///
    /// `capacity` is the bytes of all caches and look-ahead of `scope`. No sample counts as seen at
    /// the beginning. So the caches of a resumed run count as cold.
    ///
    /// # Errors
    /// As for [`Demand::of`].
    pub fn of(run: &Run, sizes: &[Sizes], capacity: u64, scope: Scope) -> Result<Self, PlanError> {
        Ok(Self::of_demand(&Demand::of(run, sizes, scope)?, capacity))
    }

    /// The lower bound of a counted demand.
    pub(crate) fn of_demand(demand: &Demand, capacity: u64) -> Self {
        Self { bytes: floor(demand.epochs(), capacity), exact: demand.is_exact() }
    }
}
