//! The report of a run of programs on the files of its datasets.

use foreread_preload::layout::OpenKind;

use crate::host_state::HostCounts;
use crate::trace::Trace;

/// Why an original was opened: the kinds of records, and their names in a report.
const ORIGINALS: [(OpenKind, &str); 9] = [
    (OpenKind::Absent, "no copy yet"),
    (OpenKind::Unknown, "not listed at the start"),
    (OpenKind::Writing, "opened for writing"),
    (OpenKind::Changed, "changed in this run"),
    (OpenKind::Renamed, "a directory was renamed"),
    (OpenKind::Failed, "the copy was gone"),
    (OpenKind::Link, "a link that is not followed"),
    (OpenKind::Refused, "the program may not open copies"),
    (OpenKind::Elsewhere, "the path means another file for the program"),
];

/// The opens of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunCounts {
    /// Opens of files of the datasets.
    pub opens: u64,
    /// The opens that got a copy.
    pub served: u64,
    /// The bytes of their files.
    pub served_bytes: u64,
    /// The others, by their reasons. Reasons that did not occur are left out.
    pub originals: Vec<(&'static str, u64)>,
    /// Starts of programs that read originals, because they do not load the library: static ones,
    /// those of 32 bits, and those without the environment.
    pub unserved: u64,
    /// The names of the first of these programs.
    pub unserved_names: Vec<String>,
}

impl RunCounts {
    pub(crate) fn of(trace: &Trace) -> Self {
        let all = ORIGINALS.into_iter().map(|(kind, reason)| (reason, trace.count(kind)));
        let originals: Vec<_> = all.filter(|(_, count)| *count > 0).collect();
        let served = trace.count(OpenKind::Served);
        let opens = served + originals.iter().map(|(_, count)| count).sum::<u64>();
        let (unserved, unserved_names) = trace.unserved();
        Self { opens, served, served_bytes: trace.served_bytes(), originals, unserved, unserved_names }
    }
}

/// A run, and the cache of its host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunReport {
    /// The opens of its programs.
    pub counts: RunCounts,
    /// The host's counts, if this process was the host.
    pub host: Option<HostCounts>,
}
