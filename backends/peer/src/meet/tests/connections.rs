//! Connections of a simulated rendezvous.

use std::time::Duration;

use bytes::Bytes;

use super::super::members::RECONNECT_TIMEOUT;
use super::super::messages::MeetMessage;
use super::{Event, MemberLink, SECOND, World};

impl World {
    pub(super) fn send(&mut self, link: usize, up: bool, message: MeetMessage, bulk: Bytes) {
        let rank = self.rank(self.links[link].member);
        let side = usize::from(!up);
        if self.is_cut(rank, up) {
            return self.links[link].held[side].push((message, bulk));
        }
        let latency = self.scheduler.between(Duration::from_millis(1), Duration::from_millis(30));
        let at = (self.scheduler.now() + latency).max(self.links[link].last[side]);
        self.links[link].last[side] = at;
        self.scheduler.after(at - self.scheduler.now(), Event::Message { link, up, message, bulk });
    }

    /// One side closes a connection. The other detects it after all messages, unless a cut hides
    /// it.
    pub(super) fn close(&mut self, link: usize, by_leader: bool) {
        let side = usize::from(!by_leader);
        if !std::mem::take(&mut self.links[link].open[side]) {
            return;
        }
        let up = !by_leader;
        if !self.is_cut(self.rank(self.links[link].member), up) {
            let after = self.links[link].last[usize::from(!up)].saturating_sub(self.scheduler.now());
            self.scheduler.after(after, Event::Closed { link, up });
        }
    }

    /// A connection is lost without notice.
    pub(super) fn lose(&mut self, link: usize) {
        self.links[link].is_lost = true;
        for up in [true, false] {
            let after = self.scheduler.between(Duration::ZERO, SECOND);
            self.scheduler.after(after, Event::Closed { link, up });
        }
    }

    pub(super) fn closed(&mut self, link: usize, up: bool) {
        if !self.links[link].open[usize::from(!up)] {
            return;
        }
        // An end at one side closes it there, which the other side detects.
        self.close(link, up);
        let now = self.now();
        let MemberLink { leader, member, .. } = self.links[link];
        if !up {
            let process = &mut self.members[member];
            if process.link == Some(link) && process.is_alive {
                process.follower.closed(now);
                self.redial(member);
            }
        } else if let Some(follower) = self.links[link].follower.take() {
            let process = &mut self.leaders[leader];
            // A rank whose connection broke reconnects to receive the end of the run.
            if follower.over && !self.links[link].is_lost {
                process.leader.mark_informed(follower.session.rank);
            }
            if process.leader.disconnect(follower.session, now) {
                let session = follower.session;
                self.scheduler.after(RECONNECT_TIMEOUT, Event::Check { leader, session });
            }
            self.pump(leader, Some(link));
        }
    }
}
