//! Bounds the reads that wait for silent file servers, and finds those to report and to end.
//!
//! A network file system resends requests until its server answers. Lustre's recovery takes five to
//! fifteen minutes. A second read of the same bytes waits with the first one and takes another
//! thread. So a silent read is neither repeated nor hedged. It is reported, and it fails after the
//! patience of the origin.
//!
//! # Bounds
//!
//! A read waits for its server: the one that the catalog names, else its file. Without a bound, the
//! reads of one hanging server would take all threads within seconds.
//!
//! 1. A server that has not answered recently has at most [`MAX_UNANSWERED`] reads in flight.
//!    Recent is ten times its usual time for a read, at least [`MIN_RECENT`]. A server that answers
//!    has no such bound.
//! 2. Silent reads take at most half of the threads. A read is silent after ten times the usual
//!    time, at least [`MIN_SILENT`]. From then on only servers that have answered recently are read.
//! 3. While reads of several servers are in flight, one server has at most half of the threads.
//!
//! Other reads are held back, and are queued again when any read ends. The queue is in the order of
//! need. The price: after an idle time, a server starts with four reads until the first answer. Two
//! servers share the threads evenly, whatever their speed. Where no layout is known, rule 2 also
//! holds back files of healthy servers.
//!
//! The state machine has no clock and no I/O.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use foreread_tier::{ErrorKind, ReadRequest, StorageServer, TierError};
use foreread_types::Tick;
use metrics::{Counter, Gauge};

use crate::jobs::{ReadJob, ReadStep};

/// Reads in flight of a server that has not answered recently.
const MAX_UNANSWERED: usize = 4;

/// How many times the usual time of a read makes it silent.
const SILENT_FACTOR: u32 = 10;

/// No read is silent before this time.
const MIN_SILENT: Duration = Duration::from_secs(1);

/// An answer is recent for at least this time.
const MIN_RECENT: Duration = Duration::from_millis(50);

/// When a silent read is reported, unless half of the patience is shorter.
const WARN_AFTER: Duration = Duration::from_secs(30);

/// The time between two reports of one server.
const WARN_AGAIN: Duration = Duration::from_secs(300);

/// What a read waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum ServerKey {
    Server(StorageServer),
    File(Arc<str>),
}

impl ServerKey {
    fn of(request: &ReadRequest) -> Self {
        match request.server {
            Some(server) => Self::Server(server),
            None => Self::File(Arc::clone(&request.object.path)),
        }
    }

    /// The server's name in messages.
    fn name(&self) -> String {
        match self {
            Self::Server(server) => server.to_string(),
            Self::File(_) => "the file server".to_owned(),
        }
    }
}

/// A place in the queue: the due time, then the order of the requests.
type QueuePlace = (Tick, u64);

/// A read that must not start yet.
#[derive(Debug)]
struct HeldRead {
    job: Arc<ReadJob>,
    since: Duration,
}

/// A read that a thread executes.
#[derive(Debug)]
struct RunningRead {
    job: Arc<ReadJob>,
    key: ServerKey,
    started: Duration,
    /// It was answered with an error. Its thread still waits.
    expired: bool,
}

impl RunningRead {
    /// The time since the kernel last answered.
    fn silence(&self, now: Duration) -> Duration {
        now.saturating_sub(self.job.progress().answered())
    }
}

#[derive(Debug)]
struct ServerState {
    in_flight: usize,
    /// The usual time of a read.
    usual: Option<Duration>,
    answered: Option<Duration>,
    warned: Option<Duration>,
    /// For servers with a name.
    metrics: Option<ServerMetrics>,
}

#[derive(Debug)]
struct ServerMetrics {
    reads: Counter,
    bytes: Counter,
    in_flight: Gauge,
}

impl ServerMetrics {
    fn new(tier: &'static str, server: StorageServer) -> Self {
        let server = server.to_string();
        Self {
            reads: metrics::counter!("foreread_tier_server_reads_total", "tier" => tier, "server" => server.clone()),
            bytes: metrics::counter!("foreread_tier_server_bytes_total", "tier" => tier, "server" => server.clone()),
            in_flight: metrics::gauge!("foreread_tier_server_reads_in_flight", "tier" => tier, "server" => server),
        }
    }
}

impl ServerState {
    fn new(key: &ServerKey, tier: &'static str) -> Self {
        let metrics = match key {
            ServerKey::Server(server) => Some(ServerMetrics::new(tier, *server)),
            ServerKey::File(_) => None,
        };
        Self { in_flight: 0, usual: None, answered: None, warned: None, metrics }
    }

