//! The policy of an agent, or of the control process of a cluster: limits, weights and room, by
//! key.
//!
//! A key is a word, such as `memory`, or a word and a name: `limit@s3://bucket`, `weight@search-*`.
//! The same keys are tables of `agent.toml`, arguments of `foreread agent set`, and lines of its
//! status. So there is one grammar, and every value in force has a source. The price is that keys
//! are text, which is checked here.
//!
//! `*` stands for any characters. A value for a name wins over a value for a pattern, `set` over
//! the file, and the file over arguments. The control process's values for a job or a dataset win
//! over all of them, except that it cannot raise a cap.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};

use foreread_open::origin_policy::OriginSettings;
use foreread_open::size::{ByteRate, ByteSize};
use foreread_store::{CacheBounds, OriginLimits};

use crate::status::PolicyValue;

/// The words of the keys of a policy, each with the kind of its name and the meaning of its value.
pub(crate) type Words = &'static [(&'static str, &'static str)];

/// The words of an agent's policy.
pub(crate) const AGENT_WORDS: Words = &[
    ("memory", "the bytes of samples in memory"),
    ("limit", "STORAGE: bytes per second"),
    ("parallelism", "STORAGE: reads at once"),
    ("weight", "JOB: its share of the storage's time, from 1"),
    ("dataset-weight", "DATASET: what its reads count, from 1"),
    ("floor", "DATASET: the bytes of memory that others never get"),
    ("cap", "DATASET: the most bytes of memory"),
    ("pin", "DATASET: true, if others never get its room"),
    ("disk-writes-per-day", "capacities of the disks that may be written in a day"),
];

/// The words of a cluster's policy.
pub const CLUSTER_WORDS: Words = &[
    ("limit", "STORAGE: bytes per second of all nodes together"),
    ("user-weight", "USER: its share of the storage's limit, from 1"),
    ("user-rate-floor", "USER: bytes per second that its jobs get first"),
    ("weight", "USER/JOB: its share of its user's part, from 1"),
    ("rate-floor", "USER/JOB: bytes per second that it gets first"),
    ("pin", "DATASET: true, if others never get its room"),
    ("quota", "DATASET: the most bytes of memory on all nodes together"),
    ("drain", "NODE: true, if it takes no new jobs"),
];

/// Words of keys without a name.
const ABOUT_AGENT: [&str; 2] = ["memory", "disk-writes-per-day"];

/// Writes per day are kept in thousandths.
const WRITES_SCALE: f64 = 1000.0;

/// The value that removes a value.
const NONE: &str = "none";

/// The value that reverts a value that was set at run time.
const FILE: &str = "file";

/// The source of a value. Later variants win.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicySource {
    /// An argument of the agent.
    Argument,
    /// The policy file.
    File,
    /// `foreread agent set`, or `foreread control set`.
    Set,
    /// The control process, for an agent.
    Control,
}

/// A word, and a name or pattern. The name is empty for words that concern the agent.
type PolicyKey = (String, String);

/// The values of all sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    words: Words,
    values: BTreeMap<(PolicyKey, PolicySource), PolicyEntry>,
}

impl Default for Policy {
    /// An agent's.
    fn default() -> Self {
        Self::new(AGENT_WORDS)
    }
}

/// A value as text, and as a number: bytes, bytes per second, a count, or 0 and 1. `None`: `none`,
/// or `file`, which leaves the key to the other sources.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PolicyEntry {
    text: String,
    number: Option<u64>,
}

impl PolicyEntry {
    fn is_set(&self) -> bool {
        self.text != FILE
    }
}

/// The fault in a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PolicyError(String);

impl PolicyError {
    /// A policy that cannot be in force, and why.
    pub fn new(what: String) -> Self {
        Self(what)
    }
}

impl Policy {
    /// A policy without values. Its keys have these words.
    pub fn new(words: Words) -> Self {
        Self { words, values: BTreeMap::new() }
    }

    /// Sets a value by a text such as `limit@s3://bucket=100MB/s`. `none` removes the value. At run
    /// time, `file` reverts it to the value of the file, or of an argument.
    ///
    /// # Errors
    /// If the key or the value is not valid.
    pub fn set_text(&mut self, change: &str, source: PolicySource) -> Result<(), PolicyError> {
        let (key, value) = change
            .rsplit_once('=')
            .ok_or_else(|| PolicyError(format!("'{change}': expected KEY=VALUE, such as memory=100GiB")))?;
        let (word, about) = key.split_once('@').unwrap_or((key, ""));
        self.set(word, about, value, source)
    }

