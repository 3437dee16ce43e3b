//! The ranks as rank 0 knows them: the process of each rank, whether it is connected, and its
//! progress.
//!
//! A rank belongs to the first process that claims it. That process may reconnect as often as
//! necessary. Another process gets the rank only when its owner is gone. Before the start, this
//! ends the rendezvous, because the ranks' agreement includes the process that is gone. During the
//! run, the new process replaces it. No clock: callers pass the time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::messages::{HEARTBEAT_TIMEOUT, Hello, MeetMessage, RankInfo};
use super::{MeetError, MeetErrorKind};

/// Reconnect timeout: a rank whose connection broke counts as gone for waiters after this time.
pub(super) const RECONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a claim of a taken rank is remembered after the last attempt. A waiting process retries
/// every second.
const CLAIM_TIMEOUT: Duration = HEARTBEAT_TIMEOUT.saturating_add(Duration::from_secs(2));

/// A rank.
#[derive(Debug, Default)]
pub(super) struct MemberState {
    pub(super) info: Option<RankInfo>,
    pub(super) process: u64,
    /// The number of its last connection. Older connections are ignored.
    pub(super) session: u64,
    pub(super) connected: bool,
    pub(super) progress: Option<u64>,
    /// When its connection broke.
    pub(super) lost: Option<Instant>,
    /// When another process first claimed the rank, and when it did so last.
    claimed: Option<(Instant, Instant)>,
}

impl MemberState {
    /// Whether messages of it may still come: it is connected, or its connection broke a moment
    /// ago.
    pub(super) fn is_reachable(&self, now: Instant) -> bool {
        self.connected || self.lost.is_some_and(|lost| now.duration_since(lost) < RECONNECT_TIMEOUT)
    }
}

/// One connection of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RankSession {
    pub(super) rank: usize,
    pub(super) number: u64,
}

/// The result of a hello.
#[derive(Debug)]
pub(super) enum Admission {
    /// Admitted. `has_moved` if the process or its addresses are new.
    Admitted { session: RankSession, has_moved: bool },
    /// The connection is refused, and the rendezvous continues.
    Refused(MeetMessage),
    /// A process was replaced before the start: the rendezvous ends.
    Replaced(MeetError),
}

/// Missing ranks that are claimed by refused processes.
#[derive(Debug)]
pub(super) struct RejectedClaims {
    /// The reason of the first refusal.
    pub(super) error: MeetError,
    /// Whether every missing rank is claimed by such a process.
    pub(super) are_all: bool,
}

/// All ranks.
#[derive(Debug, Default)]
pub(super) struct Members {
    version: String,
    pub(super) all: Vec<MemberState>,
    /// Per claimed rank, why a process was refused: it is of an earlier run, or has another world
    /// size or version.
    rejected: BTreeMap<usize, MeetError>,
}

pub(super) fn retry_later(why: String) -> MeetMessage {
    MeetMessage::Refuse { kind: MeetErrorKind::Refused, why, again: true }
}

impl Members {
    pub(super) fn new(first: RankInfo, world: usize, version: String, process: u64) -> Self {
        let mut all: Vec<MemberState> = (0..world).map(|_| MemberState::default()).collect();
        if let Some(member) = all.first_mut() {
            *member = MemberState { info: Some(first), process, connected: true, ..MemberState::default() };
        }
        Self { version, all, rejected: BTreeMap::new() }
    }

    /// The process of rank 0.
    pub(super) fn rank0_process(&self) -> u64 {
        self.all.first().map_or(0, |member| member.process)
    }

    pub(super) fn connected(&self) -> usize {
        self.all.iter().filter(|member| member.connected).count()
    }

    /// Whether the process of a hello owns the rank, or the rank is free.
    pub(super) fn owns_rank(&self, hello: &Hello) -> bool {
        let member = self.all.get(hello.info.rank as usize);
        member.is_some_and(|member| member.info.is_none() || member.process == hello.process)
    }

    /// Why a process can never take part in this rendezvous, if so.
    pub(super) fn rejection(&self, hello: &Hello) -> Option<MeetError> {
        let (rank, place) = (hello.info.rank, hello.info.location());
        let differs = |what: &str, theirs: &dyn std::fmt::Display, ours: &dyn std::fmt::Display| {
            let line =
                format!("rank {rank} ({place}) differs from rank 0: {what} is {theirs}, rank 0's is {ours}");
            Some(MeetError::new(MeetErrorKind::Differs, line))
        };
        if hello.world_size as usize != self.all.len() {
            return differs("world size", &hello.world_size, &self.all.len());
        }
        if hello.version != self.version {
            return differs("version", &hello.version, &self.version);
        }
        hello.met.filter(|met| *met != self.rank0_process()).map(|_| {
            let line = format!(
                "rank 0 was started again while rank {rank} ({place}) of an earlier run is alive: end that \
                 process, and start all ranks again"
            );
            MeetError::new(MeetErrorKind::Broken, line)
        })
    }

