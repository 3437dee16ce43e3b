//! The status in Prometheus's text format 0.0.4.
//!
//! # Decisions and price
//!
//! * *Counters and present values, no rates*: Prometheus computes rates over any time. Bytes and
//!   seconds are the units.
//! * *Labels identify a series.* A job is its program and process, a dataset its location. The
//!   label `job` is Prometheus's own. Loaders of one process, and datasets of one location, are one
//!   series: counts are added, and of shares the largest is printed. The price: each new job is a
//!   new series.
//! * *Written here*, without a registry: the values exist already, so there is nothing to register.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::feed::ShownStatus;
use crate::control::NodeStatus;

/// The media type of [`text`].
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The labels of a series, names and values.
type Labels = Vec<(&'static str, String)>;

/// How series with the same labels become one.
#[derive(Clone, Copy)]
enum Merge {
    Sum,
    Max,
}
use Merge::{Max, Sum};
use foreread_host::status::{AgentStatus, DatasetStatus, DiskStatus, JobStatus, OriginStatus};

/// The type of a metric.
#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}
use Kind::{Counter, Gauge};

/// All metrics of a status.
pub(super) fn text(shown: &dyn ShownStatus) -> String {
    let mut metrics = MetricsText { prefix: shown.prefix(), text: String::new() };
    let status = shown.agent();
    agent(&mut metrics, status);
    nodes(&mut metrics, shown.nodes(), &status.stores);
    disks(&mut metrics, status.disk.as_ref());
    jobs(&mut metrics, &status.jobs);
    datasets(&mut metrics, &status.datasets);
    stores(&mut metrics, &status.stores);
    let policy = status.policy.iter().map(|it| {
        let texts = [("key", &it.key), ("value", &it.value), ("source", &it.source)];
        (texts.map(|(name, text)| (name, text.clone())).to_vec(), 1.0)
    });
    metrics.family("policy_info", Gauge, "A value of the policy in force, and its source", Max, policy);
    metrics.text
}

fn agent(metrics: &mut MetricsText, status: &AgentStatus) {
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    metrics.family("info", Gauge, "The program's version", Max, [(version, 1.0)]);
    let mut gauge = |name, help, value: f64| metrics.family(name, Gauge, help, Sum, [(Vec::new(), value)]);
    gauge("uptime_seconds", "Time since the start", status.uptime_seconds);
    gauge("memory_limit_bytes", "Memory that samples may take", status.memory as f64);
    gauge("held_bytes", "Memory that samples take", status.held_bytes as f64);
    gauge("held_samples", "Samples in memory", status.samples as f64);
    gauge("reading_samples", "Samples that are being read, or wait for that", status.reading as f64);
    gauge(
        "jobs",
        "Connected jobs, and those of other nodes whose samples are kept here",
        status.jobs.len() as f64,
    );
    let counts = [status.hits, status.disk_reads, status.joined, status.node_reads, status.reads];
    let outcomes = outcomes(counts);
    let help = "Requests of all jobs: hit (memory), disk (the agent's disks), joined (another job's read), \
                node (another node of the cluster) or read (storage)";
    metrics.family("requests_total", Counter, help, Sum, outcomes.map(|(label, value)| (vec![label], value)));
    let mut counter = |name, help, value: u64| {
        metrics.family(name, Counter, help, Sum, [(Vec::new(), value as f64)]);
    };
    counter("read_bytes_total", "Bytes read from storage", status.read_bytes);
    counter("read_failures_total", "Reads from storage that failed", status.failures);
}

fn disks(metrics: &mut MetricsText, disk: Option<&DiskStatus>) {
    let mut family = |name, kind, help, value: fn(&DiskStatus) -> u64| {
        metrics.family(name, kind, help, Sum, disk.map(|it| (Vec::new(), value(it) as f64)));
    };
    family("disk_limit_bytes", Gauge, "Space that samples may take on disks", |it| it.capacity);
    family("disk_held_bytes", Gauge, "Space that samples take on disks", |it| it.held_bytes);
    family("disk_written_bytes_total", Counter, "Bytes given to the disks", |it| it.written_bytes);
    let help = "Samples that were not written, because of the budget of writes per day";
    family("disk_refused_samples_total", Counter, help, |it| it.refused);
    family("disk_refused_bytes_total", Counter, "Bytes of samples that were not written", |it| {
        it.refused_bytes
    });
}

/// The nodes of a cluster.
fn nodes(metrics: &mut MetricsText, nodes: &[NodeStatus], stores: &[OriginStatus]) {
    let labels = |node: &NodeStatus| vec![("node", node.name.clone()), ("user", node.user.clone())];
    let mut family = |name, help, value: fn(&NodeStatus) -> f64| {
        metrics.family(name, Gauge, help, Sum, nodes.iter().map(|node| (labels(node), value(node))));
    };
    family("node_connected", "1 if a node's agent is heard, 0 if not", |node| {
        f64::from(u8::from(node.is_connected))
    });
    family("node_draining", "1 if a node takes no new jobs", |node| f64::from(u8::from(node.is_draining)));
    family("node_jobs", "Connected jobs of a node", |node| node.jobs as f64);
    family("node_memory_limit_bytes", "Memory that samples may take on a node", |node| node.memory as f64);
    family("node_held_bytes", "Memory that samples take on a node", |node| node.held_bytes as f64);
    let leases = nodes.iter().flat_map(|node| {
        let of = move |lease: &crate::control::NodeLease| {
            let labels = [labels(node), vec![("store", lease.store.clone())]].concat();
            (labels, lease.bytes_per_second as f64)
        };
        node.leases.iter().map(of)
    });
    let help = "What a node may read of a store in bytes per second, or what is reserved for it";
    metrics.family("node_lease_bytes_per_second", Gauge, help, Sum, leases);
    let limited = stores.iter().filter(|store| store.limit.is_some() && !nodes.is_empty());
    let reserved = limited.map(|store| (vec![("store", store.name.clone())], store.reserved as f64));
    let help = "Part of a store's limit that is reserved for agents that are not heard";
    metrics.family("store_reserved_bytes_per_second", Gauge, help, Sum, reserved);
}

/// The values of `requests_total`, by the label `outcome`.
fn outcomes(counts: [u64; 5]) -> impl Iterator<Item = ((&'static str, String), f64)> {
    let names = ["hit", "disk", "joined", "node", "read"];
    names.into_iter().zip(counts).map(|(outcome, value)| (("outcome", outcome.to_owned()), value as f64))
}

fn jobs(metrics: &mut MetricsText, jobs: &[JobStatus]) {
    let labels = |job: &JobStatus| {
        let own = vec![("program", job.name.clone()), ("process", job.process.to_string())];
        if job.node.is_empty() { own } else { [own, vec![("node", job.node.clone())]].concat() }
    };
    let requests = jobs.iter().flat_map(|job| {
        outcomes([job.hits, job.disk_reads, job.joined, job.node_reads, job.reads])
            .map(|(outcome, value)| ([labels(job), vec![outcome]].concat(), value))
    });
    let help = "Requests of a job: hit (memory), disk (the agent's disks), joined (another's read), node \
                (another node of the cluster) or read (storage)";
    metrics.family("job_requests_total", Counter, help, Sum, requests);
    let mut family = |name, kind, help, merge, value: fn(&JobStatus) -> Option<f64>| {
        let series = jobs.iter().filter_map(|job| Some((labels(job), value(job)?)));
        metrics.family(name, kind, help, merge, series);
    };
    let help = "Bytes read from storage for a job";
    family("job_read_bytes_total", Counter, help, Sum, |job| Some(job.read_bytes as f64));
    let help = "Reads from storage for a job that failed";
    family("job_read_failures_total", Counter, help, Sum, |job| Some(job.failures as f64));
    let help = "Samples that a job has requested and not received";
    family("job_waiting_samples", Gauge, help, Sum, |job| Some(job.waiting as f64));
    let help = "Part of the last seconds in which a job's trainer waited for samples, 0 to 1";
    family("job_stalled_ratio", Gauge, help, Max, |job| Some(job.stalled_share));
    let help = "Part of a job's requests that should take no read of their own, 0 to 1";
    family("job_expected_hit_ratio", Gauge, help, Max, |job| job.expected_hit_share);
    let help = "Memory for samples that a job reads ahead";
    family("job_look_ahead_bytes", Gauge, help, Sum, |job| Some(job.look_ahead as f64));
    let help = "Share of a store's time that a job has, relative to other jobs";
    family("job_weight", Gauge, help, Max, |job| Some(f64::from(job.weight)));
    let waits = jobs
        .iter()
        .filter_map(|job| Some(([labels(job), vec![("reason", job.waits_for.clone()?)]].concat(), 1.0)));
    metrics.family("job_waits_info", Gauge, "What a job waits for, if it waits", Max, waits);
}

fn datasets(metrics: &mut MetricsText, datasets: &[DatasetStatus]) {
    let series = |value: fn(&DatasetStatus) -> u64| {
        datasets.iter().map(move |it| (vec![("dataset", it.url.clone())], value(it) as f64))
    };
    // Several versions of the data at one location are not one larger dataset.
    let help = "Bytes of a dataset's samples, in its largest version";
    metrics.family("dataset_bytes", Gauge, help, Max, series(|it| it.bytes));
    let help = "Samples of a dataset, in its largest version";
    metrics.family("dataset_samples", Gauge, help, Max, series(|it| it.samples));
    let mut family = |name, kind, help, value| metrics.family(name, kind, help, Sum, series(value));
    family("dataset_held_bytes", Gauge, "Memory that a dataset's samples take", |it| it.held_bytes);
    family("dataset_held_samples", Gauge, "Samples of a dataset in memory", |it| it.held_samples);
    family("dataset_disk_bytes", Gauge, "Space that a dataset's samples take on disks", |it| it.disk_bytes);
    family("dataset_disk_samples", Gauge, "Samples of a dataset on disks", |it| it.disk_samples);
    family("dataset_jobs", Gauge, "Connected jobs that read a dataset", |it| it.jobs);
    let help = "Reads from storage in bytes per second that a gigabyte more of memory would save";
    family("dataset_saved_by_gigabyte_bytes_per_second", Gauge, help, |it| it.saved_by_gb as u64);
    let help = "Requests for a dataset that took no read of their own";
    family("dataset_hits_total", Counter, help, |it| it.hits);
    family("dataset_reads_total", Counter, "Samples of a dataset read from storage", |it| it.reads);
    family("dataset_read_bytes_total", Counter, "Bytes of a dataset read from storage", |it| it.read_bytes);
}

fn stores(metrics: &mut MetricsText, stores: &[OriginStatus]) {
    let mut family = |name, kind, help, value: fn(&OriginStatus) -> Option<u64>| {
        let labels = |it: &OriginStatus| vec![("store", it.name.clone())];
        let series = stores.iter().filter_map(|it| Some((labels(it), value(it)? as f64)));
        metrics.family(name, kind, help, Sum, series);
    };
    family("store_read_bytes_total", Counter, "Bytes read from a store", |it| Some(it.read_bytes));
    family("store_reading", Gauge, "Reads of a store under way", |it| Some(it.reading));
    family("store_queued", Gauge, "Reads of a store that wait for their turn", |it| Some(it.queued));
    let help = "Limit of a store in bytes per second, if it has one";
    family("store_limit_bytes_per_second", Gauge, help, |it| it.limit);
    family("store_parallelism_limit", Gauge, "Limit of reads at once, if a store has one", |it| {
        it.parallelism
    });
}

/// A text that grows by one metric at a time.
struct MetricsText {
    prefix: &'static str,
    text: String,
}

impl MetricsText {
    /// A metric with all its series. Without series it is left out.
    fn family(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        merge: Merge,
        series: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        let mut merged = BTreeMap::<Labels, f64>::new();
        for (labels, value) in series {
            let merge = |found: &mut f64| match merge {
                Sum => *found += value,
                Max => *found = found.max(value),
            };
            merged.entry(labels).and_modify(merge).or_insert(value);
        }
        if merged.is_empty() {
            return;
        }
        let kind = match kind {
            Counter => "counter",
            Gauge => "gauge",
        };
        let (out, prefix) = (&mut self.text, self.prefix);
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# HELP {prefix}_{name} {help}.\n# TYPE {prefix}_{name} {kind}");
        for (labels, value) in merged {
            let _ = write!(out, "{prefix}_{name}");
            for (at, (label, text)) in labels.iter().enumerate() {
                let _ = write!(out, "{}{label}=\"{}\"", if at == 0 { '{' } else { ',' }, escaped(text));
            }
            let _ = writeln!(out, "{} {value}", if labels.is_empty() { "" } else { "}" });
        }
    }
}

/// A label's value: backslashes, quotes and line feeds are escaped.
fn escaped(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests;
