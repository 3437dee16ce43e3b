//! The addresses of all ranks, as one rank sees them. They change when a rank restarts.

use std::sync::{Arc, Mutex};

use foreread_connection::Address;
use foreread_types::Rank;

use super::messages::RankInfo;
use crate::peer_client::{PeerClient, PeerClientFactory};
use foreread_tier::lock;

/// The ranks of a run.
#[derive(Debug)]
pub(super) struct RunRoster {
    /// This node.
    node: String,
    /// Rank 0's host, as this rank reaches it.
    first: String,
    ranks: Mutex<Vec<RosterEntry>>,
}

#[derive(Clone, Debug, Default)]
struct RosterEntry {
    addresses: Vec<Address>,
    /// Its client, once samples were requested.
    remote: Option<Arc<PeerClient>>,
}

impl RunRoster {
    /// So many ranks without addresses. `at` is the address at which this rank reached rank 0,
    /// `None` for rank 0 itself.
    pub(super) fn new(ranks: u32, node: String, at: Option<&Address>) -> Self {
        let first = match at {
            Some(Address::Tcp(host, _)) => host.clone(),
            Some(Address::Local(_)) | None => "localhost".to_owned(),
        };
        Self { node, first, ranks: Mutex::new(vec![RosterEntry::default(); ranks as usize]) }
    }

    /// Sets the addresses of a rank. An unknown rank is ignored.
    pub(super) fn update(&self, info: &RankInfo) {
        let mut addresses: Vec<_> =
            info.addresses.iter().filter_map(|text| self.resolve(info, text)).collect();
        // Unix sockets first.
        addresses.sort();
        if let Some(entry) = lock(&self.ranks).get_mut(info.rank as usize) {
            entry.addresses.clone_from(&addresses);
            if let Some(remote) = &entry.remote {
                remote.moved(addresses);
            }
        }
    }

    /// An address as this rank reaches it, if it does.
    fn resolve(&self, info: &RankInfo, text: &str) -> Option<Address> {
        match text.parse().ok()? {
            Address::Local(name) => (info.node == self.node).then_some(Address::Local(name)),
            Address::Tcp(host, port) if host == "::" || host == "0.0.0.0" => {
                Some(Address::tcp(self.first.clone(), port))
            }
            address @ Address::Tcp(..) => Some(address),
        }
    }

    /// The client of a rank.
    pub(super) fn remote(&self, rank: Rank, requester: &PeerClientFactory) -> Arc<PeerClient> {
        let mut ranks = lock(&self.ranks);
        let make = |addresses: &[Address]| requester.remote(rank, addresses.to_vec());
        match ranks.get_mut(rank.0 as usize) {
            Some(RosterEntry { addresses, remote, .. }) => {
                Arc::clone(remote.get_or_insert_with(|| make(addresses)))
            }
            None => make(&[]),
        }
    }

    /// The addresses at which a rank serves samples, the preferred one first.
    pub(super) fn addresses(&self, rank: Rank) -> Vec<Address> {
        lock(&self.ranks).get(rank.0 as usize).map(|entry| entry.addresses.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(rank: u32, node: &str, addresses: &[&str]) -> RankInfo {
        let addresses = addresses.iter().map(|a| (*a).to_owned()).collect();
        RankInfo { node: node.to_owned(), host: "host".to_owned(), addresses, ..RankInfo::example(rank) }
    }

    #[test]
    fn unix_sockets_of_this_node_come_first() {
        let infos = [
            info(0, "a", &["[::]:7", "unix:@r0"]),
            info(1, "a", &["[::]:8", "unix:@r1"]),
            info(2, "b", &["10.0.0.2:9", "unix:@r2"]),
        ];
        let seen = |node: &str, at: Option<&Address>| {
            let roster = RunRoster::new(3, node.to_owned(), at);
            infos.iter().for_each(|info| roster.update(info));
            (0..3)
                .map(|rank| {
                    roster.addresses(Rank(rank)).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
                })
                .collect::<Vec<_>>()
        };
        let far = seen("b", Some(&Address::tcp("node1", 7000)));
        assert_eq!(far, ["node1:7", "node1:8", "unix:@r2 10.0.0.2:9"]);
        let near = seen("a", None);
        assert_eq!(near, ["unix:@r0 localhost:7", "unix:@r1 localhost:8", "10.0.0.2:9"]);
    }

    #[test]
    fn rank_that_was_started_again_has_new_addresses() {
        let roster = RunRoster::new(2, "a".into(), None);
        ["h:1", "h:2"].into_iter().for_each(|address| roster.update(&info(1, "a", &[address])));
        assert_eq!(roster.addresses(Rank(1)), [Address::tcp("h", 2)]);
        assert_eq!(roster.addresses(Rank(9)), []);
    }

    #[test]
    fn rank_beyond_the_world_takes_no_memory() {
        let roster = RunRoster::new(2, "a".into(), None);
        roster.update(&info(u32::MAX, "a", &["h:2"]));
        assert_eq!(lock(&roster.ranks).len(), 2);
    }
}