    /// Records a refused process. The right one may still come.
    pub(super) fn note_rejected(&mut self, rank: usize, error: &MeetError) {
        if rank < self.all.len() {
            self.rejected.insert(rank, error.clone());
        }
    }

    /// Admits a connection from the address `seen`, or returns why not.
    pub(super) fn admit(
        &mut self,
        hello: &Hello,
        seen: &str,
        started: bool,
        done: bool,
        now: Instant,
    ) -> Admission {
        let (info, rank) = (&hello.info, hello.info.rank);
        let world = self.all.len();
        let refuse = |error: &MeetError| Admission::Refused(MeetMessage::refuse(error));
        let Some(member) = self.all.get_mut(rank as usize) else {
            let line = format!("rank {rank} of {world} ranks: ranks count from 0");
            return refuse(&MeetError::new(MeetErrorKind::Setting, line));
        };
        let is_other = member.info.is_some() && member.process != hello.process;
        // The death of a whole machine is detected later.
        let is_gone = member.lost.is_some_and(|lost| now.duration_since(lost) >= RECONNECT_TIMEOUT);
        if is_other && (member.connected || (!started && !is_gone)) {
            let line = duplicate_rank(member.info.as_ref(), info);
            let claimed = member.claimed.filter(|(_, last)| now.duration_since(*last) < CLAIM_TIMEOUT);
            let (since, _) = *member.claimed.insert((claimed.map_or(now, |(since, _)| since), now));
            if rank != 0 && now.duration_since(since) < CLAIM_TIMEOUT {
                return Admission::Refused(retry_later(line));
            }
            return refuse(&MeetError::new(MeetErrorKind::Setting, line));
        }
        if is_other && started && done {
            return Admission::Refused(retry_later(format!(
                "rank {rank} is done here and the others are not yet"
            )));
        }
        if is_other && !started {
            let before = member.info.as_ref().map(RankInfo::location).unwrap_or_default();
            let line = format!(
                "rank {rank} was started again ({}, before {before}) while the ranks met: start all ranks \
                 again",
                info.location()
            );
            return Admission::Replaced(MeetError::new(MeetErrorKind::Broken, line));
        }
        let mut info = info.clone();
        info.addresses.iter_mut().for_each(|address| *address = resolve_address(address, seen));
        let same = member.process == hello.process && member.info.as_ref() == Some(&info);
        (member.info, member.process) = (Some(info), hello.process);
        (member.connected, member.claimed) = (true, None);
        member.session += 1;
        let session = RankSession { rank: rank as usize, number: member.session };
        self.rejected.remove(&session.rank);
        Admission::Admitted { session, has_moved: !same }
    }

    pub(super) fn is_current(&self, session: RankSession) -> bool {
        self.all.get(session.rank).is_some_and(|member| member.session == session.number)
    }

    /// A connection has ended. `false` if the rank has a newer one.
    pub(super) fn disconnect(&mut self, session: RankSession, now: Instant) -> bool {
        if !self.is_current(session) {
            return false;
        }
        if let Some(member) = self.all.get_mut(session.rank) {
            (member.connected, member.lost) = (false, Some(now));
        }
        true
    }

    /// Refused processes that claim missing ranks.
    pub(super) fn rejected(&self) -> Option<RejectedClaims> {
        let is_here = |rank: usize| self.all.get(rank).is_some_and(|member| member.connected);
        let mut claimed = self.rejected.iter().filter(|(rank, _)| !is_here(**rank));
        let (_, error) = claimed.next()?;
        let more = claimed.count();
        let are_all = self.connected() + more + 1 == self.all.len();
        let error = match more {
            0 => error.clone(),
            1 => MeetError::new(error.kind(), format!("{error} (another rank is refused, too)")),
            more => MeetError::new(error.kind(), format!("{error} ({more} more ranks are refused, too)")),
        };
        Some(RejectedClaims { error, are_all })
    }

    /// The lowest progress of all ranks.
    pub(super) fn lowest(&self) -> u64 {
        self.all.iter().map(|member| member.progress.unwrap_or(0)).min().unwrap_or(0)
    }

    /// The location of a rank, for messages.
    pub(super) fn location(&self, rank: usize) -> String {
        let info = self.all.get(rank).and_then(|member| member.info.as_ref());
        info.map(RankInfo::location).unwrap_or_default()
    }
}

/// The error line for a rank that `owner` has and `other` claims.
fn duplicate_rank(owner: Option<&RankInfo>, other: &RankInfo) -> String {
    let (rank, place) = (other.rank, other.location());
    if owner.is_some_and(|owner| (owner.pid, &owner.node) == (other.pid, &other.node)) {
        return format!(
            "{place} is rank {rank} twice: another of its loaders meets at the same address; number the \
             loaders of a process, or close the earlier one first"
        );
    }
    let owner = owner.map(RankInfo::location).unwrap_or_default();
    format!(
        "two processes are rank {rank}: {owner}, and {place}: check their rank settings, or whether \
         another run meets at the same address"
    )
}

