//! Who is where, as one rank sees it; changes while the run goes on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foreread_types::Rank;
use tokio::sync::watch;

use super::messages::{Message, Person};
use crate::{Address, Asker, Remote};

/// The ranks of a run.
#[derive(Debug)]
pub(super) struct Roster {
    /// This node.
    node: String,
    /// Rank 0's host, as this rank reaches it.
    first: String,
    ranks: Mutex<Vec<Entry>>,
    over: watch::Sender<Option<Vec<Rank>>>,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    addresses: Vec<Address>,
    gone: bool,
    /// How it is asked, once it is.
    remote: Option<Arc<Remote>>,
}

impl Roster {
    /// `at` is where this rank reached rank 0; `None` for rank 0 itself.
    pub(super) fn new(people: &[Person], node: String, at: Option<&Address>) -> Self {
        let first = match at {
            Some(Address::Tcp(host, _)) => host.clone(),
            Some(Address::Unix(_)) | None => "localhost".to_owned(),
        };
        let roster = Self { node, first, ranks: Mutex::default(), over: watch::Sender::default() };
        people.iter().for_each(|person| roster.place(person));
        roster
    }

    fn ranks(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, person: &Person) {
        let mut addresses: Vec<_> =
            person.addresses.iter().filter_map(|text| self.reached(person, text)).collect();
        // Unix sockets first.
        addresses.sort();
        let rank = person.rank as usize;
        let mut ranks = self.ranks();
        if ranks.len() <= rank {
            ranks.resize_with(rank + 1, Entry::default);
        }
        if let Some(entry) = ranks.get_mut(rank) {
            if std::mem::take(&mut entry.gone) {
                tracing::info!(rank, "a rank is back");
            }
            entry.addresses.clone_from(&addresses);
            if let Some(remote) = &entry.remote {
                remote.moved(addresses);
            }
        }
    }

    /// An address as this rank reaches it, if it does.
    fn reached(&self, person: &Person, text: &str) -> Option<Address> {
        match text.parse().ok()? {
            Address::Unix(path) => (person.node == self.node).then_some(Address::Unix(path)),
            Address::Tcp(host, port) if host == "::" || host == "0.0.0.0" => {
                Some(Address::tcp(self.first.clone(), port))
            }
            address @ Address::Tcp(..) => Some(address),
        }
    }

    /// Takes what rank 0 says of others.
    pub(super) fn hear(&self, message: &Message) {
        match message {
            Message::Gone { rank } => {
                if let Some(entry) = self.ranks().get_mut(*rank as usize)
                    && !std::mem::replace(&mut entry.gone, true)
                {
                    tracing::info!(rank, "rank 0 hears nothing of a rank any more");
                }
            }
            Message::Back(person) => self.place(person),
            Message::AllDone { missing } => {
                self.over.send_replace(Some(missing.iter().copied().map(Rank).collect()));
            }
            _ => {}
        }
    }

    /// A rank, as `asker` asks it, wherever it is.
    pub(super) fn remote(&self, rank: Rank, asker: &Asker) -> Arc<Remote> {
        let mut ranks = self.ranks();
        let make = |addresses: &[Address]| asker.remote(rank, addresses.to_vec());
        match ranks.get_mut(rank.0 as usize) {
            Some(Entry { addresses, remote, .. }) => {
                Arc::clone(remote.get_or_insert_with(|| make(addresses)))
            }
            None => make(&[]),
        }
    }

    /// Where a rank serves samples, the best way first.
    #[cfg(test)]
    fn addresses(&self, rank: Rank) -> Vec<Address> {
        self.ranks().get(rank.0 as usize).map(|entry| entry.addresses.clone()).unwrap_or_default()
    }

    /// Ranks that rank 0 hears nothing of.
    #[cfg(feature = "testing")]
    pub(super) fn gone(&self) -> Vec<Rank> {
        let ranks = self.ranks();
        let gone = ranks.iter().enumerate().filter(|(_, entry)| entry.gone);
        gone.map(|(rank, _)| Rank(rank as u32)).collect()
    }

    /// Who was missing when rank 0 said that all is over; nothing before.
    pub(super) fn over(&self) -> watch::Receiver<Option<Vec<Rank>>> {
        self.over.subscribe()
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
    fn sockets_of_this_node_come_first_and_of_others_not_at_all() {
        let people = [
            person(0, "a", &["[::]:7", "unix:/run/0"]),
            person(1, "a", &["[::]:8", "unix:/run/1"]),
            person(2, "b", &["10.0.0.2:9", "unix:/run/2"]),
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
        assert_eq!(far, ["node1:7", "node1:8", "unix:/run/2 10.0.0.2:9"]);
        let near = seen("a", None);
        assert_eq!(near, ["unix:/run/0 localhost:7", "unix:/run/1 localhost:8", "10.0.0.2:9"]);
    }

    #[test]
    fn who_is_gone_and_comes_back_has_new_addresses() {
        let roster = Roster::new(&[person(0, "a", &[]), person(1, "a", &["h:1"])], "a".into(), None);
        roster.hear(&Message::Gone { rank: 1 });
        assert_eq!(roster.gone(), [Rank(1)]);
        roster.hear(&Message::Back(person(1, "a", &["h:2"])));
        assert_eq!((roster.gone(), roster.addresses(Rank(1))), (vec![], vec![Address::tcp("h", 2)]));
        assert_eq!(roster.addresses(Rank(9)), []);
    }
}