    /// Sets a value.
    ///
    /// # Errors
    /// If the key or the value is not valid.
    pub(crate) fn set(
        &mut self,
        word: &str,
        about: &str,
        value: &str,
        source: PolicySource,
    ) -> Result<(), PolicyError> {
        let wrong = |why: &dyn fmt::Display| PolicyError(format!("{}: {why}", shown(word, about)));
        if !self.words.iter().any(|(known, _)| *known == word) {
            let words: Vec<&str> = self.words.iter().map(|(known, _)| *known).collect();
            return Err(wrong(&format!("there is no such key; known are {}", words.join(", "))));
        }
        let is_about_agent = ABOUT_AGENT.contains(&word);
        if is_about_agent != about.is_empty() {
            let why = if is_about_agent { "it is about nothing" } else { "it needs @NAME, or @* for all" };
            return Err(wrong(&why));
        }
        let key = ((word.to_owned(), about.to_owned()), source);
        if value == FILE {
            if key.1 != PolicySource::Set {
                return Err(wrong(&"only what was set at run time goes back to the file"));
            }
            // It stays as an entry, so that it replaces a value that another process knows.
            self.values.insert(key, PolicyEntry { text: FILE.to_owned(), number: None });
            return Ok(());
        }
        if value == NONE {
            if key.1 == PolicySource::Set {
                // A value of the file or of an argument no longer holds either.
                self.values.insert(key, PolicyEntry { text: NONE.to_owned(), number: None });
            } else {
                self.values.remove(&key);
            }
            return Ok(());
        }
        let number = number(word, value).map_err(|why| wrong(&why))?;
        self.values.insert(key, PolicyEntry { text: value.to_owned(), number: Some(number) });
        Ok(())
    }

    /// Returns the policy with the values of another one in place of the file's values.
    pub fn with_file(&self, file: Self) -> Self {
        self.with(file, &PolicySource::File)
    }

    /// Returns the policy with the values of another one in place of one source's values.
    pub fn with(&self, other: Self, source: &PolicySource) -> Self {
        let kept = self.values.iter().filter(|((_, of), _)| of != source);
        let kept = kept.map(|(key, entry)| (key.clone(), entry.clone()));
        Self { words: self.words, values: kept.chain(other.values).collect() }
    }

    /// The values of one source, as texts for [`set_text`](Self::set_text).
    pub fn texts(&self, of: &PolicySource) -> Vec<String> {
        let values = self.values.iter().filter(|((_, source), _)| source == of);
        values.map(|(((word, about), _), entry)| format!("{}={}", shown(word, about), entry.text)).collect()
    }

    /// The names and patterns that a word has values for.
    pub fn names(&self, word: &str) -> Vec<&str> {
        let set = self.values.iter().filter(|(((of, _), _), entry)| of == word && entry.is_set());
        let names: BTreeSet<&str> = set.map(|(((_, about), _), _)| &**about).collect();
        names.into_iter().collect()
    }

    /// The value in force for a name.
    pub fn find(&self, word: &str, name: &str) -> Option<u64> {
        self.find_by(word, name, |_| true)
    }

    fn find_by(&self, word: &str, name: &str, is_by: impl Fn(&PolicySource) -> bool) -> Option<u64> {
        let about = self
            .values
            .iter()
            .filter(|(_, entry)| entry.is_set())
            .filter(|(((of, about), source), _)| of == word && is_by(source) && matches(about, name));
        // An exact name first, then the source, then the longer pattern.
        let best = about.max_by_key(|(((_, about), source), _)| (about == name, source.clone(), about.len()));
        best.and_then(|(_, entry)| entry.number)
    }

    /// The bytes of samples in memory.
    pub(crate) fn memory(&self) -> Option<u64> {
        self.find("memory", "")
    }

    /// The capacities of the disks that may be written in a day.
    pub(crate) fn disk_writes_per_day(&self) -> Option<f64> {
        self.find("disk-writes-per-day", "").map(|writes| writes as f64 / WRITES_SCALE)
    }

    /// Whether a dataset keeps its room.
    pub(crate) fn is_pinned(&self, url: &str) -> bool {
        self.find("pin", url).is_some_and(|pin| pin != 0)
    }

    /// The limits of an origin.
    pub(crate) fn origin_limits(&self, name: &str) -> OriginLimits {
        OriginLimits {
            bytes_per_second: self.find("limit", name).and_then(NonZeroU64::new),
            parallelism: self.find("parallelism", name).and_then(|most| NonZeroUsize::new(most as usize)),
        }
    }

    /// The weight of a job.
    pub(crate) fn job_weight(&self, name: &str) -> NonZeroU32 {
        self.weight("weight", name)
    }

