//! The addresses of all ranks, as one rank sees them. They change when a rank restarts.

use std::sync::{Arc, Mutex};

use foreread_types::Rank;

use super::messages::Person;
use crate::{Address, Asker, Remote, lock};

/// The ranks of a run.
#[derive(Debug)]
pub(super) struct Roster {
    /// This node.
    node: String,
    /// Rank 0's host, as this rank reaches it.
    first: String,
    ranks: Mutex<Vec<Entry>>,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    addresses: Vec<Address>,
    /// Its client, once samples were requested.
    remote: Option<Arc<Remote>>,
}

impl Roster {
    /// `infos` are all ranks. `at` is the address at which this rank reached rank 0, `None` for
    /// rank 0 itself.
    pub(super) fn new(people: &[Person], node: String, at: Option<&Address>) -> Self {
        let first = match at {
            Some(Address::Tcp(host, _)) => host.clone(),
            Some(Address::Local(_)) | None => "localhost".to_owned(),
        };
        let roster = Self { node, first, ranks: Mutex::new(vec![Entry::default(); people.len()]) };
        people.iter().for_each(|person| roster.place(person));
        roster
    }

    /// Sets the addresses of a rank. An unknown rank is ignored.
    pub(super) fn place(&self, person: &Person) {
        let mut addresses: Vec<_> =
            person.addresses.iter().filter_map(|text| self.reached(person, text)).collect();
        // Unix sockets first.
        addresses.sort();
        if let Some(entry) = lock(&self.ranks).get_mut(person.rank as usize) {
            entry.addresses.clone_from(&addresses);
            if let Some(remote) = &entry.remote {
                remote.moved(addresses);
            }
        }
    }

    /// An address as this rank reaches it, if it does.
    fn reached(&self, person: &Person, text: &str) -> Option<Address> {
        match text.parse().ok()? {
            Address::Local(name) => (person.node == self.node).then_some(Address::Local(name)),
            Address::Tcp(host, port) if host == "::" || host == "0.0.0.0" => {
                Some(Address::tcp(self.first.clone(), port))
            }
            address @ Address::Tcp(..) => Some(address),
        }
    }

    /// The client of a rank.
    pub(super) fn remote(&self, rank: Rank, asker: &Asker) -> Arc<Remote> {
        let mut ranks = lock(&self.ranks);
        let make = |addresses: &[Address]| asker.remote(rank, addresses.to_vec());
        match ranks.get_mut(rank.0 as usize) {
            Some(Entry { addresses, remote, .. }) => {
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

    fn person(rank: u32, node: &str, addresses: &[&str]) -> Person {
        let addresses = addresses.iter().map(|a| (*a).to_owned()).collect();
        Person { rank, node: node.to_owned(), host: "host".to_owned(), pid: 1, addresses }
    }

    #[test]
    fn unix_sockets_of_this_node_come_first() {
        let people = [
            person(0, "a", &["[::]:7", "unix:@r0"]),
            person(1, "a", &["[::]:8", "unix:@r1"]),
            person(2, "b", &["10.0.0.2:9", "unix:@r2"]),
        ];
        let seen = |node: &str, at: Option<&Address>| {
            let roster = Roster::new(&people, node.to_owned(), at);
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
        let roster = Roster::new(&[person(0, "a", &[]), person(1, "a", &["h:1"])], "a".into(), None);
        roster.place(&person(1, "a", &["h:2"]));
        assert_eq!(roster.addresses(Rank(1)), [Address::tcp("h", 2)]);
        assert_eq!(roster.addresses(Rank(9)), []);
    }

    #[test]
    fn rank_beyond_the_world_takes_no_memory() {
        let roster = Roster::new(&[person(0, "a", &[]), person(1, "a", &["h:1"])], "a".into(), None);
        roster.place(&person(u32::MAX, "a", &["h:2"]));
        assert_eq!(lock(&roster.ranks).len(), 2);
    }
}
