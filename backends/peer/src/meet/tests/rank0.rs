//! Rank 0 of a simulated rendezvous, driven as by
//! [`Rank0Driver`](super::super::rank0::Rank0Driver).

use std::collections::BTreeSet;

use bytes::Bytes;

use super::super::compare::{differences, pack, unpack};
use super::super::leader::{HelloRefusal, Leader, MessageFault, NextSend};
use super::super::members::RECONNECT_TIMEOUT;
use super::super::messages::{MeetMessage, key};
use super::super::rank0::ExternalState;
use super::catalogs::bulks;
use super::{Event, SECOND, SHUTDOWN_TIMEOUT, Who, World, step, words};

impl World {
    pub(super) fn take(&mut self, link: usize, message: MeetMessage, bulk: Bytes) {
        let now = self.now();
        let leader = self.links[link].leader;
        if let MeetMessage::Hello(hello) = message {
            match self.leaders[leader].leader.hello(&hello, "", now) {
                Ok(follower) => self.links[link].follower = Some(follower),
                Err(HelloRefusal::NoRun(refuse)) => {
                    self.leaders[leader].leader.mark_informed(hello.info.rank as usize);
                    self.send(link, false, refuse, Bytes::new());
                    self.close(link, true);
                }
                Err(HelloRefusal::Connection(refuse)) => {
                    self.send(link, false, refuse, Bytes::new());
                    self.close(link, true);
                }
            }
        } else if let Some(follower) = &mut self.links[link].follower
            && let Err(fault) = self.leaders[leader].leader.message(follower, message, bulk)
        {
            if let MessageFault::Refuse(refuse) = fault {
                self.send(link, false, refuse, Bytes::new());
            }
            self.drop_session(link);
        }
        self.pump(leader, Some(link));
    }

    /// Rank 0 closes a connection.
    pub(super) fn drop_session(&mut self, link: usize) {
        let (now, leader) = (self.now(), self.links[link].leader);
        if let Some(follower) = self.links[link].follower.take()
            && self.leaders[leader].leader.disconnect(follower.session, now)
        {
            self.scheduler.after(RECONNECT_TIMEOUT, Event::Check { leader, session: follower.session });
        }
        self.close(link, true);
    }

    /// Makes rank 0's steps as [`Rank0Driver`](super::super::rank0::Rank0Driver). Sends the
    /// messages that are due on the connection whose task was woken, and on all if the leader has
    /// published something.
    pub(super) fn pump(&mut self, leader: usize, woken: Option<usize>) {
        if !self.leaders[leader].is_alive {
            return;
        }
        let is_timer = woken.is_none();
        let before = self.leaders[leader].leader.take_changes();
        if before.arrived || is_timer {
            self.make_steps(leader);
            self.end_run(leader);
        }
        let after = self.leaders[leader].leader.take_changes();
        let mut woken: BTreeSet<usize> = woken.into_iter().collect();
        if before.published || after.published {
            woken = (0..self.links.len()).filter(|link| self.links[*link].leader == leader).collect();
        }
        woken.into_iter().for_each(|link| self.send_all(link));
        if self.leaders[leader].ends.is_some_and(|ends| ends <= self.scheduler.now()) {
            self.end_leader(leader);
        }
    }

    fn make_steps(&mut self, leader: usize) {
        let now = self.now();
        while self.leaders[leader].ends.is_none() && self.leaders[leader].stage < 3 {
            let process = &mut self.leaders[leader];
            let key = (process.stage > 0).then(|| step(process.stage + 1));
            let ours = pack(&words(), b"0");
            let complete = |leader: &Leader| match &key {
                None => leader.all_connected(),
                Some(key) => leader.store.is_complete(key),
            };
            let polled = process.steps.poll(
                &mut process.leader,
                key.as_deref(),
                complete,
                ExternalState::default(),
                now,
            );
            match polled {
                None => break,
                Some(Err(error)) => {
                    self.scheduler.note(format_args!("leader {leader} ends: {error}"));
                    process.outcome = Some(Err(error.clone().into()));
                    process.leader.fail(error);
                    process.ends = Some(self.scheduler.now() + SECOND * 10);
                }
                Some(Ok(())) => {
                    process.stage += 1;
                    match (&key, process.stage) {
                        (None, _) => {
                            process.leader.publish_roster();
                            process.leader.put_bulks(bulks(leader));
                            let value = Bytes::from(format!("shared by {leader}"));
                            process.leader.put(&step(1), value.clone());
                            process.values.push(value);
                        }
                        (Some(key), 2) => {
                            let parts = process.leader.store.parts(key);
                            let reported: Vec<_> =
                                parts.iter().map(|part| part.as_ref().map(|part| unpack(part).0)).collect();
                            assert_eq!(differences(&reported), None);
                            let all: Vec<_> = parts.iter().flatten().map(|part| unpack(part).1).collect();
                            let value = pack(&words(), &all.join(&b' '));
                            process.leader.put(key, value.clone());
                            process.values.push(value);
                        }
                        (Some(key), _) => {
                            let value = pack(&words(), &[]);
                            match process.leader.start(key, value.clone()) {
                                Ok(()) => {
                                    process.values.push(value);
                                    process.outcome = Some(Ok(()));
                                    self.scheduler.note(format_args!("leader {leader} starts"));
                                    let run = self.scheduler.between(self.run / 2, self.run);
                                    self.scheduler.after(run, Event::Leave(Who::Leader(leader)));
                                    self.scheduler
                                        .after(run + SHUTDOWN_TIMEOUT, Event::Left(Who::Leader(leader)));
                                }
                                Err(error) => process.outcome = Some(Err(error.into())),
                            }
                        }
                    }
                    if process.stage < 3 {
                        let next = step(process.stage + 1);
                        process.leader.part(0, &next, ours).unwrap();
                        process.steps.begin(Some(&next), &process.leader, 0, now);
                    }
                }
            }
        }
    }

    /// Sends the messages that are due on a connection.
    fn send_all(&mut self, link: usize) {
        let leader = self.links[link].leader;
        while let Some(mut follower) = self.links[link].follower.take() {
            let due = self.leaders[leader].leader.next_send(&mut follower);
            let rank = follower.session.rank;
            self.links[link].follower = Some(follower);
            match due {
                None => break,
                Some(NextSend::Message(message, bulk)) => self.send(link, false, message, bulk),
                Some(NextSend::Bulk(number, bulk)) => {
                    self.leaders[leader].sent.push((rank, number));
                    let bytes = bulk.read();
                    self.send(link, false, MeetMessage::value(&key::bulk(number), bytes.len()), bytes);
                }
                Some(NextSend::Replaced) => self.drop_session(link),
                Some(NextSend::Refuse(refuse)) => {
                    self.send(link, false, refuse, Bytes::new());
                    self.drop_session(link);
                    self.leaders[leader].leader.mark_informed(rank);
                }
            }
        }
    }

    pub(super) fn end_leader(&mut self, leader: usize) {
        self.leaders[leader].is_alive = false;
        for link in
            (0..self.links.len()).filter(|link| self.links[*link].leader == leader).collect::<Vec<_>>()
        {
            self.links[link].follower = None;
            self.close(link, true);
        }
    }
}