    fn answers(&self, now: Duration) -> bool {
        let recent = (self.usual.unwrap_or_default() * SILENT_FACTOR).max(MIN_RECENT);
        self.answered.is_some_and(|answered| now.saturating_sub(answered) <= recent)
    }
}

/// What [`ServerWatch::check`] has found.
#[derive(Debug, Default)]
pub(crate) struct WatchReport {
    /// Reads to answer with these errors.
    pub(crate) expired: Vec<(Arc<ReadJob>, TierError)>,
    /// Messages for the user.
    pub(crate) warnings: Vec<String>,
}

/// The queued and the running reads of a pool.
#[derive(Debug)]
pub(crate) struct ServerWatch {
    tier: &'static str,
    patience: Duration,
    /// Half of the threads.
    half: usize,
    queue: BTreeMap<QueuePlace, Arc<ReadJob>>,
    queued: u64,
    held: BTreeMap<QueuePlace, HeldRead>,
    servers: HashMap<ServerKey, ServerState>,
    running: HashMap<u64, RunningRead>,
    started: u64,
    usual: Option<Duration>,
    recovered: Vec<String>,
}

impl ServerWatch {
    /// Watches the reads of `threads` threads, which fail after `patience`.
    pub(crate) fn new(tier: &'static str, patience: Duration, threads: usize) -> Self {
        Self {
            tier,
            patience,
            half: (threads / 2).max(1),
            queue: BTreeMap::new(),
            queued: 0,
            held: BTreeMap::new(),
            servers: HashMap::new(),
            running: HashMap::new(),
            started: 0,
            usual: None,
            recovered: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, job: Arc<ReadJob>) {
        let place = (job.request().due, self.queued);
        self.queued += 1;
        self.queue.insert(place, job);
    }

    /// The reads that may start, as far as is known without looking at their servers.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no read is queued, held back or running.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.held.is_empty() && self.running.is_empty()
    }

    /// The time between two checks.
    pub(crate) fn interval(&self) -> Duration {
        (self.patience / 20).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }

    /// Takes all reads that have not started.
    pub(crate) fn take_all(&mut self) -> Vec<Arc<ReadJob>> {
        let held = std::mem::take(&mut self.held).into_values().map(|held| held.job);
        std::mem::take(&mut self.queue).into_values().chain(held).collect()
    }

    /// Starts the first read that its server's bounds allow. Returns it with its number.
    pub(crate) fn next(&mut self, now: Duration) -> Option<(u64, Arc<ReadJob>)> {
        while let Some((place, job)) = self.queue.pop_first() {
            if job.is_dropped() {
                continue;
            }
            let key = ServerKey::of(job.request());
            if !self.admits(&key, now) {
                self.held.insert(place, HeldRead { job, since: now });
                continue;
            }
            let (number, tier) = (self.started, self.tier);
            self.started += 1;
            job.progress().begin(ReadStep::Opening, now);
            let server = self.servers.entry(key.clone()).or_insert_with(|| ServerState::new(&key, tier));
            server.in_flight += 1;
            if let Some(metrics) = &server.metrics {
                metrics.in_flight.increment(1.0);
            }
            let read = RunningRead { job: Arc::clone(&job), key, started: now, expired: false };
            self.running.insert(number, read);
            return Some((number, job));
        }
        None
    }

    /// Records the end of a read, and queues the reads that were held back.
    pub(crate) fn end(&mut self, number: u64, now: Duration) {
        let Some(read) = self.running.remove(&number) else { return };
        let answered = read.job.progress().answered().min(now);
        let took = answered.saturating_sub(read.started);
        let mean = |old: Option<Duration>| Some(old.map_or(took, |old| (old * 15 + took) / 16));
        self.usual = mean(self.usual);
        let is_busy = self.held.values().any(|held| ServerKey::of(held.job.request()) == read.key);
        if let Some(server) = self.servers.get_mut(&read.key) {
            server.in_flight -= 1;
            (server.usual, server.answered) = (mean(server.usual), Some(now));
            if let Some(metrics) = &server.metrics {
                metrics.in_flight.decrement(1.0);
                metrics.reads.increment(1);
                metrics.bytes.increment(read.job.request().len());
            }
            if server.warned.take().is_some() {
                let seconds = now.saturating_sub(read.started).as_secs();
                let name = read.key.name();
                self.recovered.push(format!("{name} answers again, after {seconds} s"));
            }
            // One entry per file would fill the memory.
            if server.in_flight == 0 && !is_busy && matches!(read.key, ServerKey::File(_)) {
                self.servers.remove(&read.key);
            }
        }
        let held = std::mem::take(&mut self.held);
        self.queue.extend(held.into_iter().map(|(place, held)| (place, held.job)));
    }

