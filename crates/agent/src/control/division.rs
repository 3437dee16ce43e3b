//! Divides the limit of an origin among the agents of a cluster.
//!
//! At any moment, the rates of all agents add up to the limit at most. So an agent gets a part only
//! after the agent that had it has confirmed its release. The rate of an unreachable agent stays
//! reserved. The price is a round trip before an agent gets more, and the part of an agent that is
//! gone and was not forgotten.

use std::collections::BTreeMap;
use std::time::Duration;

use foreread_host::policy::Policy;
use foreread_planner::{JobDemand, ShareDemand, fair_shares, fair_shares_of_users};

use super::node::{Lease, Node};

/// An agent without requests may read this part of the average rate, so that it can begin.
const IDLE_PART: u64 = 100;

/// The weight of a job is divided by the number of its nodes, so it is this much more.
const WEIGHT_SCALE: u32 = 840;

/// The parts of an origin's limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OriginDivision {
    /// By connected agent.
    pub(super) leases: BTreeMap<String, Lease>,
    /// Bytes per second that unreachable agents may read.
    pub(super) reserved: u64,
}

/// The leases of all connected agents. With `is_settled`, agents may get more than they have.
pub(super) fn divide(
    origin: &str,
    limit: u64,
    nodes: &BTreeMap<String, Node>,
    policy: &Policy,
    is_settled: bool,
    now: Duration,
) -> OriginDivision {
    let heard: Vec<(&String, &Node)> = nodes.iter().filter(|(_, node)| node.is_heard(now)).collect();
    let unheard = || nodes.values().filter(|node| !node.is_heard(now));
    let past = heard.iter().map(|(_, node)| node.past(origin, now));
    let reserved = unheard().map(|node| node.reserved(origin, now)).chain(past).fold(0, u64::saturating_add);
    let budget = limit.saturating_sub(reserved);
    let has: Vec<u64> = heard.iter().map(|(_, node)| node.most(origin)).collect();
    let rates = if is_settled {
        approach(&has, &wanted_rates(origin, budget, &heard, policy), budget)
    } else {
        // The demands of the agents are not known yet.
        keep(&has, budget)
    };
    // The fallback rates fit into the limit, too, for agents that are disconnected later.
    let later = unheard().map(|node| node.most_later(origin)).fold(0, u64::saturating_add);
    let budget = limit.saturating_sub(later);
    let part = budget / heard.len().max(1) as u64;
    let has: Vec<u64> = heard.iter().map(|(_, node)| node.most_later(origin)).collect();
    let fallbacks =
        if is_settled { approach(&has, &vec![part; heard.len()], budget) } else { keep(&has, budget) };
    let names = heard.iter().map(|(name, _)| (*name).clone());
    // An agent can always read a little on the way to its share.
    let least = idle_rate(limit, nodes.len());
    let lease = |(rate, fallback): (u64, u64)| Lease { rate: rate.max(least), fallback: fallback.max(least) };
    OriginDivision { leases: names.zip(rates.into_iter().zip(fallbacks).map(lease)).collect(), reserved }
}

/// The rate of an origin that each of so many agents always has, whatever others have. Agents that
/// join one after another get together less than two hundredths of the limit.
pub(super) fn idle_rate(limit: u64, agents: usize) -> u64 {
    (limit / agents.max(1) as u64 / (2 * IDLE_PART)).max(1)
}

/// The present rates, scaled down to the budget.
fn keep(has: &[u64], budget: u64) -> Vec<u64> {
    let taken: u128 = has.iter().copied().map(u128::from).sum();
    let part = |has: &u64| u128::from(*has) * u128::from(budget).min(taken) / taken.max(1);
    has.iter().map(|has| part(has) as u64).collect()
}

/// The next rates, on the way from the present to the wanted rates. A rate that another agent may
/// still use is not free.
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

/// On how many nodes each job reads an origin: through its agent, and the owners of its samples.
fn parts_of_jobs(origin: &str, heard: &[(&String, &Node)]) -> BTreeMap<String, u32> {
    let mut parts = BTreeMap::new();
    for (_, node) in heard {
        let demands = node.report.demands.iter();
        for demand in demands.filter(|demand| demand.store == origin && !demand.is_filling) {
            *parts.entry(format!("{}/{}", node.user, demand.job)).or_default() += 1;
        }
    }
    parts
}

/// The rates that agents should have in the end. Their sum is the budget. Agents that have not
/// reported since they dialled keep their rate.
fn wanted_rates(origin: &str, budget: u64, heard: &[(&String, &Node)], policy: &Policy) -> Vec<u64> {
    let has_reported = |node: &Node| node.report.number > 0;
    let kept = heard.iter().filter(|(_, node)| !has_reported(node)).map(|(_, node)| node.most(origin));
    let budget = budget.saturating_sub(kept.fold(0, u64::saturating_add));
    let reported = heard.iter().filter(|(_, node)| has_reported(node)).count() as u64;
    let idle = budget / heard.len().max(1) as u64 / IDLE_PART;
    let pool = budget - idle * reported;
    let parts = parts_of_jobs(origin, heard);
    let (mut owners, mut jobs, mut fillers, mut filling) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (at, (_, node)) in heard.iter().enumerate() {
        for demand in node.report.demands.iter().filter(|demand| demand.store == origin) {
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
    // The rate that jobs leave for filling.
    let rest = pool - shares.iter().sum::<u64>();
    let filled = fair_shares(rest, &filling);
    let unused = (rest - filled.iter().sum::<u64>()) / reported.max(1);
    let first = |node: &Node| if has_reported(node) { idle + unused } else { node.most(origin) };
    let mut rates: Vec<u64> = heard.iter().map(|(_, node)| first(node)).collect();
    for (at, share) in owners.into_iter().zip(shares).chain(fillers.into_iter().zip(filled)) {
        rates[at] += share;
    }
    rates
}
