//! The part of all uses that no shared cache of several jobs can serve.
//!
//! Jobs use one dataset, each in its own permutation per epoch. A policy keeps each sample after a
//! use if its next use is at most some time L away. The L whose expected occupancy is the capacity
//! gives the fewest misses of all caches whose occupancy *on average* is the capacity (Little's
//! law). A real cache never exceeds its capacity, so it misses at least as often.
//!
//! For one job a higher bound is known. A cache of a part c of the dataset serves at most c of an
//! epoch. The fastest job alone gives this bound for its part of all uses. The result is the larger
//! one. Belady's MIN lies at most .006 above it with four jobs or more, and
//! .022 with two.

/// Steps of numeric integration. The integrands are polynomials, in pieces.
const STEPS: u32 = 512;

/// Steps of the search for the horizon.
const BISECTIONS: u32 = 48;

/// The misses and the horizon of a shared cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedMiss {
    /// The lowest possible part of uses that read from the origin, from 0 to 1.
    pub miss: f64,
    /// L: a sample is kept if its next use is at most this time away. In the unit of time of the
    /// paces.
    pub horizon: f64,
}

impl SharedMiss {
    /// The bound for jobs with these paces, in epochs per unit of time, and a cache for the part
    /// `cache` of the dataset. Paces that are not above 0 are ignored. Without jobs nothing misses.
    ///
    /// ```
    /// use foreread_planner::SharedMiss;
    /// // Four equal jobs and a fifth of the dataset: half of each epoch instead of 80 %.
    /// let bound = SharedMiss::of(&[1.0; 4], 0.2);
    /// assert!((bound.miss - 0.485).abs() < 0.001);
    /// assert!((SharedMiss::of(&[1.0], 0.2).miss - 0.8).abs() < 0.001);
    /// ```
    pub fn of(paces: &[f64], cache: f64) -> Self {
        let paces: Vec<f64> = paces.iter().copied().filter(|&pace| pace > 0.0 && pace.is_finite()).collect();
        let (sum, fastest) = (paces.iter().sum::<f64>(), paces.iter().copied().fold(0.0, f64::max));
        if paces.is_empty() {
            return Self { miss: 0.0, horizon: 0.0 };
        }
        let cache = cache.clamp(0.0, 1.0);
        // After two epochs of the fastest job, every sample has been used.
        let (mut below, mut above) = (0.0, 2.0 / fastest);
        for _ in 0..BISECTIONS {
            let middle = (below + above) / 2.0;
            if occupancy(&paces, middle) < cache {
                below = middle;
            } else {
                above = middle;
            }
        }
        let horizon = (below + above) / 2.0;
        let alone = (1.0 - cache) * fastest / sum;
        Self { miss: alone.max(unused(&paces, horizon)), horizon }
    }
}

/// The expected part of the dataset in a cache that keeps samples for at most `horizon`: the rate
/// of uses, times the mean time to those next uses that are near enough.
fn occupancy(paces: &[f64], horizon: f64) -> f64 {
    let step = horizon / f64::from(STEPS);
    let middles = (0..STEPS).map(|at| unused(paces, (f64::from(at) + 0.5) * step));
    let area = middles.sum::<f64>() * step;
    paces.iter().sum::<f64>() * (area - horizon * unused(paces, horizon))
}

/// S: the probability that no job uses a sample within a time `x` after its use by a job.
fn unused(paces: &[f64], x: f64) -> f64 {
    let sum: f64 = paces.iter().sum();
    let by_others = |user: usize| -> f64 {
        let others = paces.iter().enumerate().filter(|&(job, _)| job != user);
        others.map(|(_, pace)| unused_from_any_time(pace * x)).product()
    };
    let each = paces.iter().enumerate();
    each.map(|(user, pace)| pace / sum * unused_after_use(pace * x) * by_others(user)).sum()
}

/// The probability that a job does not use a sample within `x` epochs after its own use of it. The
/// gap is the sum of two parts of epochs that are uniform.
fn unused_after_use(x: f64) -> f64 {
    match x {
        _ if x <= 1.0 => 1.0 - x * x / 2.0,
        _ if x < 2.0 => (2.0 - x) * (2.0 - x) / 2.0,
        _ => 0.0,
    }
}

/// The probability that a job does not use a sample within `x` epochs from any time on.
fn unused_from_any_time(x: f64) -> f64 {
    match x {
        _ if x <= 1.0 => 1.0 - x + x * x * x / 6.0,
        _ if x < 2.0 => (2.0 - x) * (2.0 - x) * (2.0 - x) / 6.0,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_job_and_whole_datasets_have_known_bounds() {
        for cache in [0.05, 0.3, 0.7] {
            assert!((SharedMiss::of(&[3.0], cache).miss - (1.0 - cache)).abs() < 1e-9);
        }
        assert!(SharedMiss::of(&[1.0; 3], 1.0).miss < 1e-6);
        assert!(SharedMiss::of(&[1.0; 2], 0.0).miss > 1.0 - 1e-9);
        assert_eq!(SharedMiss::of(&[], 0.5), SharedMiss { miss: 0.0, horizon: 0.0 });
    }

    /// A small cache hits as often as with sqrt(2c(1-H)), where 1/H is the number of effective
    /// jobs.
    #[test]
    fn small_cache_follows_the_effective_jobs() {
        for paces in [vec![1.0; 8], vec![2.0, 1.0], vec![4.0, 2.0, 1.0, 1.0]] {
            let sum: f64 = paces.iter().sum();
            let squares: f64 = paces.iter().map(|pace| pace * pace / sum / sum).sum();
            let (cache, hit) = (1e-4, (2e-4 * (1.0 - squares)).sqrt());
            let found = 1.0 - SharedMiss::of(&paces, cache).miss;
            assert!((found / hit - 1.0).abs() < 0.03, "{paces:?}: {found} instead of {hit}");
        }
    }

    #[test]
    fn unit_of_time_changes_only_the_horizon() {
        let (slow, fast) = (SharedMiss::of(&[1.0, 0.5], 0.2), SharedMiss::of(&[4.0, 2.0], 0.2));
        assert!((slow.miss - fast.miss).abs() < 1e-9 && (slow.horizon / fast.horizon - 4.0).abs() < 1e-6);
    }
}
