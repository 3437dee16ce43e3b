//! The intervals of the control process and its agents.

use std::time::Duration;

/// How long a new control process waits for the agents of an earlier one.
pub(super) const SETTLED: Duration = Duration::from_secs(2);

/// How often agents report.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_secs(1);
