//! How fast something is when several use it at once.
//!
//! Measured at a few points and linear between them, as in the performance model of R. Böhringer's thesis (ETH, 2020,
//! chapter 5): disks, networks and file systems are faster under some parallelism than under none, and not by a simple
//! law. Beyond the points the nearest one counts, because nothing is known there. In integers, so that what is decided
//! by a curve is decided alike on every machine.

use crate::error::Reason;
use crate::forecast::narrow;

/// Bytes a second over a parallelism: threads, readers, clients.
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
    /// The same bytes a second at any parallelism.
    pub fn flat(bytes_per_second: u64) -> Self {
        Self(vec![(1, bytes_per_second)])
    }

    /// Faster than anything: never what limits.
    pub fn unlimited() -> Self {
        Self::flat(u64::MAX)
    }

    /// Through points of (parallelism, bytes a second).
    ///
    /// # Errors
    /// No point, points that are not in ascending order of different parallelism, or 0 bytes a second.
    pub fn new(points: Vec<(u32, u64)>) -> Result<Self, crate::PlanError> {
        let curve = Self(points);
        curve.check("curve")?;
        Ok(curve)
    }

    /// Bytes a second at some parallelism, rounded down.
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

    pub(crate) fn check(&self, field: &str) -> Result<(), Reason> {
        let cause = if self.0.is_empty() {
            "has no points"
        } else if self.0.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
            "has points that are not in ascending order of parallelism"
        } else if self.0.iter().any(|&(_, rate)| rate == 0) {
            "has a point of 0 bytes a second"
        } else {
            return Ok(());
        };
        Err(Reason::Curve { field: field.to_owned(), cause })
    }
}

impl Default for Curve {
    /// [`unlimited`](Self::unlimited): until somebody measures.
    fn default() -> Self {
        Self::unlimited()
    }
}

/// Nanoseconds that `bytes` bytes take at some bytes a second, rounded down; saturates at `u64::MAX`, also at 0.
pub(crate) fn transfer_ns(bytes: u128, bytes_per_second: u64) -> u64 {
    let ns = bytes.saturating_mul(1_000_000_000).checked_div(u128::from(bytes_per_second));
    ns.map_or(u64::MAX, narrow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_that_make_no_sense_are_refused() {
        for (points, cause) in [
            (vec![], "no points"),
            (vec![(2, 1), (2, 2)], "ascending"),
            (vec![(1, 1), (2, 0)], "0 bytes a second"),
        ] {
            let error = Curve::new(points).unwrap_err().to_string();
            assert!(error.starts_with("curve has") && error.contains(cause), "{error}");
        }
    }

    #[test]
    fn nothing_overflows() {
        let steep = Curve::new(vec![(0, 1), (u32::MAX, u64::MAX)]).unwrap();
        assert_eq!((steep.at(0), steep.at(u32::MAX)), (1, u64::MAX));
        assert_eq!(Curve::unlimited().at(7), u64::MAX);
        assert_eq!(transfer_ns(u128::MAX, 1), u64::MAX);
        assert_eq!((transfer_ns(1, u64::MAX), transfer_ns(1, 3)), (0, 333_333_333));
    }
}
