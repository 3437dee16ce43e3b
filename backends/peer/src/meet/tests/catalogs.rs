//! Catalogs of a simulated rendezvous, fetched as in
//! [`Joining::bulks`](super::super::RendezvousSteps::bulks).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::super::messages::{MeetMessage, key};
use super::super::shared_catalog::{SharedCatalog, relay};
use super::{Event, LeaderProcess, MemberProcess, World};

/// The relay timeout for a deadline of 30 s.
const RELAY_SILENCE: Duration = Duration::from_secs(10);

/// The catalogs of a leader: a listed one, and one in a file.
pub(super) fn bulks(leader: usize) -> Vec<SharedCatalog> {
    let file = content(leader, 1);
    vec![SharedCatalog::needed(content(leader, 0)), SharedCatalog::on_request(9, move || Ok(file.clone()))]
}

fn content(leader: usize, number: usize) -> Bytes {
    Bytes::from(format!("catalog {number} of {leader}"))
}

impl World {
    /// The rank that relays catalogs to the node of `rank`.
    fn relay_of(&self, rank: u32) -> u32 {
        relay((0..self.size).map(|rank| rank / 2), rank as usize).unwrap() as u32
    }

    fn delay(&mut self) -> Duration {
        self.scheduler.between(Duration::from_millis(1), Duration::from_millis(30))
    }

    /// Fetches the catalogs that a member needs, as far as possible. Returns whether it has all.
    pub(super) fn get_catalogs(&mut self, member: usize) -> bool {
        let now = self.now();
        let rank = self.rank(member);
        let is_relay = self.relay_of(rank) == rank;
        if self.members[member].needed.is_none() {
            self.need_catalogs(member, is_relay);
        }
        while let Some((number, is_pushed)) = self.first_needed(member) {
            let process = &mut self.members[member];
            if process.at_relay {
                return false;
            }
            match process.follower.take(&key::bulk(number)) {
                Err(error) => {
                    self.end_member(member, &error);
                    return false;
                }
                Ok(Some(bytes)) => {
                    process.offers.here.insert(number, SharedCatalog::needed(bytes.clone()));
                    process.has_reported = false;
                    process.follower.begin(now);
                    self.got(member, number, bytes);
                    self.serve_visitors(member);
                }
                Ok(None) => {
                    let is_due = !(is_relay && is_pushed) || process.follower.was_lost;
                    if let Some(link) = process.link
                        && is_due
                        && !std::mem::replace(&mut process.has_reported, true)
                    {
                        let fetch = MeetMessage::Fetch { number: number as u32 };
                        self.send(link, true, fetch, Bytes::new());
                    }
                    return false;
                }
            }
        }
        true
    }

    fn first_needed(&self, member: usize) -> Option<(usize, bool)> {
        let needed = self.members[member].needed.as_ref()?;
        needed.first_key_value().map(|(number, is_pushed)| (*number, *is_pushed))
    }

    fn got(&mut self, member: usize, number: usize, bytes: Bytes) {
        let process = &mut self.members[member];
        if process.needed.as_mut().unwrap().remove(&number).is_some() {
            process.catalogs.insert(number, bytes);
        }
    }

    /// A member has received which catalogs there are.
    fn need_catalogs(&mut self, member: usize, is_relay: bool) {
        let process = &mut self.members[member];
        process.offers.pushed = vec![true, false];
        process.offers.is_waiting = true;
        let mut needed = BTreeMap::from([(0, true), (1, false)]);
        if process.has_file {
            needed.remove(&1);
            let file = Bytes::from_static(b"opened");
            process.offers.here.insert(1, SharedCatalog::on_request(6, move || Ok(file.clone())));
        }
        process.needed = Some(needed);
        if is_relay {
            return self.serve_visitors(member);
        }
        process.at_relay = true;
        // The name in the roster.
        let rank = self.relay_of(self.rank(member));
        let follower = &self.members[member].follower;
        let mut infos = follower.infos.iter().chain(&follower.moved);
        let relay = infos
            .rfind(|info| info.rank == rank)
            .and_then(|info| self.members.iter().position(|other| other.follower.hello.info.pid == info.pid));
        let after = self.delay();
        // Now and then the relay is unreachable.
        match relay.filter(|_| self.faults.is_empty() || self.scheduler.happens(900)) {
            Some(relay) => self.scheduler.after(after, Event::Visit { visitor: member, relay }),
            None => self.scheduler.after(after, Event::Passed { visitor: member, passed: None }),
        };
        self.scheduler.after(RELAY_SILENCE, Event::RelaySilent { visitor: member });
    }

