//! Bounds the reads that wait for silent file servers, and finds those to report and to end.
//!
//! A network file system resends requests until its server answers. Lustre's recovery takes five to
//! fifteen minutes. A second read of the same bytes waits with the first one and takes another
//! thread. So a silent read is neither repeated nor hedged. It is reported, and it fails after the
//! patience of the origin.
//!
//! # Bounds
//!
//! A read waits for its server, which the catalog names. Otherwise, its file counts as its server.
//! Without a bound, the reads of one hanging server would take all threads within seconds.
//!
//! 1. At most [`MAX_UNANSWERED`] reads of a server start after its last answer, if it has not
//!    answered yet or one of its reads is late. A read is late after [`LATE_FACTOR`] times the
//!    usual time of its server. A server that answers, however slowly, has all threads.
//! 2. Late reads take at most half of the threads. From then on only servers that answer are read.
//! 3. While reads of several servers are in flight, one server has at most half of the threads.
//!
//! Other reads are held back. When a read ends, those of its server are queued again, and the first
//! one of each other server. The queue is in the order of need. The price: after an idle time, a
//! server starts with four reads until the first answer. Two servers share the threads evenly,
//! whatever their speed. Where no layout is known, rule 2 also holds back files of healthy servers,
//! while half of the threads wait.
//!
//! # Suspended processes
//!
//! A scheduler may stop a job for hours (`SIGSTOP`, a suspended machine). Servers that answered in
//! that time are not silent. So a check that comes much later than planned counts silence from
//! itself. The price: a process that is stopped again and again reports a silent server late.
//!
//! The state machine has no clock and no I/O.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use foreread_tier::{ErrorKind, ReadRequest, StorageServer, TierError};
use foreread_types::Tick;
use metrics::{Counter, Gauge, Label};

use crate::jobs::{ReadJob, ReadStep};

/// Reads of a server that may start after its last answer.
const MAX_UNANSWERED: usize = 4;

/// How many times the usual time of a read makes it late. With one of sixteen servers hanging, all
/// threads would wait after sixteen times the usual time.
const LATE_FACTOR: u32 = 3;

/// The usual time is at least this: cached files have none.
const MIN_USUAL: Duration = Duration::from_millis(1);

/// A read that is silent for so long takes no part of the bytes that are read at once: its server
/// may be dead, and others must not wait for that.
const STALLED: Duration = Duration::from_secs(5);

/// When a silent read is reported, unless half of the patience is shorter.
const WARN_AFTER: Duration = Duration::from_secs(30);

/// The time between two reports of one server.
const WARN_AGAIN: Duration = Duration::from_secs(300);

/// How much later than planned a check is after the process was suspended. Longer than a loaded
/// machine delays a thread.
const SUSPENDED: Duration = Duration::from_secs(5);

/// The server that a read waits for.
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

/// A read that waits for a thread.
#[derive(Debug)]
struct WaitingRead {
    job: Arc<ReadJob>,
    /// When it was first held back for its server.
    held: Option<Duration>,
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

    /// The part of the silence in which this process was running.
    fn silence_since(&self, resumed: Duration, now: Duration) -> Duration {
        self.silence(now).min(now.saturating_sub(resumed))
    }
}

#[derive(Debug)]
struct ServerState {
    in_flight: usize,
    /// Reads that started after the last answer.
    unanswered: usize,
    /// The usual time of a read.
    usual: Option<Duration>,
    /// When it was last reported as silent, or last answered after that.
    warned: Option<Duration>,
    /// Whether it was reported as silent and has not answered since.
    is_silent: bool,
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
        let labels = [Label::from_static_parts("tier", tier), Label::new("server", server.to_string())];
        Self {
            reads: metrics::counter!("foreread_tier_server_reads_total", labels.iter()),
            bytes: metrics::counter!("foreread_tier_server_bytes_total", labels.iter()),
            in_flight: metrics::gauge!("foreread_tier_server_reads_in_flight", labels.iter()),
        }
    }
}

impl ServerState {
    fn new(key: &ServerKey, tier: &'static str) -> Self {
        let metrics = match key {
            ServerKey::Server(server) => Some(ServerMetrics::new(tier, *server)),
            ServerKey::File(_) => None,
        };
        Self { in_flight: 0, unanswered: 0, usual: None, warned: None, is_silent: false, metrics }
    }
}