    /// The weight of a dataset's reads, and the bounds of its room. All of it takes `bytes` bytes.
    /// The memory may be less than the floors of all datasets.
    pub(crate) fn dataset(&self, url: &str, bytes: u64) -> (NonZeroU32, CacheBounds) {
        let floor = if self.is_pinned(url) { bytes } else { self.find("floor", url).unwrap_or(0) };
        let own = self.find_by("cap", url, |source| *source != PolicySource::Control).unwrap_or(u64::MAX);
        let cap = self.find_by("cap", url, |source| *source == PolicySource::Control).unwrap_or(own).min(own);
        (self.weight("dataset-weight", url), CacheBounds { floor: floor.min(cap), cap })
    }

    fn weight(&self, word: &str, name: &str) -> NonZeroU32 {
        let weight = self.find(word, name).and_then(|weight| u32::try_from(weight).ok());
        weight.and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN)
    }

    /// The sum of the floors of datasets. Pinned datasets have none that is known.
    pub(crate) fn floors(&self) -> u64 {
        let floors = self.names("floor").into_iter().map(|name| self.find("floor", name).unwrap_or(0));
        floors.fold(0, u64::saturating_add)
    }

    /// The values in force with their sources, and the mistake in the file. `file` is its name.
    pub fn values(&self, file: &str, mistake: Option<&str>) -> Vec<PolicyValue> {
        let mut last: BTreeMap<&PolicyKey, (&PolicySource, &PolicyEntry)> = BTreeMap::new();
        // Sources come in their order.
        for ((key, source), entry) in self.values.iter().filter(|(_, entry)| entry.is_set()) {
            last.insert(key, (source, entry));
        }
        let values = last.into_iter().map(|((word, about), (source, entry))| PolicyValue {
            key: shown(word, about),
            value: entry.text.clone(),
            source: match source {
                PolicySource::Argument => "argument".to_owned(),
                PolicySource::File => file.to_owned(),
                PolicySource::Set => "set".to_owned(),
                PolicySource::Control => "control".to_owned(),
            },
        });
        let mistake = mistake.map(|mistake| PolicyValue {
            key: "mistake".to_owned(),
            value: mistake.to_owned(),
            source: file.to_owned(),
        });
        values.chain(mistake).collect()
    }
}

/// The bytes, the rate, the count or the truth of a value.
fn number(word: &str, value: &str) -> Result<u64, String> {
    let count = |least: u64, most: u64| {
        let parsed = value.parse().ok().filter(|count| (least..=most).contains(count));
        parsed.ok_or_else(|| format!("'{value}': expected a number from {least} to {most}"))
    };
    match word {
        "limit" => {
            let rate = value.parse::<ByteRate>().map_err(|error| error.to_string())?.0;
            if rate == 0 { Err("a limit is above 0; `none` removes it".to_owned()) } else { Ok(rate) }
        }
        "rate-floor" | "user-rate-floor" => {
            value.parse::<ByteRate>().map(|rate| rate.0).map_err(|error| error.to_string())
        }
        "disk-writes-per-day" => {
            let writes = value.parse::<f64>().ok().filter(|writes| (0.0..=100_000.0).contains(writes));
            let writes = writes.map(|writes| (writes * WRITES_SCALE) as u64);
            writes.ok_or_else(|| format!("'{value}': expected capacities per day, such as 0.5"))
        }
        "parallelism" => count(1, 65_536),
        "weight" | "dataset-weight" | "user-weight" => count(1, 1_000_000),
        "pin" | "drain" => {
            value.parse::<bool>().map(u64::from).map_err(|_| format!("'{value}': expected true or false"))
        }
        _ => value.parse::<ByteSize>().map(|size| size.0).map_err(|error| error.to_string()),
    }
}

fn shown(word: &str, about: &str) -> String {
    if about.is_empty() { word.to_owned() } else { format!("{word}@{about}") }
}

/// Whether a name matches a pattern, in which `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// The keys of an agent's policy, for help texts: each with its kind of name and its value.
pub fn policy_keys() -> String {
    keys(AGENT_WORDS)
}

/// The keys of a cluster's policy, for help texts.
pub fn cluster_policy_keys() -> String {
    keys(CLUSTER_WORDS)
}

