//! The last ten minutes of an agent, one point per second.
//!
//! Decision: a point is kept as the JSON that clients get. A page that is opened shows ten minutes
//! at once, and the agent serialises each point once. Points have at most [`MAX_JOBS`] jobs and
//! [`MAX_STORES`] stores with short names, so memory is bounded: about 100 bytes per job, store and
//! second. The price is that jobs beyond these are missing in the plots. The tables have all.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foreread_host::status::AgentStatus;
use serde::Serialize;

use super::feed::json;

/// The points that are kept: ten minutes.
pub(super) const MAX_POINTS: usize = 600;

/// The most jobs and stores of a point.
const MAX_JOBS: usize = 32;
const MAX_STORES: usize = 16;

/// The most bytes of a name in a point.
const MAX_NAME: usize = 80;

/// The seconds over which shares and rates are averaged, as in the status.
const AVERAGED: usize = 5;

/// The last points.
#[derive(Debug, Default)]
pub(super) struct StatusHistory {
    /// Each as JSON.
    points: VecDeque<Arc<str>>,
    /// The counts of the last seconds, for their differences.
    counts: VecDeque<CountsAt>,
}

/// The counts of a time.
#[derive(Clone, Copy, Debug)]
struct CountsAt {
    time: Instant,
    hits: u64,
    reads: u64,
    read_bytes: u64,
}

/// The values of one second in the plots.
#[derive(Debug, Serialize)]
struct HistoryPoint<'a> {
    /// Seconds since 1970.
    time: f64,
    held_bytes: u64,
    /// The part of the requests that took no read of storage. `None` without requests.
    hit_share: Option<f64>,
    /// Read from storage.
    bytes_per_second: f64,
    stores: Vec<StorePoint<'a>>,
    jobs: Vec<JobPoint<'a>>,
}

#[derive(Debug, Serialize)]
struct StorePoint<'a> {
    name: &'a str,
    bytes_per_second: f64,
}

#[derive(Debug, Serialize)]
struct JobPoint<'a> {
    name: &'a str,
    /// Of a cluster.
    #[serde(skip_serializing_if = "str::is_empty")]
    node: &'a str,
    process: u32,
    stalled_share: f64,
    samples_per_second: f64,
}

impl StatusHistory {
    /// Adds the point of a status, and returns it as JSON. `time` is since 1970.
    pub(super) fn add(&mut self, status: &AgentStatus, time: Duration, now: Instant) -> Arc<str> {
        let newest = CountsAt {
            time: now,
            hits: status.hits + status.disk_reads + status.joined,
            reads: status.reads,
            read_bytes: status.read_bytes,
        };
        let oldest = self.counts.front().copied().unwrap_or(newest);
        push(&mut self.counts, newest, AVERAGED);
        let hits = newest.hits.saturating_sub(oldest.hits);
        let all = hits + newest.reads.saturating_sub(oldest.reads);
        let seconds = newest.time.saturating_duration_since(oldest.time).as_secs_f64();
        let bytes = newest.read_bytes.saturating_sub(oldest.read_bytes);
        let stores = status.stores.iter().take(MAX_STORES);
        let jobs = status.jobs.iter().take(MAX_JOBS);
        let point = HistoryPoint {
            time: (time.as_secs_f64() * 1e3).round() / 1e3,
            held_bytes: status.held_bytes,
            hit_share: (all > 0).then(|| hits as f64 / all as f64),
            bytes_per_second: if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 },
            stores: stores
                .map(|it| StorePoint { name: short(&it.name), bytes_per_second: it.bytes_per_second })
                .collect(),
            jobs: jobs
                .map(|it| JobPoint {
                    name: short(&it.name),
                    node: short(&it.node),
                    process: it.process,
                    stalled_share: it.stalled_share,
                    samples_per_second: it.samples_per_second,
                })
                .collect(),
        };
        let point: Arc<str> = json(&point).into();
        push(&mut self.points, Arc::clone(&point), MAX_POINTS);
        point
    }

    /// `{"points": [...]}`, the oldest point first.
    pub(super) fn to_json(&self) -> String {
        let bytes = self.points.iter().map(|point| point.len() + 1).sum::<usize>();
        let mut text = String::with_capacity(bytes + 16);
        text.push_str("{\"points\":[");
        for (at, point) in self.points.iter().enumerate() {
            text.push_str(if at > 0 { "," } else { "" });
            text.push_str(point);
        }
        text.push_str("]}");
        text
    }
}

