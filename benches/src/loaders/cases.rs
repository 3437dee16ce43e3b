//! The compared cases: foreread and the fastest other loader of the same kind.
//!
//! Decision: raw files are compared with raw files, and shards with shards. A peer has the best
//! rate of all its settings, trials included. A trial excludes startup, which favours the peer. The
//! price is that a peer's figure may come from some seconds only. Such a figure is marked.

use crate::loaders::record::{EpochKind, GroupRecord, LoaderRow, Role, SampleFormat, SourceGroup};

/// One of the three tables of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseTable {
    /// One file or object per sample. foreread keeps none.
    Raw,
    /// Shards, the first epoch. foreread's cache in memory is filled at the same time.
    Shards,
    /// foreread has all samples in memory.
    Memory,
}

/// foreread compared with the best peer.
#[derive(Debug)]
pub struct Case<'a> {
    /// The name of the case.
    pub name: String,
    /// foreread's row.
    pub ours: &'a LoaderRow,
    /// foreread's samples per second.
    pub our_rate: f64,
    /// The best peer.
    pub peer: PeerRate<'a>,
}

/// The rate of a peer, with the setting that it had.
#[derive(Clone, Copy, Debug)]
pub struct PeerRate<'a> {
    /// The peer's row.
    pub row: &'a LoaderRow,
    /// The number of workers or threads.
    pub setting: u32,
    /// Samples per second.
    pub rate: f64,
    /// Whether the rate is of a trial.
    pub is_trial: bool,
}

impl PeerRate<'_> {
    /// The peer and its setting.
    pub fn label(&self) -> String {
        let label = self.row.label_of(self.setting);
        if self.is_trial { format!("{label} (trial)") } else { label }
    }
}

impl Case<'_> {
    /// foreread's rate divided by the peer's.
    pub fn ratio(&self) -> f64 {
        self.our_rate / self.peer.rate
    }
}

impl CaseTable {
    /// All tables, in their order on the page.
    pub const ALL: [Self; 3] = [Self::Raw, Self::Shards, Self::Memory];

    /// The cases of a group.
    pub fn cases(self, group: &GroupRecord) -> Vec<Case<'_>> {
        use EpochKind::{First, Later};
        let cases = match self {
            Self::Raw => vec![group.case(Role::Loader, First), group.case(Role::Loader, Later)],
            Self::Shards => vec![group.case(Role::Shards, First)],
            Self::Memory => vec![group.case(Role::Memory, Later), group.case(Role::Shards, Later)],
        };
        let mut cases: Vec<_> = cases.into_iter().flatten().collect();
        if self == Self::Memory {
            // Names are unique on the page.
            for case in &mut cases {
                case.name = case.name.replace(Later.name(), "from memory");
            }
        }
        cases
    }
}

impl GroupRecord {
    /// The row with a role that only one loader has.
    pub fn row_of(&self, role: Role) -> Option<&LoaderRow> {
        self.rows.iter().find(|row| row.role == role)
    }

