//! A rank of a simulated rendezvous, driven as by [`Joining`](super::super::RendezvousSteps).

use std::time::Duration;

use bytes::Bytes;

use super::super::MeetError;
use super::super::compare::pack;
use super::super::dial::DialError;
use super::super::follower::FollowerEvent;
use super::super::messages::MeetMessage;
use super::super::waiting::WaitDeadline;
use super::{END, Event, MemberLink, SECOND, SHUTDOWN_TIMEOUT, Who, World, step, words};

impl World {
    pub(super) fn redial(&mut self, member: usize) {
        let process = &mut self.members[member];
        (process.link, process.is_welcome, process.has_reported, process.has_left) =
            (None, false, false, false);
        process.follower.attempts += 1;
        let pause = Duration::from_millis(20 << process.follower.attempts.min(6)).min(SECOND);
        let jitter = self.scheduler.between(Duration::ZERO, Duration::from_millis(80));
        self.scheduler.after(pause + jitter, Event::Dial(member));
    }

    pub(super) fn dial(&mut self, member: usize) {
        let rank = self.rank(member);
        let now = self.now();
        let listening: Vec<_> =
            (0..self.leaders.len()).filter(|leader| self.leaders[*leader].is_alive).collect();
        let process = &mut self.members[member];
        if !process.is_alive || process.link.is_some() {
            return;
        }
        if listening.is_empty() || self.cuts.get(&rank).is_some_and(|cut| cut.contains(&true)) {
            process.follower.dial_failed(DialError::NotYet(Some("cannot connect".to_owned())), now).unwrap();
            return self.redial(member);
        }
        process.follower.reached();
        let leader = listening[self.scheduler.below(listening.len() as u64) as usize];
        let (open, last, held) = ([true; 2], [self.scheduler.now(); 2], Default::default());
        self.links.push(MemberLink { leader, member, follower: None, open, last, held, is_lost: false });
        let link = self.links.len() - 1;
        let process = &mut self.members[member];
        process.link = Some(link);
        let hello = MeetMessage::Hello(Box::new(process.follower.hello.clone()));
        self.send(link, true, hello, Bytes::new());
    }

    /// A member has its outcome, which its process would print.
    pub(super) fn end_member(&mut self, member: usize, error: &MeetError) {
        let process = &mut self.members[member];
        if process.outcome.is_none() {
            process.outcome = Some(Err(error.clone().into()));
            self.scheduler.note(format_args!("member {member} ends: {error}"));
            self.members[member].is_alive = false;
        }
        if let Some(link) = self.members[member].link.take() {
            self.send(link, true, MeetMessage::GiveUp { why: error.to_string() }, Bytes::new());
            self.close(link, false);
        }
    }

    pub(super) fn receive(&mut self, member: usize, message: MeetMessage, bulk: Bytes) {
        let now = self.now();
        let process = &mut self.members[member];
        match process.follower.handle(message, bulk, now) {
            Err(error) => self.end_member(member, &error),
            Ok(FollowerEvent::Handled) => self.advance(member),
            Ok(FollowerEvent::Welcome) => {
                process.is_welcome = true;
                process.nonces.extend(process.follower.nonce);
                self.advance(member);
            }
            Ok(FollowerEvent::RetryLater) => {
                if let Some(link) = self.members[member].link {
                    self.close(link, false);
                }
                self.redial(member);
            }
            Ok(FollowerEvent::Redirect(_)) => panic!("there is one loader"),
        }
    }

    /// Resumes a member's steps, as [`Joining`](super::super::RendezvousSteps) does.
    pub(super) fn advance(&mut self, member: usize) {
        let now = self.now();
        while self.members[member].is_welcome && self.members[member].stage < 4 {
            if self.members[member].stage == 2 && !self.get_catalogs(member) {
                return;
            }
            let process = &mut self.members[member];
            let (stage, rank) = (process.stage, process.follower.hello.info.rank);
            match process.follower.take(&step(stage)) {
                Err(error) => return self.end_member(member, &error),
                Ok(Some(value)) => {
                    process.values.push(value);
                    process.stage += 1;
                    process.has_reported = false;
                    process.follower.begin(now);
                    if process.stage == 4 {
                        process.follower.forget();
                        process.follower.hello.started = true;
                        process.follower.wait = WaitDeadline::new(END * 10, Box::new(|_| ()), now);
                        process.outcome = Some(Ok(()));
                        self.scheduler.note(format_args!("member {member} starts"));
                        self.end_visits(member);
                        let run = self.scheduler.between(self.run / 2, self.run);
                        self.scheduler.after(run, Event::Leave(Who::Member(member)));
                        self.scheduler.after(run + SHUTDOWN_TIMEOUT, Event::Left(Who::Member(member)));
                    }
                }
                Ok(None) => {
                    let Some(link) = process.link else { return };
                    if !std::mem::replace(&mut process.has_reported, true) && stage > 1 {
                        let part = pack(&words(), format!("{rank}").as_bytes());
                        self.send(link, true, MeetMessage::part(&step(stage), &part), part);
                    }
                    return;
                }
            }
        }
        self.report_last(member);
    }
}