    /// A member connects to its relay and requests catalogs that are not sent without a request.
    pub(super) fn visit(&mut self, visitor: usize, relay: usize) {
        if !self.members[relay].is_alive || self.members[relay].stage == 4 {
            let after = self.delay();
            self.scheduler.after(after, Event::Passed { visitor, passed: None });
            return;
        }
        let needed = self.members[visitor].needed.iter().flatten();
        let requested: BTreeSet<usize> =
            needed.filter(|(_, is_pushed)| !**is_pushed).map(|(number, _)| *number).collect();
        self.members[relay].visitors.insert(visitor, [requested, BTreeSet::new()]);
        self.serve_visitors(relay);
    }

    /// Relays the catalogs that are due.
    fn serve_visitors(&mut self, relay: usize) {
        let (offers, visitors) = (&self.members[relay].offers, &self.members[relay].visitors);
        let due = visitors.iter().find_map(|(visitor, [requested, sent])| {
            let (number, bulk) = offers.next_due(requested, sent)?;
            Some((*visitor, number, bulk?.read()))
        });
        let Some((visitor, number, bytes)) = due else { return };
        if let Some([_, sent]) = self.members[relay].visitors.get_mut(&visitor) {
            sent.insert(number);
        }
        let after = self.delay();
        self.scheduler.after(after, Event::Passed { visitor, passed: Some((number, bytes)) });
        self.serve_visitors(relay);
    }

    /// A relay closes its connections: it has started, or its process has ended.
    pub(super) fn end_visits(&mut self, relay: usize) {
        for visitor in std::mem::take(&mut self.members[relay].visitors).into_keys() {
            let after = self.delay() * 2;
            self.scheduler.after(after, Event::Passed { visitor, passed: None });
        }
    }

    /// A catalog arrived from the relay, or its connection has ended.
    pub(super) fn passed(&mut self, visitor: usize, passed: Option<(usize, Bytes)>) {
        if !self.members[visitor].is_alive || !self.members[visitor].at_relay {
            return;
        }
        match passed {
            Some((number, bytes)) => {
                self.got(visitor, number, bytes);
                let is_done = self.first_needed(visitor).is_none();
                self.members[visitor].at_relay = !is_done;
            }
            None => self.members[visitor].at_relay = false,
        }
        if !self.members[visitor].at_relay {
            let now = self.now();
            self.members[visitor].follower.begin(now);
            self.advance(visitor);
        }
    }

    /// A member has received nothing from its relay. A relay that waits for rank 0 sends progress.
    pub(super) fn relay_silent(&mut self, visitor: usize) {
        let runs = |relay: &MemberProcess| relay.is_alive && relay.paused <= self.scheduler.now();
        let informs = |relay: &MemberProcess| {
            runs(relay) && relay.offers.is_waiting && relay.visitors.contains_key(&visitor)
        };
        if !self.members[visitor].at_relay {
            return;
        }
        if self.members.iter().any(informs) {
            self.scheduler.after(RELAY_SILENCE, Event::RelaySilent { visitor });
        } else {
            self.passed(visitor, None);
        }
    }

    /// A member that has started has the catalogs of its rank 0, or its own file.
    pub(super) fn check_catalogs(&self, seed: u64, member: usize, leader: &LeaderProcess) {
        let of = self.leaders.iter().position(|other| std::ptr::eq(other, leader)).unwrap();
        let process = &self.members[member];
        let rank = self.rank(member);
        assert_eq!(process.catalogs.get(&0), Some(&content(of, 0)), "seed {seed}: rank {rank}");
        match process.catalogs.get(&1) {
            None => assert!(process.has_file, "seed {seed}: rank {rank} has no second catalog"),
            Some(bytes) => {
                assert!(
                    *bytes == content(of, 1) || bytes == "opened",
                    "seed {seed}: rank {rank}: \
                     {bytes:?}"
                );
            }
        }
    }

    /// Without faults, rank 0 sends the listed catalog to each relay, and the file to relays that
    /// cannot open it.
    pub(super) fn check_order(&self, seed: u64) {
        let mut sent = self.leaders[0].sent.clone();
        sent.sort_unstable();
        let relays = (1..self.size).filter(|rank| self.relay_of(*rank) == *rank);
        let expected = relays.flat_map(|rank| {
            let member = self.members.iter().find(|member| member.follower.hello.info.rank == rank).unwrap();
            let numbers = if member.has_file { 0..1 } else { 0..2 };
            numbers.map(move |number| (rank as usize, number))
        });
        assert_eq!(sent, expected.collect::<Vec<_>>(), "seed {seed}");
    }
}