/// The findings of [`ServerWatch::check`].
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
    queue: BTreeMap<QueuePlace, WaitingRead>,
    queued: u64,
    /// Reads that must not start yet, by server.
    held: BTreeMap<ServerKey, BTreeMap<QueuePlace, WaitingRead>>,
    servers: HashMap<ServerKey, ServerState>,
    running: HashMap<u64, RunningRead>,
    started: u64,
    usual: Option<Duration>,
    /// The last check.
    checked: Duration,
    /// The first check after the process was suspended.
    resumed: Duration,
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
            checked: Duration::ZERO,
            resumed: Duration::ZERO,
        }
    }

    pub(crate) fn push(&mut self, job: Arc<ReadJob>) {
        let place = (job.request().due, self.queued);
        self.queued += 1;
        self.queue.insert(place, WaitingRead { job, held: None });
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
        let held = std::mem::take(&mut self.held).into_values().flat_map(BTreeMap::into_values);
        std::mem::take(&mut self.queue).into_values().chain(held).map(|waiting| waiting.job).collect()
    }

    /// Starts the first read that its server's bounds allow. Returns it with its number.
    pub(crate) fn next(&mut self, now: Duration) -> Option<(u64, Arc<ReadJob>)> {
        while let Some((place, waiting)) = self.queue.pop_first() {
            if waiting.job.is_dropped() {
                continue;
            }
            let key = ServerKey::of(waiting.job.request());
            let is_behind = self.held.get(&key).and_then(BTreeMap::first_key_value);
            if is_behind.is_some_and(|(first, _)| *first < place) || !self.admits(&key, now) {
                let held = Some(waiting.held.unwrap_or(now));
                self.held.entry(key).or_default().insert(place, WaitingRead { held, ..waiting });
                continue;
            }
            let job = waiting.job;
            let (number, tier) = (self.started, self.tier);
            self.started += 1;
            job.progress().begin(ReadStep::Opening, now);
            let server = self.servers.entry(key.clone()).or_insert_with(|| ServerState::new(&key, tier));
            server.in_flight += 1;
            server.unanswered += 1;
            if let Some(metrics) = &server.metrics {
                metrics.in_flight.increment(1.0);
            }
            let read = RunningRead { job: Arc::clone(&job), key, started: now, expired: false };
            self.running.insert(number, read);
            return Some((number, job));
        }
        None
    }

    /// Records the end of a read, and queues the reads that were held back. Returns a message if
    /// its server was reported as silent.
    pub(crate) fn end(&mut self, number: u64, now: Duration) -> Option<String> {
        let read = self.running.remove(&number)?;
        let mut recovered = None;
        let answered = read.job.progress().answered().min(now);
        let took = answered.saturating_sub(read.started);
        let mean = |old: Option<Duration>| Some(old.map_or(took, |old| (old * 15 + took) / 16));
        self.usual = mean(self.usual);
        let is_busy = self.held.contains_key(&read.key);
        if let Some(server) = self.servers.get_mut(&read.key) {
            server.in_flight -= 1;
            (server.usual, server.unanswered) = (mean(server.usual), 0);
            if let Some(metrics) = &server.metrics {
                metrics.in_flight.decrement(1.0);
                metrics.reads.increment(1);
                metrics.bytes.increment(read.job.request().len());
            }
            if std::mem::take(&mut server.is_silent) {
                server.warned = Some(now);
                let seconds = now.saturating_sub(read.started).as_secs();
                let name = read.key.name();
                recovered = Some(format!("{name} answers again, after {seconds} s"));
            }
            // One entry per file would fill the memory.
            if server.in_flight == 0 && !is_busy && matches!(read.key, ServerKey::File(_)) {
                self.servers.remove(&read.key);
            }
        }
        // Its server has answered. Of each other server the first read is enough to find out
        // whether reads may start again.
        self.queue.extend(self.held.remove(&read.key).unwrap_or_default());
        self.queue.extend(self.held.values_mut().filter_map(BTreeMap::pop_first));
        self.held.retain(|_, held| !held.is_empty());
        recovered
    }

    /// Finds the reads to report and to end.
    pub(crate) fn check(&mut self, now: Duration) -> WatchReport {
        let mut report = WatchReport::default();
        if now.saturating_sub(self.checked) > self.interval() + SUSPENDED {
            self.resumed = now;
        }
        self.checked = now;
        let resumed = self.resumed;
        let warn_after = WARN_AFTER.min(self.patience / 2);
        let mut silent: BTreeMap<ServerKey, (Duration, Arc<ReadJob>)> = BTreeMap::new();
        for read in self.running.values_mut() {
            let silence = read.silence_since(resumed, now);
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
            let held = self.held.get(&key).map_or(0, BTreeMap::len);
            let Some(server) = self.servers.get_mut(&key) else { continue };
            if server.warned.is_some_and(|warned| now.saturating_sub(warned) < WARN_AGAIN) {
                continue;
            }
            (server.warned, server.is_silent) = (Some(now), true);
            let reads = server.in_flight;
            report.warnings.push(self.warning(&key, &job, silence, reads, held));
        }
        let held_for = |waiting: &WaitingRead| now.saturating_sub(waiting.held.unwrap_or(now).max(resumed));
        for (key, held) in &mut self.held {
            for (_, waiting) in held.extract_if(.., |_, waiting| held_for(waiting) >= self.patience) {
                let silence = held_for(&waiting);
                let error = expired(self.tier, &waiting.job, key, silence);
                report.expired.push((waiting.job, error));
            }
        }
        self.held.retain(|_, held| !held.is_empty());
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
            "no answer from {} for {} s while {step} {path}; {reads} of its reads wait{more}. The file \
             system repeats the request. Reads fail after {} s without an answer",
            key.name(),
            silence.as_secs(),
            self.patience.as_secs(),
        )
    }

    /// Whether a read of `key` may start.
    fn admits(&self, key: &ServerKey, now: Duration) -> bool {
        let Some(server) = self.servers.get(key) else { return self.late(now) < self.half };
        let is_alone = self.running.len() == server.in_flight;
        if server.in_flight >= self.half && server.in_flight >= MAX_UNANSWERED && !is_alone {
            return false;
        }
        let is_proven = server.usual.is_some() && !self.late_reads(now).any(|read| read.key == *key);
        let answers = server.unanswered < MAX_UNANSWERED || is_proven;
        // Reads in flight from before its last answer show that it answers. Without any, one read
        // may find out.
        let may_probe = is_proven && server.in_flight == 0;
        answers && (may_probe || server.in_flight > server.unanswered || self.late(now) < self.half)
    }

    /// The reads that take unusually long.
    fn late_reads(&self, now: Duration) -> impl Iterator<Item = &RunningRead> {
        self.running.values().filter(move |read| {
            let server = self.servers.get(&read.key).and_then(|server| server.usual);
            let usual = server.or(self.usual).unwrap_or_default().max(MIN_USUAL);
            read.silence(now) > usual * LATE_FACTOR
        })
    }

    /// The number of reads whose servers have been silent for long.
    pub(crate) fn stalled(&self, now: Duration) -> usize {
        self.running.values().filter(|read| read.silence(now) >= STALLED).count()
    }

    /// The number of late reads.
    fn late(&self, now: Duration) -> usize {
        self.late_reads(now).count()
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
        "{} was silent for {:.1} s; see the file system's state (for Lustre: `lfs check servers`), or \
         set a longer patience. This process cannot end before the kernel ends the read",
        key.name(),
        silence.as_secs_f64(),
    );
    TierError::new(ErrorKind::Silent, tier).with_object(&*job.request().object.path).with_detail(detail)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use foreread_tier::{Object, Span};
    use foreread_types::{DatasetId, SampleId, SampleKey};
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const PATIENCE: Duration = Duration::from_secs(1200);

    fn watch(threads: usize) -> ServerWatch {
        ServerWatch::new("test", PATIENCE, threads)
    }

    /// A read of the file `id`, on a server or on an unknown one.
    fn job(id: u64, due: u64, server: Option<u32>) -> Arc<ReadJob> {
        let object = Object { path: format!("file-{id}").into(), size: 100, version: None };
        let key = SampleKey::new(DatasetId(0), SampleId(id));
        let server = server.map(StorageServer::Data);
        ReadJob::new(Arc::new(ReadRequest {
            server,
            ..ReadRequest::new(key, object, Span::Whole, Tick(due))
        }))
    }

    #[test]
    // semantics: HPC-2
    fn reads_of_silent_servers_are_stalled() {
        let mut watch = watch(32);
        (0..3).for_each(|id| watch.push(job(id, id, Some(id as u32))));
        let numbers: Vec<u64> = (0..3).map(|_| watch.next(Duration::ZERO).unwrap().0).collect();
        assert_eq!([4, 5].map(|seconds| watch.stalled(Duration::from_secs(seconds))), [0, 3]);
        watch.end(numbers[0], Duration::from_secs(6));
        assert_eq!(watch.stalled(Duration::from_secs(6)), 2);
    }

    /// The checks at these seconds, in one report.
    fn check_each_second(watch: &mut ServerWatch, seconds: std::ops::Range<u64>) -> WatchReport {
        let mut all = WatchReport::default();
        for second in seconds {
            let report = watch.check(Duration::from_secs(second));
            all.expired.extend(report.expired);
            all.warnings.extend(report.warnings);
        }
        all
    }

    fn id(job: &ReadJob) -> u64 {
        job.request().key.id.0
    }

    /// Threads that read for `seconds`, at most `threads` at once. A read of server `hung` never
    /// ends, another takes `latency`. Returns the reads that ended, and the most in flight at once
    /// of the hung server and of all others.
    struct Simulated {
        ended: BTreeSet<u64>,
        most_hung: usize,
        most_others: usize,
    }

    fn simulate(
        watch: &mut ServerWatch,
        threads: usize,
        is_hung: impl Fn(&ReadJob) -> bool,
        latency: Duration,
    ) -> Simulated {
        let mut running: Vec<(Duration, u64, Arc<ReadJob>)> = Vec::new();
        let mut hung: Vec<u64> = Vec::new();
        let mut simulated = Simulated { ended: BTreeSet::new(), most_hung: 0, most_others: 0 };
        for step in 0..40_000u32 {
            let now = step * MS;
            let (done, rest): (Vec<_>, Vec<_>) = running.into_iter().partition(|(until, ..)| *until <= now);
            running = rest;
            for (_, number, job) in done {
                job.progress().begin(ReadStep::Checking, now);
                watch.end(number, now);
                simulated.ended.insert(id(&job));
            }
            while running.len() + hung.len() < threads
                && let Some((number, job)) = watch.next(now)
            {
                match is_hung(&job) {
                    true => hung.push(number),
                    false => running.push((now + latency, number, job)),
                }
            }
            simulated.most_hung = simulated.most_hung.max(hung.len());
            simulated.most_others = simulated.most_others.max(running.len());
        }
        simulated
    }

    #[test]
    // semantics: HPC-2
    fn hung_server_takes_four_threads_and_others_flow() {
        let mut watch = watch(32);
        (0..1600).for_each(|id| watch.push(job(id, id, Some((id % 16) as u32))));
        let of_three = |job: &ReadJob| job.request().server == Some(StorageServer::Data(3));
        let seen = simulate(&mut watch, 32, of_three, 5 * MS);
        assert_eq!((seen.ended.len(), seen.most_hung), (1500, 4));
        assert_eq!(watch.held.values().map(BTreeMap::len).sum::<usize>(), 96);
    }

    #[test]
    // semantics: HPC-2
    fn hang_in_the_middle_takes_what_was_in_flight() {
        let mut watch = watch(32);
        (0..6400).for_each(|id| watch.push(job(id, id, Some((id % 16) as u32))));
        let of_three = |job: &ReadJob| job.request().server == Some(StorageServer::Data(3)) && id(job) > 3200;
        let seen = simulate(&mut watch, 32, of_three, 5 * MS);
        assert_eq!(seen.ended.len(), 6000 + 200);
        assert!(seen.most_hung <= 10, "{}", seen.most_hung);
    }

    /// With sixteen late reads, a server between two reads was never read again.
    #[test]
    // semantics: HPC-2
    fn four_hung_servers_leave_half_of_the_threads_to_others() {
        let mut watch = watch(32);
        (0..1600).for_each(|id| watch.push(job(id, id, Some((id % 16) as u32))));
        let is_hung = |job: &ReadJob| id(job).is_multiple_of(4) && id(job) > 160;
        let seen = simulate(&mut watch, 32, is_hung, 5 * MS);
        assert_eq!(seen.ended.len(), 1200 + 41);
        assert!((4..=24).contains(&seen.most_hung), "{}", seen.most_hung);
    }

    #[test]
    fn server_that_answers_has_no_bound() {
        let mut watch = watch(32);
        (0..1000).for_each(|id| watch.push(job(id, id, Some(0))));
        let seen = simulate(&mut watch, 32, |_| false, 5 * MS);
        assert_eq!((seen.ended.len(), seen.most_others), (1000, 32));
    }

    #[test]
    fn slow_server_is_not_bounded() {
        let mut watch = watch(32);
        (0..1000).for_each(|id| watch.push(job(id, id, Some(0))));
        let seen = simulate(&mut watch, 32, |_| false, 900 * MS);
        assert_eq!((seen.ended.len(), seen.most_others), (1000, 32));
    }

    #[test]
    // semantics: HPC-2
    fn silent_files_take_half_of_the_threads() {
        let mut watch = watch(32);
        // Whole files without a layout: each is a server to itself.
        (0..400).for_each(|id| watch.push(job(id, id, None)));
        let seen = simulate(&mut watch, 32, |job| id(job).is_multiple_of(8), 100 * MS);
        // Sixteen are late. Reads in flight when the last of them became late may be as well.
        assert!((16..=24).contains(&seen.most_hung), "{}", seen.most_hung);
        assert!(watch.servers.len() <= seen.most_hung, "{}", watch.servers.len());
    }

    #[test]
    fn held_reads_are_queued_in_the_order_of_need() {
        let mut watch = watch(8);
        (0..8).for_each(|id| watch.push(job(id, 100 - id, Some(1))));
        let started: Vec<_> = std::iter::from_fn(|| watch.next(MS)).collect();
        assert_eq!(started.iter().map(|(_, job)| id(job)).collect::<Vec<_>>(), [7, 6, 5, 4]);
        assert_eq!((watch.len(), watch.held.values().map(BTreeMap::len).sum::<usize>()), (0, 4));
        started[0].1.progress().begin(ReadStep::Checking, 3 * MS);
        watch.end(started[0].0, 3 * MS);
        assert_eq!(watch.next(4 * MS).map(|(_, job)| id(&job)), Some(3));
    }

    #[test]
    // semantics: HPC-1
    fn silent_server_is_reported_and_its_reads_expire() {
        let mut watch = watch(8);
        (0..6).for_each(|id| watch.push(job(id, id, Some(7))));
        let started: Vec<_> = std::iter::from_fn(|| watch.next(MS)).collect();
        started[0].1.progress().begin(ReadStep::Reading, 2 * MS);
        assert!(check_each_second(&mut watch, 0..30).warnings.is_empty());
        let report = watch.check(Duration::from_secs(31));
        let [warning] = &report.warnings[..] else { panic!("{report:?}") };
        assert!(warning.starts_with("no answer from OST 7 for 30 s while opening file-"), "{warning}");
        assert!(warning.contains("4 of its reads wait and 2 more are held back"), "{warning}");
        assert!(check_each_second(&mut watch, 32..331).warnings.is_empty(), "not again so soon");
        assert_eq!(watch.check(Duration::from_secs(331)).warnings.len(), 1);
        let expired = check_each_second(&mut watch, 332..1202).expired;
        let mut ids: Vec<_> = expired.iter().map(|(job, _)| id(job)).collect();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
        let text = expired[0].1.to_string();
        assert!(text.contains("no answer: OST 7 was silent for 12") && text.contains("patience"), "{text}");
        assert!(!expired[0].1.is_retryable());
        assert!(check_each_second(&mut watch, 1202..1400).expired.is_empty(), "once");
        // The kernel releases a thread.
        started[0].1.progress().begin(ReadStep::Checking, Duration::from_secs(1400));
        let recovered = watch.end(started[0].0, Duration::from_secs(1400));
        assert_eq!(recovered.as_deref(), Some("OST 7 answers again, after 1399 s"));
        assert!(watch.check(Duration::from_secs(1401)).warnings.is_empty(), "not again so soon");
    }

    /// A job that its scheduler suspended for an hour lost its reads in flight when it continued.
    #[test]
    // semantics: HPC-1
    fn suspended_process_counts_silence_from_its_return() {
        let mut watch = watch(8);
        (0..6).for_each(|id| watch.push(job(id, id, Some(7))));
        let _started: Vec<_> = std::iter::from_fn(|| watch.next(MS)).collect();
        assert!(check_each_second(&mut watch, 0..20).warnings.is_empty());
        let report = check_each_second(&mut watch, 3600..3629);
        assert!(report.warnings.is_empty() && report.expired.is_empty(), "{report:?}");
        let report = check_each_second(&mut watch, 3629..4799);
        assert!(report.warnings[0].starts_with("no answer from OST 7 for 30 s"), "{report:?}");
        assert!(report.expired.is_empty(), "{report:?}");
        assert_eq!(check_each_second(&mut watch, 4799..4801).expired.len(), 6, "running and held back");
    }

    #[derive(Clone, Debug)]
    enum Event {
        Push { due: u64, server: Option<u32> },
        Next,
        End(usize),
        Drop(usize),
        Wait(u32),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            4 => (0u64..50, proptest::option::of(0u32..4))
                .prop_map(|(due, server)| Event::Push { due, server }),
            4 => Just(Event::Next),
            3 => any::<usize>().prop_map(Event::End),
            1 => any::<usize>().prop_map(Event::Drop),
            2 => (0u32..3000).prop_map(Event::Wait),
        ];
        proptest::collection::vec(event, 0..300)
    }

    proptest! {
        /// Every read is started, held back, queued or expired, exactly once, and silent reads are
        /// bounded.
        #[test]
        // semantics: HPC-2
        fn watch_loses_and_repeats_no_read(events in events(), threads in 1usize..16) {
            let mut watch = watch(threads);
            let (mut now, mut pushed, mut dropped) = (Duration::ZERO, 0u64, BTreeSet::new());
            let mut jobs: Vec<Arc<ReadJob>> = Vec::new();
            let (mut running, mut seen) = (Vec::<(u64, Arc<ReadJob>)>::new(), BTreeSet::new());
            for event in events {
                match event {
                    Event::Push { due, server } => {
                        jobs.push(job(pushed, due, server));
                        watch.push(Arc::clone(&jobs[pushed as usize]));
                        pushed += 1;
                    }
                    Event::Next if running.len() < threads => {
                        if let Some((number, job)) = watch.next(now) {
                            prop_assert!(seen.insert(id(&job)), "started twice");
                            prop_assert!(!dropped.contains(&id(&job)), "a dropped read started");
                            running.push((number, job));
                        }
                        let key = |(_, job): &(u64, Arc<ReadJob>)| ServerKey::of(job.request());
                        let keys: Vec<_> = running.iter().map(key).collect();
                        let of = |key: &ServerKey| keys.iter().filter(|of| *of == key).count();
                        for (key, server) in &watch.servers {
                            prop_assert_eq!(server.in_flight, of(key));
                            prop_assert!(server.unanswered <= server.in_flight);
                            prop_assert!(server.usual.is_some() || server.unanswered <= MAX_UNANSWERED);
                        }
                    }
                    Event::End(which) if !running.is_empty() => {
                        let (number, job) = running.swap_remove(which % running.len());
                        job.progress().begin(ReadStep::Checking, now);
                        watch.end(number, now);
                    }
                    Event::Drop(which) if !jobs.is_empty() => {
                        let job = &jobs[which % jobs.len()];
                        if !seen.contains(&id(job)) {
                            job.cancel();
                            dropped.insert(id(job));
                        }
                    }
                    Event::Wait(milliseconds) => now += milliseconds * MS,
                    _ => {}
                }
            }
            let left: Vec<u64> = watch.take_all().iter().map(|job| id(job)).collect();
            for id in left {
                prop_assert!(seen.insert(id), "queued and started");
            }
            prop_assert!((0..pushed).all(|id| seen.contains(&id) || dropped.contains(&id)), "lost");
        }
    }
}
