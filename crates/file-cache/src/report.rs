//! The report of a run of programs on the files of its datasets.

use foreread_preload::layout::OpenKind;

use crate::host_state::HostCounts;
use crate::trace::Trace;

/// Why an original was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OriginalReason {
    /// There was no copy yet.
    Absent,
    /// The file was not listed when the run began.
    Unlisted,
    /// The program may write.
    Writing,
    /// The file was written or changed in this run.
    Changed,
    /// A directory was renamed a moment ago.
    Renamed,
    /// The copy was gone.
    Failed,
    /// The program follows no link, and the path is one.
    Link,
    /// The program cannot open copies or may not read originals: it has no descriptor left, has
    /// become another user, or was restricted.
    Refused,
    /// The path means another file for the program: by a mount, or in another namespace.
    Elsewhere,
}

impl OriginalReason {
    /// All of them, with the kinds of records.
    const ALL: [(Self, OpenKind); 9] = [
        (Self::Absent, OpenKind::Absent),
        (Self::Unlisted, OpenKind::Unknown),
        (Self::Writing, OpenKind::Writing),
        (Self::Changed, OpenKind::Changed),
        (Self::Renamed, OpenKind::Renamed),
        (Self::Failed, OpenKind::Failed),
        (Self::Link, OpenKind::Link),
        (Self::Refused, OpenKind::Refused),
        (Self::Elsewhere, OpenKind::Elsewhere),
    ];

    /// Its name in a report.
    pub fn text(self) -> &'static str {
        match self {
            Self::Absent => "no copy yet",
            Self::Unlisted => "not listed at the start",
            Self::Writing => "opened for writing",
            Self::Changed => "changed in this run",
            Self::Renamed => "a directory was renamed",
            Self::Failed => "the copy was gone",
            Self::Link => "a link that is not followed",
            Self::Refused => "the program may not open copies",
            Self::Elsewhere => "the path means another file for the program",
        }
    }
}

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
    pub originals: Vec<(OriginalReason, u64)>,
    /// Starts of programs that read originals, because they do not load the library: static ones,
    /// those of 32 bits, and those without the environment.
    pub unserved: u64,
    /// The names of the first of these programs.
    pub unserved_names: Vec<String>,
}

impl RunCounts {
    pub(crate) fn of(trace: &Trace) -> Self {
        let count = |(reason, kind): (OriginalReason, OpenKind)| (reason, trace.count(kind));
        let all = OriginalReason::ALL.into_iter().map(count);
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