/// Adds a value, and drops the oldest one beyond `most`.
fn push<T>(values: &mut VecDeque<T>, value: T, most: usize) {
    if values.len() >= most {
        values.pop_front();
    }
    values.push_back(value);
}

/// The end of a name, where programs and prefixes differ.
fn short(name: &str) -> &str {
    let cut = (name.len().saturating_sub(MAX_NAME)..).find(|&at| name.is_char_boundary(at));
    &name[cut.unwrap_or(0)..]
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use foreread_host::status::{JobStatus, OriginStatus};

    fn add(history: &mut StatusHistory, status: &AgentStatus, second: u64, begun: Instant) -> Value {
        let seconds = Duration::from_secs(second);
        serde_json::from_str(&history.add(status, seconds, begun + seconds)).unwrap()
    }

    #[test]
    // semantics: AGENT-22
    fn history_is_bounded_in_points_jobs_and_names() {
        let (mut history, begun) = (StatusHistory::default(), Instant::now());
        let name = format!("{}ü{}", "\u{1}x".repeat(5000), "y".repeat(MAX_NAME - 1));
        let job = JobStatus { name: name.clone(), ..JobStatus::default() };
        let store = OriginStatus { name, ..OriginStatus::default() };
        let status =
            AgentStatus { jobs: vec![job; 1000], stores: vec![store; 1000], ..AgentStatus::default() };
        for second in 0..2 * MAX_POINTS as u64 {
            add(&mut history, &status, second, begun);
        }
        let text = history.to_json();
        assert!(text.len() < MAX_POINTS * (MAX_JOBS + MAX_STORES) * 250, "{}", text.len());
        let parsed: Value = serde_json::from_str(&text).unwrap();
        let points = parsed["points"].as_array().unwrap();
        assert_eq!(points.len(), MAX_POINTS);
        assert_eq!((&points[0]["time"], &points[MAX_POINTS - 1]["time"]), (&600.0.into(), &1199.0.into()));
        assert_eq!(points[0]["jobs"].as_array().unwrap().len(), MAX_JOBS);
        assert_eq!(points[0]["stores"].as_array().unwrap().len(), MAX_STORES);
        assert_eq!(points[0]["jobs"][0]["name"], "y".repeat(MAX_NAME - 1));
    }

    #[test]
    fn shares_and_rates_are_those_of_the_last_seconds() {
        let (mut history, begun) = (StatusHistory::default(), Instant::now());
        let mut status = AgentStatus { hits: 1000, reads: 1000, read_bytes: 5000, ..AgentStatus::default() };
        let first = add(&mut history, &status, 0, begun);
        assert_eq!((&first["hit_share"], &first["bytes_per_second"]), (&Value::Null, &0.0.into()));
        // Each second: 3 of 4 requests took no read.
        let mut last = Value::Null;
        for second in 1..20 {
            status = AgentStatus {
                hits: status.hits + 2,
                joined: status.joined + 1,
                reads: status.reads + 1,
                read_bytes: status.read_bytes + 700,
                ..status
            };
            last = add(&mut history, &status, second, begun);
            assert_eq!((&last["hit_share"], &last["bytes_per_second"]), (&0.75.into(), &700.0.into()));
        }
        for second in 20..26 {
            last = add(&mut history, &status, second, begun);
        }
        assert_eq!((&last["hit_share"], &last["bytes_per_second"]), (&Value::Null, &0.0.into()));
        assert_eq!(StatusHistory::default().to_json(), "{\"points\":[]}");
    }
}
