//! The metrics, parsed back by a strict parser, and the dashboards that show them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::*;
use crate::PolicyValue;
use crate::control::{ControlStatus, NodeLease};

/// Metrics that the dashboard of an agent leaves out: they add nothing to the metrics that it
/// shows.
const NOT_SHOWN: [&str; 10] = [
    "dataset_disk_samples",
    "dataset_held_samples",
    "dataset_jobs",
    "dataset_samples",
    "dataset_saved_by_gigabyte_bytes_per_second",
    "disk_refused_samples_total",
    "info",
    "job_look_ahead_bytes",
    "job_read_failures_total",
    "job_weight",
];

/// Metrics that the dashboard of a cluster leaves out. A cluster has no limit of reads at once.
const NOT_SHOWN_OF_CLUSTER: [&str; 12] = [
    "dataset_disk_samples",
    "dataset_held_samples",
    "dataset_jobs",
    "dataset_samples",
    "dataset_saved_by_gigabyte_bytes_per_second",
    "disk_refused_samples_total",
    "held_samples",
    "info",
    "job_look_ahead_bytes",
    "job_read_failures_total",
    "job_weight",
    "store_parallelism_limit",
];

const DASHBOARD: &str = include_str!("../../../../../packaging/grafana/foreread-agent.json");
const CLUSTER_DASHBOARD: &str = include_str!("../../../../../packaging/grafana/foreread-control.json");

/// A metric of the text.
#[derive(Debug, Default)]
struct Family {
    help: String,
    kind: String,
    series: BTreeMap<Vec<(String, String)>, f64>,
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

/// Labels up to the closing brace, and the text after it.
fn labels(mut text: &str) -> (Vec<(String, String)>, &str) {
    let mut labels = Vec::new();
    loop {
        let (name, rest) = text.split_once("=\"").unwrap();
        assert!(is_name(name), "{name}");
        let (mut value, mut chars) = (String::new(), rest.char_indices());
        let end = loop {
            match chars.next().unwrap() {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().unwrap().1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => panic!("escape {c}"),
                }),
                (_, c) => value.push(c),
            }
        };
        labels.push((name.to_owned(), value));
        let rest = &rest[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => text = more,
            None => return (labels, rest.strip_prefix('}').unwrap()),
        }
    }
}

/// Parses the text format: each metric once, with help and type before its series.
fn parse(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'));
    let mut families = BTreeMap::<String, Family>::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let (name, help) = line.strip_prefix("# HELP ").unwrap().split_once(' ').unwrap();
        let kind = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
        let kind = kind.strip_prefix(name).unwrap().strip_prefix(' ').unwrap();
        assert!(is_name(name) && name.starts_with("foreread_"), "{name}");
        let mut family = Family { help: help.to_owned(), kind: kind.to_owned(), ..Family::default() };
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let rest = line.strip_prefix(name).unwrap();
            let (labels, value) = match rest.strip_prefix('{') {
                Some(text) => labels(text),
                None => (Vec::new(), rest),
            };
            let value = value.strip_prefix(' ').unwrap().parse().unwrap();
            assert_eq!(family.series.insert(labels, value), None, "a series occurs twice: {line}");
        }
        assert!(!family.series.is_empty(), "{name} has no series");
        assert!(families.insert(name.to_owned(), family).is_none(), "{name} occurs twice");
    }
    families
}

