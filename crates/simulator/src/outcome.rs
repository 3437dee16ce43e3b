//! The result of a simulated run.

use serde::Serialize;

use crate::policies::Policy;

/// One policy's run, or the mean of several runs that differ in their seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimulationOutcome {
    /// The policy.
    pub policy: Policy,
    /// The reason if the policy refuses this scenario. Then there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The figures of the run.
    #[serde(flatten)]
    pub figures: Option<Figures>,
}

/// Figures of a run. Counts are fractional only if several runs were averaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Seconds from the start to the last worker's end, including the initial stall.
    pub seconds: f64,
    /// Seconds before the first batch, while the policy loads its caches.
    pub init_stall_seconds: f64,
    /// Accesses that the staging buffer served, in time or late.
    pub reads_staging: f64,
    /// Accesses that were read from the file system on demand.
    pub reads_pfs: f64,
    /// Accesses that were read from this worker's caches on demand.
    pub reads_local: f64,
    /// Accesses that were read from another worker's caches on demand.
    pub reads_remote: f64,
    /// Samples read from the file system ahead of a request, into staging buffers and into caches.
    pub prefetch_pfs: f64,
    /// Samples staged from this worker's caches.
    pub prefetch_local: f64,
    /// Samples staged, or loaded into caches, from another worker's caches.
    pub prefetch_remote: f64,
    /// Accesses whose bytes came from the file system, staged ahead or on demand.
    pub served_pfs: f64,
    /// Accesses whose bytes came from this worker's caches or staging buffer.
    pub served_local: f64,
    /// Accesses whose bytes came from another worker's caches.
    pub served_remote: f64,
    /// MB read from the file system by all workers.
    pub pfs_mb: f64,
    /// The lower bound of MB read by any policy with these caches and staging buffers.
    pub floor_pfs_mb: f64,
    /// The largest used fraction of a cache class over all workers, from 0 to 1.
    pub cache_fill: f64,
    /// The largest used fraction of a staging buffer over all workers. Above 1 only with the
    /// thesis's accounting.
    pub staging_fill: f64,
    /// MB read from the file system for accesses of the last epoch, staged or on demand, without
    /// reads that load caches. Divided by `steady_mb`, this is the origin's share in a steady
    /// state.
    pub steady_pfs_mb: f64,
    /// MB of all accesses of the last epoch.
    pub steady_mb: f64,
}

impl SimulationOutcome {
    /// The header of [`csv`](Self::csv).
    pub const CSV_HEADER: &'static str = "policy,seconds,init_stall_seconds,reads_staging,reads_pfs,\
        reads_local,reads_remote,prefetch_pfs,prefetch_local,prefetch_remote,pfs_mb,floor_pfs_mb";

    /// One line of a CSV file, without its newline. A policy that refused has empty fields.
    pub fn csv(&self) -> String {
        let mut line = self.policy.name().to_owned();
        match &self.figures {
            None => line.push_str(&",".repeat(Self::CSV_HEADER.matches(',').count())),
            Some(f) => {
                let fields = [
                    f.seconds,
                    f.init_stall_seconds,
                    f.reads_staging,
                    f.reads_pfs,
                    f.reads_local,
                    f.reads_remote,
                    f.prefetch_pfs,
                    f.prefetch_local,
                    f.prefetch_remote,
                    f.pfs_mb,
                    f.floor_pfs_mb,
                ];
                for field in fields {
                    line.push_str(&format!(",{field}"));
                }
            }
        }
        line
    }

    /// The mean of several runs of one policy, or the first refusal if there is one. `None` without
    /// runs.
    pub fn mean(runs: &[Self]) -> Option<Self> {
        let first = runs.first()?;
        if let Some(refused) = runs.iter().find(|run| run.figures.is_none()) {
            return Some(refused.clone());
        }
        let figures: Vec<Figures> = runs.iter().filter_map(|run| run.figures).collect();
        let mean = |of: fn(&Figures) -> f64| figures.iter().map(of).sum::<f64>() / figures.len() as f64;
        let most = |of: fn(&Figures) -> f64| figures.iter().map(of).fold(0.0, f64::max);
        let figures = Figures {
            seconds: mean(|f| f.seconds),
            init_stall_seconds: mean(|f| f.init_stall_seconds),
            reads_staging: mean(|f| f.reads_staging),
            reads_pfs: mean(|f| f.reads_pfs),
            reads_local: mean(|f| f.reads_local),
            reads_remote: mean(|f| f.reads_remote),
            prefetch_pfs: mean(|f| f.prefetch_pfs),
            prefetch_local: mean(|f| f.prefetch_local),
            prefetch_remote: mean(|f| f.prefetch_remote),
            served_pfs: mean(|f| f.served_pfs),
            served_local: mean(|f| f.served_local),
            served_remote: mean(|f| f.served_remote),
            pfs_mb: mean(|f| f.pfs_mb),
            floor_pfs_mb: mean(|f| f.floor_pfs_mb),
            cache_fill: most(|f| f.cache_fill),
            staging_fill: most(|f| f.staging_fill),
            steady_pfs_mb: mean(|f| f.steady_pfs_mb),
            steady_mb: mean(|f| f.steady_mb),
        };
        Some(Self { policy: first.policy, refused: None, figures: Some(figures) })
    }
}
