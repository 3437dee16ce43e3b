//! Prometheus's figures, on request.
//!
//! A recorder is for a whole copy of the `metrics` crate; this module's copy is its own, so that installing one disturbs nobody.
//! It is installed when a user first asks: counters that were made before count nowhere, which is what they cost.

use std::sync::OnceLock;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use pyo3::prelude::*;

static METRICS: OnceLock<PrometheusHandle> = OnceLock::new();

fn handle() -> &'static PrometheusHandle {
    METRICS.get_or_init(|| {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        // There is none yet: this is done once.
        metrics::set_global_recorder(recorder).unwrap_or_default();
        handle
    })
}

/// Counts from now on.
#[pyfunction]
pub(crate) fn enable_metrics() {
    handle();
}

/// What has been counted, in Prometheus's text format.
#[pyfunction]
pub(crate) fn render_metrics(py: Python<'_>) -> String {
    py.detach(|| {
        let handle = handle();
        handle.run_upkeep();
        handle.render()
    })
}
