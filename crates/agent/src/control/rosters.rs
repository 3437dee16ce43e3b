//! Which agents share their caches: those of one token that are heard.
//!
//! All of them get the same list, as one message. A new list moves the homes of samples, so it is
//! made once per second at most. An agent that is cut off stays in it as long as its leases hold.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::messages::encoded;
use super::node::Node;
use super::{LEASE, REPORT_INTERVAL};
use crate::cluster_cache::{Roster, RosterNode};
use crate::policy::Policy;

/// The rosters of a cluster, by the name of a token.
#[derive(Debug, Default)]
pub(super) struct Rosters {
    made: Option<Duration>,
    by_user: BTreeMap<String, CurrentRoster>,
}

#[derive(Debug, Default)]
struct CurrentRoster {
    /// From 1.
    version: u64,
    roster: Roster,
    message: Bytes,
}

impl Rosters {
    /// Makes the lists again, if some time has passed.
    pub(super) fn renew(&mut self, nodes: &BTreeMap<String, Node>, policy: &Policy, now: Duration) {
        if self.made.is_some_and(|made| now < made + REPORT_INTERVAL) {
            return;
        }
        self.made = Some(now);
        let mut rosters: BTreeMap<&str, Roster> = BTreeMap::new();
        for (name, node) in nodes {
            let is_there = now.saturating_sub(node.heard) <= LEASE && node.report.status.process > 0;
            if node.addresses.is_empty() || !is_there {
                continue;
            }
            let status = &node.report.status;
            rosters.entry(&node.user).or_default().nodes.push(RosterNode {
                node: name.clone(),
                instance: node.instance.clone(),
                addresses: node.addresses.clone(),
                memory: status.memory,
                disk: status.disk.as_ref().map_or(0, |disk| disk.capacity),
                is_leaving: policy.find("drain", name) == Some(1),
            });
        }
        for (user, roster) in rosters {
            let current = self.by_user.entry(user.to_owned()).or_default();
            if current.roster != roster {
                let message = encoded(&roster);
                *current = CurrentRoster { version: current.version + 1, roster, message };
            }
        }
    }

    /// The list for an agent, if it has another one. It has this one from now on.
    pub(super) fn next(&self, node: &mut Node) -> Option<Bytes> {
        let current = self.by_user.get(&node.user).filter(|_| !node.addresses.is_empty())?;
        let is_new = std::mem::replace(&mut node.roster, current.version) != current.version;
        is_new.then(|| current.message.clone())
    }
}