/// A status in which each field has a value of its own.
fn full() -> AgentStatus {
    let job = JobStatus {
        name: "train.py".to_owned(),
        process: 41,
        look_ahead: 101,
        weight: 3,
        hits: 102,
        disk_reads: 108,
        node_reads: 109,
        joined: 103,
        reads: 104,
        read_bytes: 105,
        failures: 106,
        waiting: 107,
        samples_per_second: 9.5,
        expected_hit_share: Some(0.5),
        stalled_share: 0.25,
        waits_for: Some("other jobs".to_owned()),
        ..JobStatus::default()
    };
    let dataset = DatasetStatus {
        url: "s3://bucket/train".to_owned(),
        samples: 201,
        bytes: 202,
        held_samples: 203,
        held_bytes: 204,
        disk_samples: 209,
        disk_bytes: 210,
        jobs: 205,
        hits: 206,
        reads: 207,
        read_bytes: 208,
        saved_by_gb: 211.0,
    };
    let store = OriginStatus {
        name: "s3://bucket".to_owned(),
        limit: Some(301),
        parallelism: Some(302),
        reading: 303,
        queued: 304,
        read_bytes: 305,
        bytes_per_second: 306.5,
        reserved: 307,
    };
    let policy =
        PolicyValue { key: "memory".to_owned(), value: "1 GiB".to_owned(), source: "argument".to_owned() };
    AgentStatus {
        uptime_seconds: 1.5,
        memory: 1,
        held_bytes: 2,
        samples: 3,
        reading: 4,
        disk: Some(DiskStatus {
            capacity: 401,
            held_bytes: 402,
            written_bytes: 403,
            refused: 404,
            refused_bytes: 405,
            problem: None,
        }),
        hits: 5,
        disk_reads: 8,
        node_reads: 10,
        joined: 6,
        reads: 7,
        read_bytes: u64::from(u32::MAX) * 1000,
        failures: 9,
        jobs: vec![job],
        datasets: vec![dataset],
        stores: vec![store],
        policy: vec![policy],
        ..AgentStatus::default()
    }
}

/// A cluster of one node, which has the one job.
fn full_cluster() -> ControlStatus {
    let mut cluster = full();
    cluster.jobs[0].node = "n1".to_owned();
    let lease = NodeLease { store: "s3://bucket".to_owned(), bytes_per_second: 77 };
    let node = NodeStatus {
        name: "n1".to_owned(),
        user: "alice".to_owned(),
        is_connected: true,
        memory: 55,
        leases: vec![lease],
        ..NodeStatus::default()
    };
    ControlStatus { cluster, nodes: vec![node], ..ControlStatus::default() }
}

/// The value of a series.
fn value(families: &BTreeMap<String, Family>, name: &str, labels: &[(&str, &str)]) -> f64 {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let family = &families[&format!("foreread_agent_{name}")];
    *family.series.get::<Vec<_>>(&labels).unwrap_or_else(|| panic!("{name} has {:?}", family.series))
}