    /// Finds the reads to report and to end.
    pub(crate) fn check(&mut self, now: Duration) -> WatchReport {
        let mut report = WatchReport { warnings: std::mem::take(&mut self.recovered), ..Default::default() };
        let warn_after = WARN_AFTER.min(self.patience / 2);
        let mut silent: BTreeMap<ServerKey, (Duration, Arc<ReadJob>)> = BTreeMap::new();
        for read in self.running.values_mut() {
            let silence = read.silence(now);
            if silence >= self.patience && !read.expired {
                read.expired = true;
                let error = expired(self.tier, &read.job, &read.key, silence);
                report.expired.push((Arc::clone(&read.job), error));
            }
            let longest = silent.get(&read.key).is_none_or(|(longest, _)| silence > *longest);
            if silence >= warn_after && longest {
                silent.insert(read.key.clone(), (silence, Arc::clone(&read.job)));
            }
        }
        for (key, (silence, job)) in silent {
            let held = self.held.values().filter(|held| ServerKey::of(held.job.request()) == key).count();
            let Some(server) = self.servers.get_mut(&key) else { continue };
            if server.warned.is_some_and(|warned| now.saturating_sub(warned) < WARN_AGAIN) {
                continue;
            }
            server.warned = Some(now);
            let reads = server.in_flight;
            report.warnings.push(self.warning(&key, &job, silence, reads, held));
        }
        let patience = self.patience;
        let late: Vec<QueuePlace> = self
            .held
            .iter()
            .filter(|(_, held)| now - held.since >= patience)
            .map(|(place, _)| *place)
            .collect();
        for place in late {
            let Some(held) = self.held.remove(&place) else { continue };
            let key = ServerKey::of(held.job.request());
            let error = expired(self.tier, &held.job, &key, now - held.since);
            report.expired.push((held.job, error));
        }
        report
    }

    fn warning(
        &self,
        key: &ServerKey,
        job: &ReadJob,
        silence: Duration,
        reads: usize,
        held: usize,
    ) -> String {
        let path = &job.request().object.path;
        let step = describe(job.progress().step());
        let more = if held > 0 { format!(" and {held} more are held back") } else { String::new() };
        format!(
            "no answer from {} for {} s while {step} {path}; {reads} of its reads wait{more}. The file system \
             repeats the request. Reads fail after {} s without an answer",
            key.name(),
            silence.as_secs(),
            self.patience.as_secs(),
        )
    }

    /// Whether a read of `key` may start.
    fn admits(&self, key: &ServerKey, now: Duration) -> bool {
        let Some(server) = self.servers.get(key) else { return self.silent(now) < self.half };
        let is_alone = self.running.len() == server.in_flight;
        if server.in_flight >= self.half && server.in_flight >= MAX_UNANSWERED && !is_alone {
            return false;
        }
        server.answers(now) || server.in_flight < MAX_UNANSWERED && self.silent(now) < self.half
    }

    /// The number of silent reads.
    fn silent(&self, now: Duration) -> usize {
        let is_silent = |read: &&RunningRead| {
            let server = self.servers.get(&read.key).and_then(|server| server.usual);
            let usual = server.or(self.usual).unwrap_or_default();
            read.silence(now) > (usual * SILENT_FACTOR).max(MIN_SILENT)
        };
        self.running.values().filter(is_silent).count()
    }
}

fn describe(step: ReadStep) -> &'static str {
    match step {
        ReadStep::Opening => "opening",
        ReadStep::Reading => "reading",
        ReadStep::Checking => "checking",
    }
}

/// The error of a read that has waited for its server in vain.
fn expired(tier: &'static str, job: &ReadJob, key: &ServerKey, silence: Duration) -> TierError {
    let detail = format!(
        "no answer from {} in {:.1} s; see the file system's state (for Lustre: `lfs check servers`), or set a \
         longer patience. This process cannot end before the kernel ends the read",
        key.name(),
        silence.as_secs_f64(),
    );
    TierError::new(ErrorKind::Other, tier).with_object(&*job.request().object.path).with_detail(detail)
}