    fn case(&self, role: Role, kind: EpochKind) -> Option<Case<'_>> {
        let ours = self.row_of(role)?;
        self.case_of(ours, kind, ours.format == SampleFormat::Raw)
    }

    /// One of foreread's rows compared with the best peer that reads raw files, or shards.
    pub fn case_of<'a>(&'a self, ours: &'a LoaderRow, kind: EpochKind, is_raw: bool) -> Option<Case<'a>> {
        let our_rate = ours.epoch(kind)?.rate;
        let peers = self.rows.iter().filter(|row| row.role == Role::Peer);
        let peers = peers.filter(|row| (row.format == SampleFormat::Raw) == is_raw);
        let rates = peers.filter_map(|row| self.best_rate(row, kind));
        let peer = rates.max_by(|one, other| one.rate.total_cmp(&other.rate))?;
        let name = format!("{}, {}", self.group.case(ours.format == SampleFormat::Raw), kind.name());
        Some(Case { name, ours, our_rate, peer })
    }

    /// The best rate of a row's rounds, and of the trials of settings that had no rounds.
    pub fn best_rate<'a>(&'a self, row: &'a LoaderRow, kind: EpochKind) -> Option<PeerRate<'a>> {
        let rounds = row.epoch(kind).map(|epoch| PeerRate {
            row,
            setting: row.setting,
            rate: epoch.rate,
            is_trial: false,
        });
        let has_rounds =
            |setting: u32| self.rows.iter().any(|other| other.name == row.name && other.setting == setting);
        let trials = row.tried.iter().filter(|_| self.is_trial_of(row, kind));
        let trials = trials.filter(|(setting, _)| !has_rounds(*setting));
        let trials = trials.map(|&(setting, rate)| PeerRate { row, setting, rate, is_trial: true });
        rounds.into_iter().chain(trials).max_by(|one, other| one.rate.total_cmp(&other.rate))
    }

    /// Whether the trials of a row are measurements of this kind of epoch. Trials of files measure
    /// a later epoch. Trials of objects measure the first one without its startup. That equals a
    /// later epoch if the loader keeps nothing.
    fn is_trial_of(&self, row: &LoaderRow, kind: EpochKind) -> bool {
        match kind {
            EpochKind::First => self.group != SourceGroup::Local,
            EpochKind::Later => self.group == SourceGroup::Local || row.format == SampleFormat::Raw,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loaders::record::tests::{peer, record};

    fn group(source: SourceGroup, peers: Vec<LoaderRow>) -> GroupRecord {
        GroupRecord { group: source, ..record(peers).groups.remove(0) }
    }

    fn best(group: &GroupRecord, kind: EpochKind) -> String {
        let case = group.case(Role::Loader, kind).unwrap();
        format!("{} {}", case.peer.label(), case.peer.rate)
    }

    #[test]
    fn peer_has_the_best_of_its_rounds_and_trials() {
        let tried = vec![(0, 9_000.0), (2, 70.0), (4, 80.0)];
        let row = LoaderRow { tried, ..peer("raw", SampleFormat::Raw, 50.0) };
        let store = group(SourceGroup::Store(0), vec![row]);
        // Setting 0 had rounds, so that its trial does not count.
        assert_eq!(best(&store, EpochKind::First), "raw, 4 workers (trial) 80");
    }

    #[test]
    fn trials_from_files_count_for_later_epochs_only() {
        let row = LoaderRow { tried: vec![(2, 80.0)], ..peer("raw", SampleFormat::Raw, 50.0) };
        let local = group(SourceGroup::Local, vec![row]);
        assert_eq!(best(&local, EpochKind::First), "raw, 0 workers 50");
        assert_eq!(best(&local, EpochKind::Later), "raw, 2 workers (trial) 80");
    }

    #[test]
    fn trials_of_shards_in_a_store_are_no_later_epochs() {
        let row = LoaderRow { tried: vec![(2, 80.0)], ..peer("tar", SampleFormat::Tar, 50.0) };
        let store = group(SourceGroup::Store(40), vec![row]);
        let rate = |kind| store.best_rate(&store.rows[1], kind).unwrap().rate;
        assert_eq!((rate(EpochKind::First), rate(EpochKind::Later)), (80.0, 50.0));
    }

    #[test]
    fn raw_files_are_not_compared_with_shards() {
        let peers = vec![peer("tar", SampleFormat::Tar, 900.0), peer("raw", SampleFormat::Raw, 50.0)];
        assert_eq!(best(&group(SourceGroup::Ceph, peers), EpochKind::First), "raw, 0 workers 50");
        let shards_only = group(SourceGroup::Ceph, vec![peer("tar", SampleFormat::Tar, 900.0)]);
        assert!(CaseTable::Raw.cases(&shards_only).is_empty());
    }

    #[test]
    fn case_names_are_unique() {
        let path = crate::loaders::pages::directory().join(crate::loaders::pages::RECORD);
        let record = crate::loaders::record::Record::load(&path).unwrap();
        let cases = CaseTable::ALL
            .into_iter()
            .flat_map(|table| record.groups.iter().flat_map(move |group| table.cases(group)));
        let names: Vec<_> = cases.map(|case| case.name).collect();
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len(), "{names:?}");
    }
}
