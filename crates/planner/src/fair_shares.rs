//! Weighted max-min fair shares: the parts of one limit for several users and their jobs.
//!
//! Each gets its demand, as long as no other with less per weight could have it. A floor comes
//! first: a demand of at least that much gets it, whatever the weights. Users share the limit, and
//! the jobs of a user share the user's part. So a user with many jobs gets no more than one with
//! few.
//!
//! Decision: the level of water-filling is found by bisection over integers. All quantities that
//! depend on it grow with it, so sixty-odd rounds suffice for any number of jobs. The price is that
//! up to one unit for each job stays unused.
//!
//! Source: Bertsekas and Gallager, "Data Networks", 2nd edition, section 6.5.2 (max-min flow
//! control), with weights and lower bounds.

use std::collections::BTreeMap;

/// The part that a user or a job wants of a limit, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareDemand {
    /// Its share, relative to others. At least 1.
    pub weight: u32,
    /// The part that it gets first, as far as it wants it.
    pub floor: u64,
    /// The part that it can use.
    pub wanted: u64,
}

/// A job, and the user that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobDemand<'a> {
    /// The user's name.
    pub user: &'a str,
    /// The job's demand.
    pub demand: ShareDemand,
}

/// The fraction bits of the level.
const FRACTION: u32 = 20;

/// The shares of `limit`: each is at most its demand, and their sum is at most the limit.
///
/// ```
/// use foreread_planner::{ShareDemand, fair_shares};
/// let of = |weight, floor, wanted| ShareDemand { weight, floor, wanted };
/// assert_eq!(fair_shares(90, &[of(1, 0, 1000), of(2, 0, 1000), of(1, 0, 10)]), [26, 53, 10]);
/// assert_eq!(fair_shares(100, &[of(1, 70, 1000), of(1, 0, 1000)]), [70, 30]);
/// ```
pub fn fair_shares(limit: u64, demands: &[ShareDemand]) -> Vec<u64> {
    let floors: Vec<u64> = demands.iter().map(|demand| demand.floor.min(demand.wanted)).collect();
    if sum(floors.iter().copied()) > u128::from(limit) {
        // The floors themselves are shared, in their proportions.
        let of = |floor: &u64| ShareDemand { weight: 1, floor: 0, wanted: *floor };
        let scaled: Vec<ShareDemand> = floors.iter().map(of).collect();
        return fill(limit, &scaled);
    }
    let floored = demands.iter().zip(floors).map(|(demand, floor)| ShareDemand { floor, ..*demand });
    fill(limit, &floored.collect::<Vec<_>>())
}

/// The share of each job of `limit`. The floor of a user is at least that of its jobs together.
/// `of_user` has the weight and the floor of a user by its name.
pub fn fair_shares_of_users(
    limit: u64,
    jobs: &[JobDemand<'_>],
    of_user: impl Fn(&str) -> (u32, u64),
) -> Vec<u64> {
    let mut users: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, job) in jobs.iter().enumerate() {
        users.entry(job.user).or_default().push(at);
    }
    let demands_of = |of: &[usize]| of.iter().map(|&at| jobs[at].demand).collect::<Vec<_>>();
    let totals = users.iter().map(|(user, of)| {
        let (weight, floor) = of_user(user);
        let demands = demands_of(of);
        let floors = sum(demands.iter().map(|demand| demand.floor.min(demand.wanted)));
        let wanted = sum(demands.iter().map(|demand| demand.wanted)).min(u128::from(limit)) as u64;
        let floor = floor.max(floors.min(u128::from(u64::MAX)) as u64);
        ShareDemand { weight, floor, wanted }
    });
    let parts = fair_shares(limit, &totals.collect::<Vec<_>>());
    let mut shares = vec![0; jobs.len()];
    for (of, part) in users.values().zip(parts) {
        for (&at, share) in of.iter().zip(fair_shares(part, &demands_of(of))) {
            shares[at] = share;
        }
    }
    shares
}

fn sum(values: impl Iterator<Item = u64>) -> u128 {
    values.map(u128::from).sum()
}

