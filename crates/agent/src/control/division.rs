//! Divides the limit of a store among the agents of a cluster.
//!
//! All that agents may read at any moment adds up to the limit at most. So an agent gets nothing
//! before another one has confirmed that it no longer uses it. What an agent may read that is not
//! heard stays reserved. The price is a round trip before an agent gets more, and the part of
//! an agent that is gone and was not forgotten.

use std::collections::BTreeMap;
use std::time::Duration;

use foreread_host::policy::Policy;
use foreread_planner::{JobDemand, ShareDemand, fair_shares, fair_shares_of_users};

use super::node::{Lease, Node};

/// An agent without requests may read this part of what all get on average, so that it can begin.
const IDLE_PART: u64 = 100;

/// The weight of a job is divided by the number of its nodes, so it is this much more.
const WEIGHT_SCALE: u32 = 840;

/// What a store's limit is divided into.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoreDivision {
    /// By agents that are heard.
    pub(super) leases: BTreeMap<String, Lease>,
    /// Bytes per second that agents may read which are not heard.
    pub(super) reserved: u64,
}

/// The leases of all agents that are heard. With `is_settled`, they may get more than they have.
pub(super) fn divide(
    store: &str,
    limit: u64,
    nodes: &BTreeMap<String, Node>,
    policy: &Policy,
    is_settled: bool,
    now: Duration,
) -> StoreDivision {
    let heard: Vec<(&String, &Node)> = nodes.iter().filter(|(_, node)| node.is_heard(now)).collect();
    let unheard = || nodes.values().filter(|node| !node.is_heard(now));
    let past = heard.iter().map(|(_, node)| node.past(store, now));
    let reserved = unheard().map(|node| node.reserved(store, now)).chain(past).fold(0, u64::saturating_add);
    let budget = limit.saturating_sub(reserved);
    let has: Vec<u64> = heard.iter().map(|(_, node)| node.most(store)).collect();
    let rates = if is_settled {
        approach(&has, &wanted_rates(store, budget, &heard, policy), budget)
    } else {
        // What they want is not known yet.
        keep(&has, budget)
    };
    // What they read that are cut off later fits into the limit, too.
    let later = unheard().map(|node| node.most_later(store)).fold(0, u64::saturating_add);
    let budget = limit.saturating_sub(later);
    let part = budget / heard.len().max(1) as u64;
    let has: Vec<u64> = heard.iter().map(|(_, node)| node.most_later(store)).collect();
    let fallbacks =
        if is_settled { approach(&has, &vec![part; heard.len()], budget) } else { keep(&has, budget) };
    let names = heard.iter().map(|(name, _)| (*name).clone());
    // On its way to its share, no agent stands still.
    let least = idle_rate(limit, nodes.len());
    let lease = |(rate, fallback): (u64, u64)| Lease { rate: rate.max(least), fallback: fallback.max(least) };
    StoreDivision { leases: names.zip(rates.into_iter().zip(fallbacks).map(lease)).collect(), reserved }
}

/// What each of so many agents may read of a store, whatever others have. Of agents that join one
/// after another, all together get less than two hundredths of the limit.
pub(super) fn idle_rate(limit: u64, agents: usize) -> u64 {
    (limit / agents.max(1) as u64 / (2 * IDLE_PART)).max(1)
}

/// What each has, as far as it fits.
fn keep(has: &[u64], budget: u64) -> Vec<u64> {
    let taken: u128 = has.iter().copied().map(u128::from).sum();
    let part = |has: &u64| u128::from(*has) * u128::from(budget).min(taken) / taken.max(1);
    has.iter().map(|has| part(has) as u64).collect()
}

/// What each gets now, on the way from what it has to what is wanted for it. What others may still
/// use is not free.
fn approach(has: &[u64], wanted: &[u64], budget: u64) -> Vec<u64> {
    let taken = has.iter().copied().fold(0, u64::saturating_add);
    let free = u128::from(budget.saturating_sub(taken));
    let rise = |(has, wanted): (&u64, &u64)| wanted.saturating_sub(*has);
    let all: u128 = has.iter().zip(wanted).map(rise).map(u128::from).sum();
    let next = |pair: (&u64, &u64)| {
        let part = (u128::from(rise(pair)) * free.min(all)).checked_div(all).unwrap_or(0);
        (*pair.0).min(*pair.1) + part as u64
    };
    has.iter().zip(wanted).map(next).collect()
}

/// On how many nodes each job reads a store: through its agent, and the owners of its samples.
fn parts_of_jobs(store: &str, heard: &[(&String, &Node)]) -> BTreeMap<String, u32> {
    let mut parts = BTreeMap::new();
    for (_, node) in heard {
        let demands = node.report.demands.iter();
        for demand in demands.filter(|demand| demand.store == store && !demand.is_filling) {
            *parts.entry(format!("{}/{}", node.user, demand.job)).or_default() += 1;
        }
    }
    parts
}

/// What each agent gets if nothing is in the way. Together they are the budget. Agents that have
/// not reported since they dialled keep what they have.
fn wanted_rates(store: &str, budget: u64, heard: &[(&String, &Node)], policy: &Policy) -> Vec<u64> {
    let has_reported = |node: &Node| node.report.number > 0;
    let kept = heard.iter().filter(|(_, node)| !has_reported(node)).map(|(_, node)| node.most(store));
    let budget = budget.saturating_sub(kept.fold(0, u64::saturating_add));
    let reported = heard.iter().filter(|(_, node)| has_reported(node)).count() as u64;
    let idle = budget / heard.len().max(1) as u64 / IDLE_PART;
    let pool = budget - idle * reported;
    let parts = parts_of_jobs(store, heard);
    let (mut owners, mut jobs, mut fillers, mut filling) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (at, (_, node)) in heard.iter().enumerate() {
        for demand in node.report.demands.iter().filter(|demand| demand.store == store) {
            if demand.is_filling {
                fillers.push(at);
                filling.push(ShareDemand { weight: 1, floor: 0, wanted: demand.wanted.unwrap_or(pool) });
                continue;
            }
            let name = format!("{}/{}", node.user, demand.job);
            let parts = parts.get(&name).copied().unwrap_or(1);
            let weight = policy.find("weight", &name).map_or(demand.weight, |weight| weight as u32);
            let weight = (weight.saturating_mul(WEIGHT_SCALE) / parts).max(1);
            let floor = policy.find("rate-floor", &name).unwrap_or(0) / u64::from(parts);
            let wanted = demand.wanted.unwrap_or(pool);
            owners.push(at);
            jobs.push(JobDemand { user: &node.user, demand: ShareDemand { weight, floor, wanted } });
        }
    }
    let shares = fair_shares_of_users(pool, &jobs, |user| {
        let weight = policy.find("user-weight", user).map_or(1, |weight| weight as u32);
        (weight, policy.find("user-rate-floor", user).unwrap_or(0))
    });
    // What jobs leave.
    let rest = pool - shares.iter().sum::<u64>();
    let filled = fair_shares(rest, &filling);
    let unused = (rest - filled.iter().sum::<u64>()) / reported.max(1);
    let first = |node: &Node| if has_reported(node) { idle + unused } else { node.most(store) };
    let mut rates: Vec<u64> = heard.iter().map(|(_, node)| first(node)).collect();
    for (at, share) in owners.into_iter().zip(shares).chain(fillers.into_iter().zip(filled)) {
        rates[at] += share;
    }
    rates
}