fn keys(words: Words) -> String {
    let lines = words.iter().map(|(word, what)| match what.split_once(": ") {
        Some((about, value)) => format!("{word}@{about}: {value}"),
        None => format!("{word}: {what}"),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The memory and the limits of settings as values of the policy.
pub fn arguments(memory: Option<u64>, origin: &OriginSettings) -> Policy {
    let mut policy = Policy::default();
    let values = [
        ("memory", "", memory.map(|bytes| bytes.to_string())),
        ("limit", "*", origin.limit.map(|rate| rate.to_string())),
        ("parallelism", "*", origin.parallelism.map(|most| most.to_string())),
    ];
    for (word, about, value) in values {
        if let Some(value) = value
            && let Err(error) = policy.set(word, about, &value, PolicySource::Argument)
        {
            tracing::warn!(%error, "a value is not in force");
        }
    }
    policy
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(changes: &[(&str, PolicySource)]) -> Policy {
        let mut policy = Policy::default();
        for (change, source) in changes {
            policy.set_text(change, source.clone()).unwrap();
        }
        policy
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "s3://bucket"),
            ("s3://*", "s3://bucket"),
            ("*bucket", "s3://bucket"),
            ("a*b*c", "a-b-b-c"),
            ("same", "same"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("", "x"), ("s3://*", "gs://x"), ("a*a", "a"), ("a*b*c", "acb"), ("same", "same2")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn names_win_over_patterns_and_set_wins_over_the_file() {
        use PolicySource::{Argument, File, Set};
        let policy = policy(&[
            ("limit@*=1GB/s", Argument),
            ("limit@s3://*=200MB/s", File),
            ("limit@s3://slow=10MB", File),
            ("limit@gs://*=none", Set),
            ("weight@search-*=4", File),
            ("weight@search-*=2", Set),
        ]);
        let limit = |name| policy.origin_limits(name).bytes_per_second.map(NonZeroU64::get);
        assert_eq!(limit("http://x"), Some(1_000_000_000));
        assert_eq!(limit("s3://fast"), Some(200_000_000));
        assert_eq!(limit("s3://slow"), Some(10_000_000));
        assert_eq!(limit("gs://x"), None);
        assert_eq!((policy.job_weight("search-7").get(), policy.job_weight("other").get()), (2, 1));
        let values = policy.values("/etc/agent.toml", None);
        let of = |key: &str| values.iter().find(|value| value.key == key).unwrap();
        assert_eq!((&*of("weight@search-*").value, &*of("weight@search-*").source), ("2", "set"));
        assert_eq!(of("limit@s3://slow").source, "/etc/agent.toml");
    }

    #[test]
    fn value_set_at_run_time_goes_back_to_the_file() {
        use PolicySource::{Argument, File, Set};
        let file = [("limit@*=1GB/s", File), ("weight@a=3", File), ("memory=1GB", Argument)];
        let mut policy = policy(&file);
        let of_file = policy.values("agent.toml", None);
        for key in ["limit@*", "weight@a", "memory", "cap@b"] {
            let value = if key == "weight@a" { "7" } else { "none" };
            policy.set_text(&format!("{key}={value}"), Set).unwrap();
        }
        assert_eq!((policy.origin_limits("s3://x").bytes_per_second, policy.memory()), (None, None));
        for key in ["limit@*", "weight@a", "memory", "cap@b"] {
            policy.set_text(&format!("{key}=file"), Set).unwrap();
        }
        assert_eq!(policy.values("agent.toml", None), of_file);
        assert_eq!(policy.origin_limits("s3://x").bytes_per_second.map(NonZeroU64::get), Some(1_000_000_000));
        assert_eq!((policy.job_weight("a").get(), policy.memory()), (3, Some(1_000_000_000)));
        assert!(policy.set_text("limit@*=file", File).is_err());
    }

    #[test]
    fn a_new_file_replaces_the_values_of_the_old_one() {
        use PolicySource::{File, Set};
        let old = policy(&[("cap@a=1GB", File), ("cap@b=1GB", File), ("floor@a=5MB", Set)]);
        let new = old.with_file(policy(&[("cap@a=2GB", File)]));
        let cap = |name| new.dataset(name, 10).1.cap;
        assert_eq!((cap("a"), cap("b")), (2_000_000_000, u64::MAX));
        assert_eq!(new.dataset("a", 10).1.floor, 5_000_000);
        let pinned = policy(&[("pin@a=true", File), ("dataset-weight@a=3", File)]).dataset("a", 77);
        assert_eq!((pinned.0.get(), pinned.1.floor), (3, 77));
    }

    #[test]
    fn mistakes_are_named() {
        let mut policy = Policy::default();
        for (change, says) in [
            ("memory", "expected KEY=VALUE"),
            ("colour=1GB", "colour: there is no such key; known are memory, limit"),
            ("memory@x=1GB", "about nothing"),
            ("limit=1GB", "it needs @NAME"),
            ("limit@s3://x=0", "above 0"),
            ("weight@x=0", "from 1 to"),
            ("pin@x=yes", "expected true or false"),
            ("cap@s3://x?a=b=lots", "cap@s3://x?a=b: invalid size 'lots'"),
        ] {
            let error = policy.set_text(change, PolicySource::Set).unwrap_err().to_string();
            assert!(error.contains(says), "{change}: {error}");
        }
        assert_eq!(policy, Policy::default());
    }
}
