//! The end of a simulated run, as made by [`Group::leave`](super::super::RunGroup::leave) and its
//! task.

use bytes::Bytes;
use foreread_types::Rank;

use super::super::group::RunEnd;
use super::super::messages::{MeetMessage, key};
use super::{LeaderProcess, SECOND, World};

impl World {
    /// A member that has started sends its report, and that it is done, once on each connection,
    /// and receives the replies.
    pub(super) fn report_last(&mut self, member: usize) {
        let process = &mut self.members[member];
        process.acknowledged |= matches!(process.follower.take(key::REPORT), Ok(Some(_)));
        if let Ok(Some(missing)) = process.follower.take(key::DONE) {
            let missing: Vec<u32> = serde_json::from_slice(&missing).unwrap();
            let left = match &missing[..] {
                [] => RunEnd::Together,
                missing => RunEnd::Without(missing.iter().map(|rank| Rank(*rank)).collect()),
            };
            return self.leave(member, left);
        }
        let Some(link) = process.link.filter(|_| process.is_welcome && process.stage == 4) else { return };
        let sends_report = !std::mem::replace(&mut process.has_reported, true);
        let sends_done = process.is_done && !std::mem::replace(&mut process.has_left, true);
        if sends_report {
            let report = Bytes::from_static(b"{}");
            self.send(link, true, MeetMessage::part(key::REPORT, &report), report);
        }
        if sends_done {
            self.send(link, true, MeetMessage::part(key::DONE, &Bytes::new()), Bytes::new());
        }
    }

    /// A member ends.
    pub(super) fn leave(&mut self, member: usize, left: RunEnd) {
        let process = &mut self.members[member];
        if !process.is_alive {
            return;
        }
        self.scheduler.note(format_args!("member {member} leaves: {left:?}"));
        process.left = Some(left);
        process.is_alive = false;
        if let Some(link) = process.link.take() {
            self.close(link, false);
        }
    }

    /// Rank 0 ends the run when all ranks are done, or it no longer waits for them.
    pub(super) fn end_run(&mut self, leader: usize) {
        let now = self.now();
        let process = &mut self.leaders[leader];
        let (is_done, is_late) = process.leaves;
        if !is_done || process.missing.is_some() {
            if process.missing.is_some() && process.leader.all_informed() {
                process.ends = process.ends.min(Some(self.scheduler.now()));
            }
            return;
        }
        let (working, missing) = process.leader.unfinished(key::DONE, now);
        if working == 0 || is_late {
            self.scheduler.note(format_args!("leader {leader} ends the run without {missing:?}"));
            process.leader.end(&missing);
            process.missing = Some(missing);
            process.ends = Some(self.scheduler.now() + SECOND * 2);
        }
    }

    /// The end that a member has seen agrees with its rank 0.
    pub(super) fn check_left(&self, seed: u64, member: usize, leader: &LeaderProcess) {
        let rank = self.rank(member);
        match (&self.members[member].left, &leader.missing) {
            (None, _) => panic!("seed {seed}: rank {rank} waits for ever"),
            (Some(RunEnd::Unheard), _) => {}
            (Some(RunEnd::Together), missing) => {
                assert_eq!(missing.as_deref(), Some(&[][..]), "seed {seed}: rank {rank}");
            }
            (Some(RunEnd::Without(without)), missing) => {
                assert_eq!(Some(without), missing.as_ref(), "seed {seed}: rank {rank}");
            }
        }
    }
}