#[test]
fn each_value_is_printed_with_help_type_and_labels() {
    let families = parse(&text(&full()));
    for (name, family) in &families {
        assert!(family.help.len() > 10 && family.help.ends_with('.'), "{name}: {}", family.help);
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        assert_eq!(family.kind, kind, "{name}");
    }
    let job = [("program", "train.py"), ("process", "41")];
    let dataset = [("dataset", "s3://bucket/train")];
    let store = [("store", "s3://bucket")];
    type Expected<'a> = (&'a str, &'a [(&'a str, &'a str)], f64);
    let expected: &[Expected<'_>] = &[
        ("info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0),
        ("uptime_seconds", &[], 1.5),
        ("memory_limit_bytes", &[], 1.0),
        ("held_bytes", &[], 2.0),
        ("held_samples", &[], 3.0),
        ("reading_samples", &[], 4.0),
        ("jobs", &[], 1.0),
        ("requests_total", &[("outcome", "hit")], 5.0),
        ("requests_total", &[("outcome", "disk")], 8.0),
        ("requests_total", &[("outcome", "joined")], 6.0),
        ("requests_total", &[("outcome", "node")], 10.0),
        ("requests_total", &[("outcome", "read")], 7.0),
        ("read_bytes_total", &[], 4_294_967_295_000.0),
        ("read_failures_total", &[], 9.0),
        ("job_requests_total", &[job[0], job[1], ("outcome", "hit")], 102.0),
        ("job_requests_total", &[job[0], job[1], ("outcome", "disk")], 108.0),
        ("job_requests_total", &[job[0], job[1], ("outcome", "joined")], 103.0),
        ("job_requests_total", &[job[0], job[1], ("outcome", "node")], 109.0),
        ("job_requests_total", &[job[0], job[1], ("outcome", "read")], 104.0),
        ("job_read_bytes_total", &job, 105.0),
        ("job_read_failures_total", &job, 106.0),
        ("job_waiting_samples", &job, 107.0),
        ("job_stalled_ratio", &job, 0.25),
        ("job_expected_hit_ratio", &job, 0.5),
        ("job_look_ahead_bytes", &job, 101.0),
        ("job_weight", &job, 3.0),
        ("job_waits_info", &[job[0], job[1], ("reason", "other jobs")], 1.0),
        ("dataset_samples", &dataset, 201.0),
        ("dataset_bytes", &dataset, 202.0),
        ("dataset_held_samples", &dataset, 203.0),
        ("dataset_held_bytes", &dataset, 204.0),
        ("dataset_disk_samples", &dataset, 209.0),
        ("dataset_disk_bytes", &dataset, 210.0),
        ("disk_limit_bytes", &[], 401.0),
        ("disk_held_bytes", &[], 402.0),
        ("disk_written_bytes_total", &[], 403.0),
        ("disk_refused_samples_total", &[], 404.0),
        ("disk_refused_bytes_total", &[], 405.0),
        ("dataset_jobs", &dataset, 205.0),
        ("dataset_saved_by_gigabyte_bytes_per_second", &dataset, 211.0),
        ("dataset_hits_total", &dataset, 206.0),
        ("dataset_reads_total", &dataset, 207.0),
        ("dataset_read_bytes_total", &dataset, 208.0),
        ("store_limit_bytes_per_second", &store, 301.0),
        ("store_parallelism_limit", &store, 302.0),
        ("store_reading", &store, 303.0),
        ("store_queued", &store, 304.0),
        ("store_read_bytes_total", &store, 305.0),
        ("policy_info", &[("key", "memory"), ("value", "1 GiB"), ("source", "argument")], 1.0),
    ];
    for (name, labels, expected) in expected {
        assert_eq!(value(&families, name, labels), *expected, "{name} {labels:?}");
    }
    let series: usize = families.values().map(|family| family.series.len()).sum();
    assert_eq!(series, expected.len(), "a series is in no line of this test");
}

#[test]
fn label_values_are_escaped() {
    let name = "a\\b\"c\nd{}, e=\"f\" ü \\n";
    let job = JobStatus { name: name.to_owned(), process: 1, ..JobStatus::default() };
    let families = parse(&text(&AgentStatus { jobs: vec![job], ..AgentStatus::default() }));
    assert_eq!(value(&families, "job_weight", &[("program", name), ("process", "1")]), 0.0);
}

#[test]
fn loaders_of_one_process_are_one_series() {
    let mut status = full();
    status.jobs.push(JobStatus { hits: 1000, stalled_share: 0.75, ..status.jobs[0].clone() });
    status.jobs.push(JobStatus { process: 42, ..status.jobs[0].clone() });
    status.datasets.push(status.datasets[0].clone());
    status.stores.push(status.stores[0].clone());
    let families = parse(&text(&status));
    let job = [("program", "train.py"), ("process", "41")];
    assert_eq!(value(&families, "jobs", &[]), 3.0);
    assert_eq!(value(&families, "job_requests_total", &[job[0], job[1], ("outcome", "hit")]), 1102.0);
    assert_eq!(value(&families, "job_stalled_ratio", &job), 0.75);
    assert_eq!(value(&families, "dataset_bytes", &[("dataset", "s3://bucket/train")]), 202.0);
}

#[test]
fn empty_agent_has_its_own_metrics_only() {
    let families = parse(&text(&AgentStatus::default()));
    assert_eq!(value(&families, "jobs", &[]), 0.0);
    assert!(!families.keys().any(|name| ["dataset", "_job_", "disk"].iter().any(|part| name.contains(part))));
}

/// The metrics that a query names.
fn metrics_of(query: &str) -> BTreeSet<String> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("foreread_")).map(str::to_owned).collect()
}

/// The panels of a dashboard, with the panels in rows.
fn panels(value: &Value) -> Vec<&Value> {
    let here = value["panels"].as_array().into_iter().flatten();
    here.flat_map(|panel| std::iter::once(panel).chain(panels(panel))).collect()
}

