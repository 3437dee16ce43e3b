//! The performance model: the duration of fetches, writes and reads.
//!
//! From chapter 5 of Böhringer's thesis (ETH, 2020), which is also the model of Dryden et al.,
//! "Clairvoyant Prefetching for Distributed Machine Learning I/O" (SC21). For a sample of s MB:
//!
//! ```text
//! fetch from the file system at g clients   s / min(b_fs, t(g) / g)
//! fetch from another worker's class j       s / min(b_c, r_j)
//! fetch from this worker's class j          s / r_j
//! write, preprocessing included             max(s / beta, s / (w_0 / p_0))
//! read                                      fetch + write
//! ```
//!
//! Not in the thesis: a scenario may give the relative speed of each server of the file system. A
//! fetch from a server takes as many times longer as the server is slower.
//!
//! `r_j` is the rate of the class at its own number of threads, as a whole and not divided by them.
//! Every read is written through the path of the staging buffer, whatever its class. The thesis's
//! initial stalls imply this. The price: the file system is shared by clients and not by threads,
//! so a worker with more threads gets more from it.

use crate::error::SimulateError;
use crate::scenario::Scenario;

/// Rates by an integer: linear between the given points, constant outside them.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Not empty, ascending.
    points: Vec<(u32, f64)>,
}

impl Curve {
    /// `points` must not be empty, and must be strictly ascending.
    pub(crate) fn new(points: Vec<(u32, f64)>) -> Self {
        Self { points }
    }

    /// A curve through points of (number, MB/s).
    ///
    /// # Errors
    /// No point, points that are not in strictly ascending order, or a rate that is not finite and
    /// above 0.
    pub fn through(points: Vec<(u32, f64)>) -> Result<Self, SimulateError> {
        let ascending = points.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if points.is_empty()
            || !ascending
            || points.iter().any(|(_, rate)| !(rate.is_finite() && *rate > 0.0))
        {
            return Err(SimulateError::field(
                "curve",
                "expected ascending numbers, each with a rate above 0",
            ));
        }
        Ok(Self { points })
    }

    pub(crate) fn points(&self) -> &[(u32, f64)] {
        &self.points
    }

    /// The rate at `x`, in MB/s.
    pub fn at(&self, x: usize) -> f64 {
        let x = x as f64;
        let mut before = self.points[0];
        for &point in &self.points {
            if x <= f64::from(point.0) {
                if point.0 == before.0 {
                    return point.1;
                }
                let share = (x - f64::from(before.0)) / f64::from(point.0 - before.0);
                return before.1 + (point.1 - before.1) * share.max(0.0);
            }
            before = point;
        }
        before.1
    }
}

/// The rates of a scenario as seconds per MB.
#[derive(Clone, Debug)]
pub struct Model {
    /// Seconds per MB from the file system for one of g clients. Entry 0 is not used.
    pfs: Vec<f64>,
    /// Seconds per MB from this worker's class j.
    local: Vec<f64>,
    /// Seconds per MB from another worker's class j.
    remote: Vec<f64>,
    /// The slowness of each server of the file system. Empty without servers.
    slowness: Vec<f64>,
    write: f64,
    compute: f64,
}

impl Model {
    /// The rates of a scenario.
    pub fn new(scenario: &Scenario) -> Self {
        let client = |g: usize| scenario.pfs_client.min(scenario.pfs.at(g) / g as f64);
        let rates = scenario.storage.iter().map(|class| class.read.at(class.threads));
        let first = &scenario.storage[0];
        let written = first.write.at(first.threads) / first.threads as f64;
        Self {
            pfs: (0..=scenario.workers).map(|g| 1.0 / client(g.max(1))).collect(),
            local: rates.clone().map(|rate| 1.0 / rate).collect(),
            remote: rates.map(|rate| 1.0 / rate.min(scenario.network)).collect(),
            slowness: scenario.pfs_servers.iter().map(|speed| 1.0 / speed).collect(),
            write: (1.0 / scenario.preprocess).max(1.0 / written),
            compute: 1.0 / scenario.compute,
        }
    }

    /// Seconds to fetch `mb` from the file system, shared by `clients` (1 to N).
    pub fn pfs(&self, mb: f64, clients: usize) -> f64 {
        mb * self.pfs[clients]
    }

    /// Seconds to fetch `mb` from the file system while all workers read from it.
    pub fn pfs_busy(&self, mb: f64) -> f64 {
        self.pfs(mb, self.pfs.len() - 1)
    }

    /// The time of a fetch of a sample from the file system, relative to a server of full speed.
    pub(crate) fn slowness(&self, sample: u32) -> f64 {
        let server = (sample as usize).checked_rem(self.slowness.len());
        server.map_or(1.0, |server| self.slowness[server])
    }

    /// Seconds to fetch `mb` from this worker's class.
    pub fn local(&self, mb: f64, class: usize) -> f64 {
        mb * self.local[class]
    }

    /// Seconds to fetch `mb` from another worker's class.
    pub fn remote(&self, mb: f64, class: usize) -> f64 {
        mb * self.remote[class]
    }

    /// Seconds to preprocess and write `mb`.
    pub fn write(&self, mb: f64) -> f64 {
        mb * self.write
    }

    /// Seconds to train on `mb`.
    pub fn compute(&self, mb: f64) -> f64 {
        mb * self.compute
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_linear_between_their_points_and_flat_outside() {
        let curve = Curve::new(vec![(2, 10.0), (4, 30.0)]);
        let values: Vec<f64> = [1, 2, 3, 4, 9].map(|x| curve.at(x)).to_vec();
        assert_eq!(values, [10.0, 10.0, 20.0, 30.0, 30.0]);
        assert_eq!(Curve::new(vec![(1, 5.0)]).at(7), 5.0);
    }
}
