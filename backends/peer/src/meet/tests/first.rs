//! Rank 0 of a simulated rendezvous, driven as by
//! [`Rank0Driver`](super::super::rank0::Rank0Driver).

use std::collections::BTreeSet;

use bytes::Bytes;

use super::super::compare::{differences, pack, unpack};
use super::super::first::Outside;
use super::super::leader::{Due, Fault, Leader, Refusal};
use super::super::members::RECONNECT;
use super::super::messages::{Message, key};
use super::catalogs::bulks;
use super::{Event, FAREWELL, SECOND, Who, World, step, words};

impl World {
    pub(super) fn take(&mut self, link: usize, message: Message, bulk: Bytes) {
        let now = self.now();
        let leader = self.links[link].leader;
        if let Message::Hello(hello) = message {
            match self.leaders[leader].leader.hello(&hello, "", now) {
                Ok(speaker) => self.links[link].speaker = Some(speaker),
                Err(Refusal::NoRun(refuse)) => {
                    self.leaders[leader].leader.heard(hello.person.rank as usize);
                    self.send(link, false, refuse, Bytes::new());
                    self.close(link, true);
                }
                Err(Refusal::Connection(refuse)) => {
                    self.send(link, false, refuse, Bytes::new());
                    self.close(link, true);
                }
            }
        } else if let Some(speaker) = &mut self.links[link].speaker
            && let Err(fault) = self.leaders[leader].leader.message(speaker, message, bulk)
        {
            if let Fault::Refuse(refuse) = fault {
                self.send(link, false, refuse, Bytes::new());
            }
            self.drop_speaker(link);
        }
        self.pump(leader, Some(link));
    }

    /// Rank 0 closes a connection.
    pub(super) fn drop_speaker(&mut self, link: usize) {
        let (now, leader) = (self.now(), self.links[link].leader);
        if let Some(speaker) = self.links[link].speaker.take()
            && self.leaders[leader].leader.disconnect(speaker.session, now)
        {
            self.scheduler.after(RECONNECT, Event::Check { leader, session: speaker.session });
        }
        self.close(link, true);
    }

    /// Makes rank 0's steps as [`Rank0Driver`](super::super::rank0::Rank0Driver), and sends what is
    /// due: on the connection whose task was woken, and on the others if the leader has published
    /// something.
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
        woken.into_iter().for_each(|link| self.say_all(link));
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
                None => leader.all_here(),
                Some(key) => leader.store.is_whole(key),
            };
            let polled =
                process.steps.poll(&mut process.leader, key.as_deref(), complete, Outside::default(), now);
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
                            process.leader.welcome_all();
                            process.leader.put_bulks(bulks(leader));
                            let value = Bytes::from(format!("shared by {leader}"));
                            process.leader.put(&step(1), value.clone());
                            process.values.push(value);
                        }
                        (Some(key), 2) => {
                            let parts = process.leader.store.parts(key);
                            let said: Vec<_> =
                                parts.iter().map(|part| part.as_ref().map(|part| unpack(part).0)).collect();
                            assert_eq!(differences(&said), None);
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
                                    self.scheduler.after(run + FAREWELL, Event::Left(Who::Leader(leader)));
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

    /// Sends what is due on a connection.
    fn say_all(&mut self, link: usize) {
        let leader = self.links[link].leader;
        while let Some(mut speaker) = self.links[link].speaker.take() {
            let due = self.leaders[leader].leader.due(&mut speaker);
            let rank = speaker.session.rank;
            self.links[link].speaker = Some(speaker);
            match due {
                None => break,
                Some(Due::Say(message, bulk)) => self.send(link, false, message, bulk),
                Some(Due::Bulk(number, bulk)) => {
                    self.leaders[leader].sent.push((rank, number));
                    let bytes = bulk.read();
                    self.send(link, false, Message::value(&key::bulk(number), bytes.len()), bytes);
                }
                Some(Due::Replaced) => self.drop_speaker(link),
                Some(Due::Refuse(refuse)) => {
                    self.send(link, false, refuse, Bytes::new());
                    self.drop_speaker(link);
                    self.leaders[leader].leader.heard(rank);
                }
            }
        }
    }

    pub(super) fn end_leader(&mut self, leader: usize) {
        self.leaders[leader].is_alive = false;
        for link in
            (0..self.links.len()).filter(|link| self.links[*link].leader == leader).collect::<Vec<_>>()
        {
            self.links[link].speaker = None;
            self.close(link, true);
        }
    }
}
