//! The record of measured loaders: one entry per data source, one row per loader and setting.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::table::number;

/// Number of samples. Ceph holds its objects in memory, in four formats, and is slow, so it has
/// fewer.
const SAMPLES: usize = 20_000;
const SAMPLES_IN_CEPH: usize = 5_000;

/// A kind of data source, which is a group of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum SourceGroup {
    /// A directory in the page cache.
    Local,
    /// The tests' S3 server with this latency in milliseconds.
    Store(u64),
    /// Ceph's S3 gateway.
    Ceph,
}

impl SourceGroup {
    /// All groups, in the order of the tables.
    pub const ALL: [Self; 4] = [Self::Local, Self::Store(0), Self::Store(40), Self::Ceph];

    /// The name on the command line and in the record.
    pub fn name(self) -> String {
        match self {
            Self::Local => "local".to_owned(),
            Self::Store(latency_ms) => format!("s3-{latency_ms}ms"),
            Self::Ceph => "ceph".to_owned(),
        }
    }

    /// The heading of the group's tables.
    pub fn title(self) -> String {
        let samples = number(self.samples() as f64);
        match self {
            Self::Local => format!("{samples} page-cached files"),
            Self::Store(latency_ms) => {
                format!("{samples} objects, test S3 server over loopback, {latency_ms} ms latency")
            }
            Self::Ceph => format!("{samples} objects, Ceph's S3 gateway over loopback"),
        }
    }

    /// The name of a case of this source.
    pub fn case(self, is_raw: bool) -> String {
        let source = match self {
            Self::Local if is_raw => return "page-cached files".to_owned(),
            Self::Local => return "page-cached shards".to_owned(),
            Self::Store(latency_ms) => format!("S3, {latency_ms} ms"),
            Self::Ceph => "Ceph".to_owned(),
        };
        if is_raw { source } else { format!("{source}, shards") }
    }

    /// Number of samples of the source.
    pub fn samples(self) -> usize {
        if self == Self::Ceph { SAMPLES_IN_CEPH } else { SAMPLES }
    }

    /// Rounds of each loader, without the trials.
    pub fn rounds(self) -> usize {
        if self == Self::Local { 3 } else { 2 }
    }
}

impl From<SourceGroup> for String {
    fn from(group: SourceGroup) -> Self {
        group.name()
    }
}

impl TryFrom<String> for SourceGroup {
    type Error = String;

    fn try_from(name: String) -> std::result::Result<Self, String> {
        let known = Self::ALL.into_iter().find(|group| group.name() == name);
        known.ok_or_else(|| format!("unknown group '{name}'"))
    }
}

/// A loader's role in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// foreread's loader, which reads every sample again in each epoch.
    Loader,
    /// foreread's loader over shards, with memory for all. It reads large blocks where that is
    /// faster.
    Shards,
    /// foreread's loader with memory for all.
    Memory,
    /// Another interface of foreread.
    Variant,
    /// The lower bound of the cost of every loader.
    LowerBound,
    /// Another loader.
    Peer,
}

/// A format of the samples, which names its directory or bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleFormat {
    /// One file or object per sample.
    Raw,
    /// Mosaic Streaming's shards.
    Mds,
    /// LitData's chunks.
    Chunks,
    /// Tar shards.
    Tar,
}

impl SampleFormat {
    /// All formats. `Raw` is first, because the others are converted from it.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Mds, Self::Chunks, Self::Tar];

    /// The name of the format's directory or bucket.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Mds => "mds",
            Self::Chunks => "chunks",
            Self::Tar => "tar",
        }
    }
}

/// The rate and the cost of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochFigures {
    /// Samples per second.
    pub rate: f64,
    /// CPU microseconds per sample, of all threads and processes.
    pub cpu: f64,
}

/// The first epoch or the later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochKind {
    /// The first epoch, with startup and listing.
    First,
    /// The epochs after the first.
    Later,
}

impl EpochKind {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first epoch",
            Self::Later => "later epochs",
        }
    }
}

/// Medians over the rounds of one loader with one setting.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoaderRow {
    /// The loader.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// The format that it reads.
    pub format: SampleFormat,
    /// The unit of its setting, `workers` or `threads`. Empty without a setting.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// The number of workers or threads.
    #[serde(default)]
    pub setting: u32,
    /// Samples per second of the short trials, by setting.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<(u32, f64)>,
    /// The first epoch.
    pub first: EpochFigures,
    /// The later epochs. `None` if they were not measured.
    pub later: Option<EpochFigures>,
    /// Seconds from the loader's creation to its first batch.
    pub first_batch: f64,
    /// Seconds from the first bytes of an object that the store sent to the first batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_sent: Option<f64>,
    /// Whether the time limit ended an epoch early.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

