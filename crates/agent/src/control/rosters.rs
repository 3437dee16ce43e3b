//! The rosters of agents that share their caches: the connected agents of one token.
//!
//! All of them get the same list, as one message. A new list moves samples to other owners, so it
//! is made once per second at most. A disconnected agent stays in it as long as its leases hold.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use foreread_host::cluster_cache::{ClusterRoster, RosterNode};
use foreread_host::held_leases::LEASE;
use foreread_host::json::encoded;
use foreread_host::policy::Policy;

use super::intervals::REPORT_INTERVAL;
use super::node::Node;

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
    roster: ClusterRoster,
    message: Bytes,
}

impl Rosters {
    /// Makes the lists again, if some time has passed.
    pub(super) fn renew(&mut self, nodes: &BTreeMap<String, Node>, policy: &Policy, now: Duration) {
        if self.made.is_some_and(|made| now < made + REPORT_INTERVAL) {
            return;
        }
        self.made = Some(now);
        let mut rosters: BTreeMap<&str, ClusterRoster> = BTreeMap::new();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::messages::Report;
    use foreread_host::policy::{CLUSTER_WORDS, PolicySource};
    use foreread_host::status::AgentStatus;

    fn node(user: &str, address: &str) -> Node {
        let status = AgentStatus { process: 1, memory: 100, ..AgentStatus::default() };
        let mut node = Node::unheard(BTreeMap::new(), false);
        node.report = Report { number: 1, status, ..Report::default() };
        (node.user, node.addresses) = (user.to_owned(), vec![address.to_owned()]);
        node
    }

    fn names(rosters: &Rosters, node: &mut Node) -> Option<Vec<String>> {
        let message = rosters.next(node)?;
        let roster: ClusterRoster = serde_json::from_slice(&message).unwrap();
        Some(roster.nodes.into_iter().map(|node| format!("{} {}", node.node, node.is_leaving)).collect())
    }

    #[test]
    // semantics: CONTROL-10, CONTROL-11
    fn agents_of_a_token_that_are_heard_share() {
        let mut rosters = Rosters::default();
        let mut policy = Policy::new(CLUSTER_WORDS);
        let mut nodes = BTreeMap::from([
            ("a1".to_owned(), node("alice", "h1:1")),
            ("a2".to_owned(), node("alice", "h2:1")),
            ("b1".to_owned(), node("bob", "h3:1")),
            ("old".to_owned(), node("alice", "")),
        ]);
        nodes.get_mut("old").unwrap().addresses.clear();
        let second = Duration::from_secs(1);
        rosters.renew(&nodes, &policy, second);
        let [mut one, mut bob, mut old] = ["a1", "b1", "old"].map(|name| nodes[name].clone());
        assert_eq!(names(&rosters, &mut one).unwrap(), ["a1 false", "a2 false"]);
        assert_eq!(names(&rosters, &mut bob).unwrap(), ["b1 false"]);
        // Each list is sent once, and to no agent that does not share.
        assert_eq!((names(&rosters, &mut one), names(&rosters, &mut old)), (None, None));
        policy.set_text("drain@a2=true", PolicySource::Set).unwrap();
        rosters.renew(&nodes, &policy, second + second / 2);
        assert_eq!(names(&rosters, &mut one), None);
        rosters.renew(&nodes, &policy, 2 * second);
        assert_eq!(names(&rosters, &mut one).unwrap(), ["a1 false", "a2 true"]);
        // A disconnected agent stays until its leases have ended.
        for (name, node) in &mut nodes {
            node.heard = if name == "a2" { 3 * second } else { 14 * second };
        }
        rosters.renew(&nodes, &policy, 3 * second + LEASE);
        assert_eq!(names(&rosters, &mut one), None);
        rosters.renew(&nodes, &policy, 5 * second + LEASE);
        assert_eq!(names(&rosters, &mut one).unwrap(), ["a1 false"]);
        assert_eq!(names(&rosters, &mut bob), None);
    }
}