/// An address as other ranks reach it, of a rank that rank 0 sees connect from `seen`.
fn resolve_address(address: &str, seen: &str) -> String {
    let anywhere = ["0.0.0.0:", "[::]:"].iter().find_map(|start| address.strip_prefix(start));
    let port = anywhere.and_then(|port| port.parse().ok());
    match (port, seen.parse::<SocketAddr>()) {
        (Some(port), Ok(mut from)) if !from.ip().to_canonical().is_loopback() => {
            // A link-local address needs its scope.
            if from.ip() != from.ip().to_canonical() {
                from.set_ip(from.ip().to_canonical());
            }
            from.set_port(port);
            from.to_string()
        }
        // On rank 0's own host, for which each rank has a name, or a specific address.
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(rank: u32, pid: u32) -> RankInfo {
        RankInfo { pid, ..RankInfo::example(rank) }
    }

    fn hello(rank: u32, process: u64) -> Hello {
        Hello::new(info(rank, process as u32), 3, "1".to_owned(), 0, process)
    }

    fn members() -> Members {
        Members::new(info(0, 1), 3, "1".into(), 1)
    }

    fn here(admission: Admission) -> (RankSession, bool) {
        match admission {
            Admission::Admitted { session, has_moved } => (session, has_moved),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn process_reconnects_and_its_old_connection_is_ignored() {
        let (mut members, now) = (members(), Instant::now());
        let (first, has_moved) = here(members.admit(&hello(1, 7), "", false, false, now));
        assert!(has_moved);
        let (second, has_moved) = here(members.admit(&hello(1, 7), "", false, false, now));
        assert!(!has_moved);
        assert!(!members.disconnect(first, now) && members.disconnect(second, now));
        here(members.admit(&hello(1, 7), "", false, false, now + RECONNECT_TIMEOUT * 10));
    }

    #[test]
    // semantics: RANK-9
    fn replaced_process_ends_the_rendezvous_and_not_the_run() {
        let (mut members, now) = (members(), Instant::now());
        let (session, _) = here(members.admit(&hello(1, 7), "", false, false, now));
        members.disconnect(session, now);
        let early = members.admit(&hello(1, 8), "", false, false, now);
        assert!(matches!(early, Admission::Refused(MeetMessage::Refuse { again: true, .. })), "{early:?}");
        match members.admit(&hello(1, 8), "", false, false, now + RECONNECT_TIMEOUT) {
            Admission::Replaced(error) => assert!(error.to_string().contains("rank 1 was started again")),
            other => panic!("{other:?}"),
        }
        let (_, has_moved) = here(members.admit(&hello(1, 8), "", true, false, now + RECONNECT_TIMEOUT));
        assert!(has_moved);
    }

    #[test]
    fn second_process_is_refused_after_repeated_claims() {
        let (mut members, now) = (members(), Instant::now());
        here(members.admit(&hello(1, 7), "", false, false, now));
        let mut at =
            |seconds| match members.admit(&hello(1, 8), "", false, false, now + Duration::from_secs(seconds))
            {
                Admission::Refused(MeetMessage::Refuse { again, .. }) => again,
                other => panic!("{other:?}"),
            };
        assert!(at(0) && at(6) && !at(12));
        // An old claim is forgotten.
        assert!(at(60));
    }

    #[test]
    fn duplicate_rank_learns_the_other_process() {
        let two = duplicate_rank(Some(&info(1, 7)), &info(1, 8));
        assert!(two.starts_with("two processes are rank 1: process 7 on h, and process 8 on h: "), "{two}");
        assert!(two.contains("another run meets at the same address"), "{two}");
        let one = duplicate_rank(Some(&info(1, 7)), &info(1, 7));
        assert!(one.starts_with("process 7 on h is rank 1 twice: another of its loaders"), "{one}");
    }

    #[test]
    // semantics: RANK-26
    fn addresses_are_published_as_they_are_reached() {
        for (address, seen, expected) in [
            ("0.0.0.0:7", "10.0.0.3:4000", "10.0.0.3:7"),
            ("[::]:7", "[::ffff:10.0.0.3]:4000", "10.0.0.3:7"),
            ("[::]:7", "[fd00::3]:4000", "[fd00::3]:7"),
            ("[::]:7", "[fe80::3%2]:4000", "[fe80::3%2]:7"),
            ("[::]:7", "127.0.0.1:4000", "[::]:7"),
            ("[::]:7", "process 31", "[::]:7"),
            ("node3:7", "10.0.0.3:4000", "node3:7"),
            ("unix:@x", "10.0.0.3:4000", "unix:@x"),
        ] {
            assert_eq!(resolve_address(address, seen), expected);
        }
    }
}