impl LoaderRow {
    /// An epoch's figures.
    pub fn epoch(&self, kind: EpochKind) -> Option<EpochFigures> {
        match kind {
            EpochKind::First => Some(self.first),
            EpochKind::Later => self.later,
        }
    }

    /// The loader's name with its setting.
    pub fn label(&self) -> String {
        self.label_of(self.setting)
    }

    /// The loader's name with this setting.
    pub fn label_of(&self, setting: u32) -> String {
        match self.unit.as_str() {
            "" => self.name.clone(),
            unit if setting == 1 => format!("{}, 1 {}", self.name, unit.trim_end_matches('s')),
            unit => format!("{}, {setting} {unit}", self.name),
        }
    }

    /// Whether the loader is foreread.
    pub fn is_ours(&self) -> bool {
        !matches!(self.role, Role::Peer | Role::LowerBound)
    }
}

/// The rows of one data source, from one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupRecord {
    /// The data source.
    pub group: SourceGroup,
    /// The day of the run.
    pub date: String,
    /// The machine of the run.
    pub machine: String,
    /// The versions of the compared packages. Empty if unknown.
    pub versions: BTreeMap<String, String>,
    /// The rows, in the order of the tables.
    pub rows: Vec<LoaderRow>,
}

/// All measured groups.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Record {
    /// The groups, in the order of the tables.
    pub groups: Vec<GroupRecord>,
}

impl Record {
    /// Reads a record.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is no record.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Writes the record.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }

    /// Replaces the groups of a new run and keeps the others.
    pub fn update(&mut self, groups: Vec<GroupRecord>) {
        self.groups.retain(|old| groups.iter().all(|new| new.group != old.group));
        self.groups.extend(groups);
        self.groups.sort_by_key(|group| SourceGroup::ALL.iter().position(|known| *known == group.group));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A peer with the same rate in all epochs, without trials.
    pub(crate) fn peer(name: &str, format: SampleFormat, rate: f64) -> LoaderRow {
        let epoch = EpochFigures { rate, cpu: 10.0 };
        LoaderRow {
            name: name.to_owned(),
            role: Role::Peer,
            format,
            unit: "workers".to_owned(),
            setting: 0,
            tried: Vec::new(),
            first: epoch,
            later: Some(epoch),
            first_batch: 1.0,
            since_sent: None,
            is_cut: false,
        }
    }

    /// foreread's rows for raw files, with 100 samples/s in the first epoch and 200 in later ones,
    /// and some peers.
    pub(crate) fn record(peers: Vec<LoaderRow>) -> Record {
        let later = EpochFigures { rate: 200.0, cpu: 10.0 };
        let ours = LoaderRow {
            role: Role::Loader,
            unit: String::new(),
            later: Some(later),
            ..peer("foreread.Loader", SampleFormat::Raw, 100.0)
        };
        let group = GroupRecord {
            group: SourceGroup::Local,
            date: "1 January 2026".to_owned(),
            machine: "2 cores".to_owned(),
            versions: BTreeMap::new(),
            rows: [vec![ours], peers].concat(),
        };
        Record { groups: vec![group] }
    }

    #[test]
    fn new_run_replaces_its_groups_and_keeps_others() {
        let mut all = record(Vec::new());
        let ceph = GroupRecord { group: SourceGroup::Ceph, ..all.groups[0].clone() };
        let again = GroupRecord { date: "2 January 2026".to_owned(), ..all.groups[0].clone() };
        all.update(vec![ceph]);
        all.update(vec![again]);
        let found: Vec<_> = all.groups.iter().map(|group| (group.group, group.date.as_str())).collect();
        assert_eq!(found, [(SourceGroup::Local, "2 January 2026"), (SourceGroup::Ceph, "1 January 2026")]);
    }

    #[test]
    fn record_survives_a_round_trip_through_json() {
        let one = record(vec![LoaderRow { later: None, ..peer("raw", SampleFormat::Raw, 5.0) }]);
        let text = serde_json::to_string(&one).unwrap();
        let other: Record = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&other).unwrap(), text);
        assert_eq!(other.groups[0].rows[1].later, None);
    }

    #[test]
    fn setting_of_one_is_singular() {
        let row = LoaderRow { unit: "threads".to_owned(), ..peer("SPDL", SampleFormat::Raw, 1.0) };
        assert_eq!((row.label_of(1), row.label_of(8)), ("SPDL, 1 thread".into(), "SPDL, 8 threads".into()));
    }
}