/// Water-filling. The floors fit into the limit.
fn fill(limit: u64, demands: &[ShareDemand]) -> Vec<u64> {
    let at = |level: u128| {
        demands.iter().map(move |demand| {
            let share = (level * u128::from(demand.weight.max(1))) >> FRACTION;
            // Below the level by weight, the floor holds. Above, none gets more than it wants.
            (share.min(u128::from(u64::MAX)) as u64).max(demand.floor).min(demand.wanted)
        })
    };
    let fits = |level: u128| sum(at(level)) <= u128::from(limit);
    // With weight 1, the highest level of use is that of the limit.
    let (mut low, mut high) = (0_u128, (u128::from(limit) + 1) << FRACTION);
    if fits(high) {
        return at(high).collect();
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    at(low).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn demands() -> impl Strategy<Value = Vec<ShareDemand>> {
        let demand = (1_u32..9, 0_u64..3000, 0_u64..9000);
        let demand = demand.prop_map(|(weight, floor, wanted)| ShareDemand { weight, floor, wanted });
        prop::collection::vec(demand, 1..12)
    }

    proptest! {
        /// The definition: none gets more than it wants, and the limit is used as far as it is
        /// wanted. A demand that gets less than it wants has no less per weight than any above its
        /// floor.
        #[test]
        fn shares_are_max_min_fair(limit in 0_u64..30_000, demands in demands()) {
            let shares = fair_shares(limit, &demands);
            let total: u64 = shares.iter().sum();
            let wanted: u64 = demands.iter().map(|demand| demand.wanted).sum();
            prop_assert!(total <= limit);
            prop_assert!(total + demands.len() as u64 >= limit.min(wanted), "{shares:?}");
            let floors: u64 = demands.iter().map(|demand| demand.floor.min(demand.wanted)).sum();
            for (share, demand) in shares.iter().zip(&demands) {
                prop_assert!(*share <= demand.wanted);
                if floors > limit {
                    continue;
                }
                prop_assert!(*share >= demand.floor.min(demand.wanted));
                if *share < demand.wanted {
                    for (other, of) in shares.iter().zip(&demands).filter(|(other, of)| **other > of.floor) {
                        let own = (share + 1) * u64::from(of.weight);
                        let others = other * u64::from(demand.weight);
                        prop_assert!(own + u64::from(of.weight * demand.weight) >= others, "{shares:?}");
                    }
                }
            }
        }

        /// A user with many jobs takes nothing from one with few.
        #[test]
        fn users_share_first(jobs in 1_usize..50) {
            let demand = ShareDemand { weight: 1, floor: 0, wanted: 1_000_000 };
            let mut all = vec![JobDemand { user: "many", demand }; jobs];
            all.push(JobDemand { user: "one", demand });
            let shares = fair_shares_of_users(1_000_000, &all, |_| (1, 0));
            prop_assert_eq!(shares[jobs], 500_000);
        }
    }

    #[test]
    fn floors_of_jobs_reach_through_their_user() {
        let job =
            |user, weight, floor| JobDemand { user, demand: ShareDemand { weight, floor, wanted: 1000 } };
        let jobs = [job("a", 1, 60), job("a", 1, 0), job("b", 1, 0)];
        assert_eq!(fair_shares_of_users(100, &jobs, |_| (1, 0)), [60, 0, 40]);
        assert_eq!(
            fair_shares_of_users(100, &jobs[1..], |user| (1, if user == "a" { 80 } else { 0 })),
            [80, 20]
        );
    }

    #[test]
    fn extremes_neither_overflow_nor_hang() {
        let most = ShareDemand { weight: u32::MAX, floor: u64::MAX, wanted: u64::MAX };
        assert_eq!(fair_shares(u64::MAX, &[most]), [u64::MAX]);
        assert!(fair_shares(100, &[most, most]).iter().sum::<u64>() <= 100);
        assert_eq!(fair_shares(0, &[most]), [0]);
        assert_eq!(fair_shares(7, &[]), Vec::<u64>::new());
    }
}
