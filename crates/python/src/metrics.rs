//! Prometheus metrics, on request.
//!
//! A recorder serves one copy of the `metrics` crate. This module has its own copy, so installing a
//! recorder affects no other library. The first request installs it. Counters that were made before
//! are not recorded and therefore cost nothing.

use std::sync::OnceLock;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use pyo3::prelude::*;

static METRICS: OnceLock<PrometheusHandle> = OnceLock::new();

fn handle() -> &'static PrometheusHandle {
    METRICS.get_or_init(|| {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        // No other recorder exists: this runs once.
        metrics::set_global_recorder(recorder).unwrap_or_default();
        handle
    })
}

/// Starts counting.
#[pyfunction]
pub(crate) fn enable_metrics() {
    handle();
}

/// The counters in Prometheus's text format.
#[pyfunction]
pub(crate) fn render_metrics(py: Python<'_>) -> String {
    py.detach(|| {
        let handle = handle();
        handle.run_upkeep();
        handle.render()
    })
}
