//! Throughput as a function of parallelism.
//!
//! Measured at a few points and linear between them, as in the performance model of R. Böhringer's
//! thesis (ETH, 2020, chapter 5). Disks, networks and file systems are faster under some
//! parallelism than under none, and follow no simple law. Outside the points the nearest one
//! counts, because nothing is known there. All values are integers, so decisions based on a curve
//! are the same on every machine.

use crate::error::PlanReason;
use crate::wide::narrow;

/// Bytes per second by parallelism: threads, readers, clients.
///
/// ```
/// use foreread_planner::Curve;
/// # fn main() -> Result<(), foreread_planner::PlanError> {
/// let aggregate = Curve::new(vec![(1, 66), (2, 86), (4, 146)])?;
/// assert_eq!([0, 1, 2, 3, 4, 9].map(|clients| aggregate.at(clients)), [66, 66, 86, 116, 146, 146]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Curve(Vec<(u32, u64)>);

impl Curve {
    /// The same bytes per second at any parallelism.
    pub fn flat(bytes_per_second: u64) -> Self {
        Self(vec![(1, bytes_per_second)])
    }

    /// Unlimited throughput.
    pub fn unlimited() -> Self {
        Self::flat(u64::MAX)
    }

    /// A curve through points of (parallelism, bytes per second).
    ///
    /// # Errors
    /// No point, points that are not in strictly ascending order of parallelism, or 0 bytes per
    /// second.
    pub fn new(points: Vec<(u32, u64)>) -> Result<Self, crate::PlanError> {
        let curve = Self(points);
        curve.check("curve")?;
        Ok(curve)
    }

    /// The curve with each rate changed.
    pub(crate) fn map(&self, rate: impl Fn(u64) -> u64) -> Self {
        Self(self.0.iter().map(|&(at, bytes)| (at, rate(bytes))).collect())
    }

    /// Bytes per second at a parallelism, rounded down.
    pub fn at(&self, parallelism: u32) -> u64 {
        let after = self.0.partition_point(|&(at, _)| at <= parallelism);
        match (after.checked_sub(1).and_then(|before| self.0.get(before)), self.0.get(after)) {
            (Some(&(x0, y0)), Some(&(x1, y1))) => {
                let (run, span) = (u128::from(parallelism - x0), u128::from(x1 - x0));
                let sum = u128::from(y0) * (span - run) + u128::from(y1) * run;
                (sum / span) as u64
            }
            (Some(&(_, end)), None) | (None, Some(&(_, end))) => end,
            (None, None) => u64::MAX,
        }
    }

    pub(crate) fn check(&self, field: &str) -> Result<(), PlanReason> {
        let cause = if self.0.is_empty() {
            "has no points"
        } else if self.0.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
            "has points that are not in ascending order of parallelism"
        } else if self.0.iter().any(|&(_, rate)| rate == 0) {
            "has a point of 0 bytes/s"
        } else {
            return Ok(());
        };
        Err(PlanReason::Curve { field: field.to_owned(), cause })
    }
}

impl Default for Curve {
    /// [`unlimited`](Self::unlimited), the value without a measurement.
    fn default() -> Self {
        Self::unlimited()
    }
}

/// Nanoseconds to transfer `bytes` bytes, rounded down. Saturates at `u64::MAX`, also at 0 bytes
/// per second.
pub(crate) fn transfer_ns(bytes: u128, bytes_per_second: u64) -> u64 {
    let ns = bytes.saturating_mul(1_000_000_000).checked_div(u128::from(bytes_per_second));
    ns.map_or(u64::MAX, narrow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_curves_are_errors() {
        for (points, cause) in
            [(vec![], "no points"), (vec![(2, 1), (2, 2)], "ascending"), (vec![(1, 1), (2, 0)], "0 bytes/s")]
        {
            let error = Curve::new(points).unwrap_err().to_string();
            assert!(error.starts_with("curve has") && error.contains(cause), "{error}");
        }
    }

    #[test]
    fn curves_and_transfers_do_not_overflow() {
        let steep = Curve::new(vec![(0, 1), (u32::MAX, u64::MAX)]).unwrap();
        assert_eq!((steep.at(0), steep.at(u32::MAX)), (1, u64::MAX));
        assert_eq!(Curve::unlimited().at(7), u64::MAX);
        assert_eq!(transfer_ns(u128::MAX, 1), u64::MAX);
        assert_eq!((transfer_ns(1, u64::MAX), transfer_ns(1, 3)), (0, 333_333_333));
    }
}
