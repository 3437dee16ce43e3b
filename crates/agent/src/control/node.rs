//! The state of one agent at the control process: its last message, its report, and its leases.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use foreread_host::held_leases::{LEASE, LeaseTerms, SILENT};

use super::messages::{MAX_ORIGINS, Report};

/// The most grants that are not applied. An agent has some under way at most.
const MAX_GIVEN: usize = 64;

/// The most demands of a report.
const MAX_DEMANDS: usize = 4096;

/// How long leases are reserved: a moment longer than they hold.
const RESERVED: Duration = Duration::from_secs(LEASE.as_secs() + 1);

/// Bytes per second of an origin: during a lease, and after its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) rate: u64,
    pub(super) fallback: u64,
}

/// The leases of one grant, by origin.
pub(super) type Leases = BTreeMap<String, Lease>;

/// A grant that an agent has applied, or may apply at any time.
#[derive(Clone, Debug)]
struct GivenLeases {
    number: u64,
    leases: Leases,
    /// When they have ended for sure.
    end: Duration,
}

/// An agent.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    /// The name of the token that it has.
    pub(super) user: String,
    pub(super) instance: String,
    /// Where it serves samples to other agents.
    pub(super) addresses: Vec<String>,
    /// The roster that it has.
    pub(super) roster: u64,
    /// Whether it may have leases that this process does not know.
    pub(super) is_unknown: bool,
    /// Its connection, if it has one.
    pub(super) connection: Option<u64>,
    /// When its last message arrived.
    pub(super) heard: Duration,
    pub(super) report: Report,
    /// When the report arrived.
    reported: Duration,
    /// Whether a report waits for its answer.
    pub(super) is_unanswered: bool,
    /// The first one is applied. Others may be.
    given: VecDeque<GivenLeases>,
    /// The leases of another agent with this name, which may still run.
    past: VecDeque<GivenLeases>,
    pub(super) last_number: u64,
    /// The policy that was sent last.
    pub(super) policy: Vec<String>,
    pub(super) is_draining: bool,
    /// The notes that it has.
    pub(super) notes: u64,
    /// The last request to fill its memory.
    pub(super) warm: u64,
}

impl Node {
    /// An agent of an earlier process that has not dialled. With `is_unknown`, it may have other
    /// leases than these.
    pub(super) fn unheard(leases: Leases, is_unknown: bool) -> Self {
        let given = VecDeque::from([GivenLeases { number: 0, leases, end: Duration::ZERO }]);
        Self { given, is_unknown, ..Self::default() }
    }

    /// Handles the hello of an agent on a connection.
    pub(super) fn welcome(&mut self, connection: u64, instance: &str, leases: &[LeaseTerms], now: Duration) {
        self.connection = Some(connection);
        self.heard = now;
        self.reported = now;
        self.is_unanswered = true;
        self.is_unknown = false;
        // Its numbers begin again.
        (self.last_number, self.notes, self.warm, self.roster) = (0, 0, 0, 0);
        if self.instance != instance {
            self.past = std::mem::take(&mut self.given);
        }
        if self.given.is_empty() || !leases.is_empty() {
            let leases = leases
                .iter()
                .map(|it| (it.store.clone(), Lease { rate: it.bytes_per_second, fallback: it.fallback }));
            self.given =
                VecDeque::from([GivenLeases { number: 0, leases: leases.collect(), end: now + RESERVED }]);
        }
        instance.clone_into(&mut self.instance);
        self.report = Report { status: std::mem::take(&mut self.report.status), ..Report::default() };
    }

    /// Handles a report. An older report than the last one changes nothing.
    pub(super) fn report(&mut self, report: Report, now: Duration) {
        self.heard = now;
        if report.number >= self.report.number {
            self.applied(report.applied, now);
            (self.report, self.reported, self.is_unanswered) = (report, now, true);
            self.report.demands.truncate(MAX_DEMANDS);
            self.report.status.stores.truncate(MAX_ORIGINS);
        }
    }

    /// Handles the confirmation of a grant, which makes earlier grants void. Returns whether the
    /// agent has released anything.
    pub(super) fn applied(&mut self, number: u64, now: Duration) -> bool {
        self.heard = now;
        let before = self.given.len();
        while self.given.get(1).is_some_and(|next| next.number <= number) {
            self.given.pop_front();
        }
        self.given.len() < before
    }

    /// Notes the leases that are sent now, in answer to the last report.
    pub(super) fn give(&mut self, leases: Leases) -> u64 {
        self.last_number += 1;
        self.given.push_back(GivenLeases { number: self.last_number, leases, end: self.reported + RESERVED });
        if self.given.len() > MAX_GIVEN {
            self.merge_oldest();
        }
        self.is_unanswered = false;
        self.last_number
    }

    /// Makes one of the two oldest leases, which is as high as both.
    fn merge_oldest(&mut self) {
        let Some(oldest) = self.given.pop_front() else { return };
        let Some(next) = self.given.front_mut() else { return };
        for (origin, lease) in oldest.leases {
            let there = next.leases.entry(origin).or_default();
            *there = Lease { rate: there.rate.max(lease.rate), fallback: there.fallback.max(lease.fallback) };
        }
    }

    /// Whether it is connected, and not silent.
    pub(super) fn is_heard(&self, now: Duration) -> bool {
        self.connection.is_some() && now.saturating_sub(self.heard) <= SILENT
    }

    /// Whether it has reported an origin, or has a lease for it.
    pub(super) fn knows(&self, origin: &str) -> bool {
        self.report.demands.iter().any(|demand| demand.store == origin)
            || self.report.status.stores.iter().any(|known| known.name == origin)
            || self.leases(origin).next().is_some()
    }

    /// The last lease that was granted for an origin.
    pub(super) fn last(&self, origin: &str) -> Option<Lease> {
        self.given.back()?.leases.get(origin).copied()
    }

    /// The origins that it has leases for.
    pub(super) fn last_origins(&self) -> usize {
        self.given.back().map_or(0, |given| given.leases.len())
    }

    /// The highest rate at which it reads from an origin while it is connected.
    pub(super) fn most(&self, origin: &str) -> u64 {
        self.leases(origin).map(|lease| lease.rate).max().unwrap_or(0)
    }

    /// The highest rate at which it reads from an origin after the end of its leases.
    pub(super) fn most_later(&self, origin: &str) -> u64 {
        self.leases(origin).map(|lease| lease.fallback).max().unwrap_or(0)
    }

    /// The highest rate at which it reads from an origin if it stays disconnected from now on.
    pub(super) fn reserved(&self, origin: &str, now: Duration) -> u64 {
        let later = self.most_later(origin);
        if self.have_ended(now) { later } else { later.max(self.most(origin)) }
    }

    /// The rate at which another agent with its name may still read from an origin.
    pub(super) fn past(&self, origin: &str, now: Duration) -> u64 {
        let there = self.past.iter().filter(|given| given.end > now);
        there.filter_map(|given| given.leases.get(origin)).map(|lease| lease.rate).max().unwrap_or(0)
    }

    /// Whether all of its leases have ended.
    pub(super) fn have_ended(&self, now: Duration) -> bool {
        self.given.iter().all(|given| given.end <= now)
    }

    fn leases(&self, origin: &str) -> impl Iterator<Item = Lease> {
        self.given.iter().filter_map(move |given| given.leases.get(origin).copied())
    }
}