#[test]
fn dashboard_of_an_agent_uses_only_metrics_that_exist() {
    check_dashboard(DASHBOARD, &full(), &NOT_SHOWN);
}

#[test]
fn dashboard_of_a_cluster_uses_only_metrics_that_exist() {
    check_dashboard(CLUSTER_DASHBOARD, &full_cluster(), &NOT_SHOWN_OF_CLUSTER);
}

/// Checks the panels and queries of a dashboard for a status that has all metrics.
fn check_dashboard(dashboard: &str, status: &dyn ShownStatus, not_shown: &[&str]) {
    let dashboard: Value = serde_json::from_str(dashboard).unwrap();
    let families = parse(&text(status));
    // Grafana replaces a dashboard that has the same identifier.
    assert_eq!(dashboard["uid"], status.prefix().replace('_', "-"));
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let source = variables.iter().find(|it| it["type"] == "datasource").unwrap();
    assert_eq!(source["query"], "prometheus");
    let reference = format!("${{{}}}", source["name"].as_str().unwrap());
    let panels = panels(&dashboard);
    let shown: Vec<_> = panels.iter().filter(|panel| panel["type"] != "row").collect();
    assert!(shown.len() >= 10);
    let (mut used, mut ids) = (BTreeSet::new(), BTreeSet::new());
    for panel in &panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "the id of {panel} occurs twice");
        assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()), "{panel} has no title");
        let place = &panel["gridPos"];
        assert!(place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap() <= 24, "{panel}");
    }
    for panel in shown {
        let title = &panel["title"];
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title} has no unit");
        assert!(
            panel["description"].as_str().is_some_and(|it| it.ends_with('.')),
            "{title} is not described"
        );
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title} has no query");
        for target in targets {
            assert_eq!(target["datasource"]["uid"], reference.as_str(), "{title}");
            let query = target["expr"].as_str().unwrap();
            let metrics = metrics_of(query);
            assert!(!metrics.is_empty(), "{title}: {query}");
            assert_eq!(query.matches('(').count(), query.matches(')').count(), "{title}: {query}");
            for metric in &metrics {
                assert!(families.contains_key(metric), "{title}: no metric {metric}");
                let is_rated = query.contains(&format!("rate({metric}"));
                assert_eq!(is_rated, metric.ends_with("_total"), "{title}: counters have rates, not {query}");
            }
            used.extend(metrics);
        }
    }
    for variable in variables.iter().filter(|it| it["type"] == "query") {
        let metrics = metrics_of(&variable["query"].to_string());
        assert!(
            !metrics.is_empty() && metrics.iter().all(|metric| families.contains_key(metric)),
            "{variable}"
        );
    }
    let prefix = format!("{}_", status.prefix());
    let unused = families.keys().filter(|name| !used.contains(*name));
    let unused: Vec<_> = unused.map(|name| name.strip_prefix(&prefix).unwrap()).collect();
    assert_eq!(unused, not_shown, "a metric is in no panel, or in this list and in a panel");
}

#[test]
// semantics: CONTROL-7
fn metrics_of_a_cluster_have_its_nodes() {
    let families = parse(&text(&full_cluster()));
    assert!(families.keys().all(|name| name.starts_with("foreread_control_")));
    let of = |name: &str, labels: &[(&str, &str)]| {
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        families[&format!("foreread_control_{name}")].series[&labels]
    };
    let node = [("node", "n1"), ("user", "alice")];
    assert_eq!((of("node_connected", &node), of("node_memory_limit_bytes", &node)), (1.0, 55.0));
    assert_eq!(of("node_lease_bytes_per_second", &[node[0], node[1], ("store", "s3://bucket")]), 77.0);
    assert_eq!(of("store_reserved_bytes_per_second", &[("store", "s3://bucket")]), 307.0);
    let job = [("program", "train.py"), ("process", "41"), ("node", "n1")];
    assert_eq!(of("job_read_bytes_total", &job), 105.0);
}
