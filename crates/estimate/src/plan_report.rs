//! A planned run as text and JSON: placement, lower bound, predicted times, and the savings by
//! larger caches.
//!
//! The command and the Python package show this report. Its serialised form is `foreread plan
//! --report json`.

use std::fmt;

use foreread::plan::{
    CapacityGain, ClusterForecast, EpochForecast, LevelPlan, Planned, Resource, ServerGain, UnitPlan,
};
use foreread::size::ByteSize;
use foreread::{Catalog, Error, ErrorKind, Result};
use foreread_planner::{LocalPlan, Retention, Summary};
use foreread_types::setting;
use serde::Serialize;

use crate::ServerReport;

/// The additional cache whose value the report has: a GB.
const MORE: u64 = 1_000_000_000;

/// One rank's run, planned and forecast.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    rank: u32,
    world_size: u32,
    /// The lower bound of the whole cluster. `plan.floor_origin_bytes` is that of this rank alone.
    floor_origin_bytes: u64,
    look_ahead_bytes: u64,
    epochs: u64,
    /// The length of the blocks that the first epoch reads from shards.
    #[serde(skip_serializing_if = "Option::is_none")]
    block_bytes: Option<u64>,
    /// Bytes in blocks that belong to no sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    block_waste_bytes: Option<u64>,
    /// The stored units that samples share, if some do.
    #[serde(skip_serializing_if = "Option::is_none")]
    units: Option<UnitPlan>,
    plan: Summary,
    /// For the text. In JSON it is part of the plan.
    #[serde(skip)]
    retention: Retention,
    /// Empty if the origin's speed is unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    forecast: Vec<Forecast>,
    one_more_gigabyte: Vec<CapacityGain>,
    /// If there are several ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    together: Option<ClusterReport>,
    /// If the catalog of the training data names its servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    storage: Option<ServerReport>,
}

/// The run as a cluster that shares its caches.
#[derive(Clone, Debug, Serialize)]
struct ClusterReport {
    #[serde(flatten)]
    cluster: ClusterForecast,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    forecast: Vec<Forecast>,
}

/// One epoch, predicted.
#[derive(Clone, Debug, Serialize)]
struct Forecast {
    epoch: u64,
    seconds: f64,
    /// The resource that limits it. `nothing` if no time of the epoch is known.
    limiting: String,
    /// The same in words, for the text.
    #[serde(skip)]
    limit: String,
    origin_requests: u64,
    origin_bytes: u64,
}

impl PlanReport {
    /// The report of a planned run. `train` is the catalog of the training data, if there is one.
    /// Plans once more for each kind of cache, and once for all ranks.
    ///
    /// # Errors
    /// If the run cannot be planned, or belongs to a group of ranks: the report is about one rank
    /// alone.
    pub fn of(planned: &Planned, train: Option<&Catalog>) -> Result<Self> {
        let config = planned.config();
        let LocalPlan::Private(plan) = planned.local_plan() else {
            return Err(Error::new(ErrorKind::Plan, "there is no plan of this rank alone"));
        };
        let forecast = planned.forecast()?.unwrap_or_default();
        let epochs =
            |epochs: &[EpochForecast]| epochs.iter().map(|epoch| Forecast::of(epoch, planned)).collect();
        let together = planned.cluster_forecast(train)?.map(|cluster| ClusterReport {
            forecast: epochs(cluster.epochs.as_deref().unwrap_or_default()),
            cluster,
        });
        Ok(Self {
            rank: config.rank.rank,
            world_size: config.rank.ranks,
            floor_origin_bytes: planned.floor(),
            look_ahead_bytes: config.look_ahead,
            epochs: config.epochs,
            block_bytes: planned.block_bytes(),
            block_waste_bytes: planned.block_waste_bytes(),
            units: planned.units().copied(),
            plan: plan.summary(),
            retention: plan.retention(),
            forecast: epochs(&forecast),
            one_more_gigabyte: planned.capacity_gain(MORE)?,
            together,
            storage: None,
        })
    }

    /// The same with the servers of the training data, if `catalog` names them.
    #[must_use]
    pub fn with_servers(self, catalog: Option<&Catalog>) -> Self {
        Self { storage: catalog.and_then(ServerReport::of), ..self }
    }

    /// The fingerprint of all decisions and predictions, equal on all ranks. Not in the text.
    pub fn fingerprint(&self) -> &str {
        &self.plan.fingerprint
    }
}

impl Forecast {
    fn of(epoch: &EpochForecast, planned: &Planned) -> Self {
        Self {
            epoch: epoch.epoch,
            seconds: epoch.seconds(),
            limiting: match epoch.nanoseconds {
                0 => "nothing".to_owned(),
                _ => resource(epoch.limiting, planned),
            },
            limit: limit(epoch, planned),
            origin_requests: epoch.requests.samples,
            origin_bytes: epoch.requests.bytes,
        }
    }

    /// Whether both have the same limit, times within one percent, and about the same reads. Ranks
    /// that share data read slightly different amounts in each epoch.
    fn is_like(&self, other: &Self) -> bool {
        let is_near = |one: u64, other: u64| one.abs_diff(other) <= one.min(other) / 10;
        self.limiting == other.limiting
            && (self.seconds - other.seconds).abs() <= self.seconds / 100.0
            && is_near(self.origin_bytes, other.origin_bytes)
            && is_near(self.origin_requests, other.origin_requests)
    }
}

/// A number as text, or the range from the smallest to the largest of several.
fn range<T: Copy + Ord + fmt::Display>(numbers: impl Iterator<Item = T> + Clone) -> String {
    let text = |number: Option<T>| number.map_or_else(String::new, |number| number.to_string());
    let (least, most) = (text(numbers.clone().min()), text(numbers.max()));
    // Sizes that differ may be equal as text.
    if least == most { least } else { format!("{least} to {most}") }
}

/// The name of a resource, or of its level.
fn resource(resource: Resource, planned: &Planned) -> String {
    match resource {
        Resource::Level(level) => {
            let level = planned.levels().get(usize::from(level.0));
            level.map_or_else(|| resource.to_string(), |level| level.name.clone())
        }
        resource => resource.to_string(),
    }
}

/// The words after "limited by".
fn limit(epoch: &EpochForecast, planned: &Planned) -> String {
    match epoch.limiting {
        _ if epoch.nanoseconds == 0 => "nothing known".to_owned(),
        Resource::OriginBandwidth => "the bandwidth of storage".to_owned(),
        Resource::OriginClient => "the bandwidth of storage for one rank".to_owned(),
        Resource::OriginRequests => "the latency of storage".to_owned(),
        Resource::OriginServer => "the slowest storage server".to_owned(),
        other => resource(other, planned),
    }
}

/// The samples of a cache level as text.
pub fn level_text(level: &LevelPlan, retention: Retention) -> String {
    let (capacity, bytes, footprint) =
        (ByteSize(level.capacity), ByteSize(level.bytes), ByteSize(level.footprint));
    if level.slower_than_origin {
        return format!("{capacity}: stays empty, because it is slower than storage");
    }
    match retention {
        Retention::Threshold { .. } => {
            format!("{capacity}: about {footprint} of samples at a time")
        }
        _ => format!("{capacity}: keeps {} samples, {bytes} ({footprint} with overhead)", level.samples),
    }
}

impl fmt::Display for PlanReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, forecast, .. } = self;
        writeln!(out, "rank {} of {}, {} epochs", self.rank, self.world_size, self.epochs)?;
        for (dataset, name) in plan.datasets.iter().zip(["train", "validation"]) {
            let is_part = dataset.readable < dataset.samples;
            let chosen = if is_part { format!("{} of ", dataset.readable) } else { String::new() };
            writeln!(
                out,
                "{name:12} {chosen}{} samples, {}; this rank uses {} in {} uses, {} of it from storage",
                dataset.samples,
                ByteSize(dataset.bytes),
                ByteSize(dataset.used_bytes),
                dataset.uses,
                ByteSize(dataset.origin_bytes)
            )?;
        }
        for level in &plan.levels {
            writeln!(out, "{:12} {}", level.name, level_text(level, self.retention))?;
        }
        let keeping = self.units.as_ref().filter(|units| !units.is_cached());
        match plan.horizon {
            None if plan.levels.is_empty() && keeping.is_some() => {
                writeln!(out, "retention    none: memory keeps samples of units until their next use")?
            }
            None if plan.levels.is_empty() => writeln!(out, "retention    none: there is no memory tier")?,
            None => writeln!(out, "retention    keep: cached samples stay for the whole run")?,
            Some(horizon) => writeln!(
                out,
                "retention    threshold: a sample stays if its next use is at most {horizon} samples away"
            )?,
        }
        if let Some(gain) = &plan.server_gain {
            writeln!(out, "placement    {}", gain_text(gain))?;
        }
        if let Some(bytes) = self.block_bytes {
            let waste = match self.block_waste_bytes.unwrap_or(0) {
                0 => String::new(),
                waste => format!(", {} of that between samples", ByteSize(waste)),
            };
            writeln!(
                out,
                "cold start   the first epoch reads shards in blocks of {}{waste}",
                ByteSize(bytes)
            )?;
        }
        self.units.as_ref().map_or(Ok(()), |units| unit_lines(out, units))?;
        writeln!(out, "look-ahead   {}", ByteSize(self.look_ahead_bytes))?;
        let origin =
            self.units.as_ref().map_or(plan.origin_bytes, |units| units.stored_of(plan.origin_bytes));
        let again = if keeping.is_some() { ", with units that are read again" } else { "" };
        writeln!(out, "this plan    {} from storage{again}", ByteSize(origin))?;
        let estimated = if plan.floor_is_exact { "" } else { " (estimated)" };
        // That of the group is in stored bytes, and of one rank here.
        let (floor, decoded) = match &self.units {
            Some(_) if self.world_size == 1 => (self.floor_origin_bytes, ""),
            Some(_) => (plan.floor_origin_bytes, " (decoded)"),
            None => (plan.floor_origin_bytes, ""),
        };
        let floor = ByteSize(floor);
        writeln!(out, "lower bound  {floor}{decoded}{estimated}: no policy reads less for this rank")?;
        if self.world_size > 1 {
            let all = ByteSize(self.floor_origin_bytes);
            writeln!(out, "             {all}: no policy reads less for all ranks together")?;
        }
        if forecast.is_empty() {
            let limit = setting("origin-limit");
            writeln!(out, "time         unknown (run `foreread calibrate`, or set {limit})")?;
        }
        epoch_lines(out, forecast)?;
        for more in &self.one_more_gigabyte {
            let seconds = more.seconds.map_or_else(String::new, |seconds| format!(", {seconds:.1} s less"));
            let bytes = ByteSize(more.origin_bytes);
            writeln!(out, "1 GB more    of {}: {bytes} less from storage over the run{seconds}", more.level)?;
        }
        if let Some(together) = &self.together {
            self.cluster_text(out, together)?;
        }
        self.storage.as_ref().map_or(Ok(()), |storage| write!(out, "{storage}"))
    }
}

impl PlanReport {
    fn cluster_text(&self, out: &mut fmt::Formatter<'_>, report: &ClusterReport) -> fmt::Result {
        let cluster = &report.cluster;
        writeln!(
            out,
            "together     the caches of {} ranks as one: {} from storage (lower bound {}); {}, {:.1} % of \
             all uses are local{}",
            self.world_size,
            ByteSize(cluster.origin_bytes),
            ByteSize(cluster.floor_origin_bytes),
            match cluster.blocks {
                Some(_) => "one rank keeps each block",
                None => "the first rank to read a sample keeps it",
            },
            100.0 * cluster.local_uses as f64 / cluster.uses.max(1) as f64,
            if cluster.by_locality { " (dealt by locality)" } else { "" }
        )?;
        if let Some(gain) = &cluster.server_gain {
            writeln!(out, "             {}", gain_text(gain))?;
        }
        if let Some(blocks) = &cluster.blocks {
            writeln!(
                out,
                "             the first epoch reads shards in {} blocks of at most {}, each once by its \
                 owner: {} requests instead of {}",
                blocks.blocks,
                ByteSize(blocks.block_bytes),
                blocks.block_epoch_requests,
                self.plan.datasets.first().map_or(0, |train| train.samples)
            )?;
        }
        if report.forecast.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "             over a network of {}/s between nodes (assumed):",
            ByteSize(cluster.assumed_network_bytes_per_second)
        )?;
        epoch_lines(out, &report.forecast)
    }
}

/// The cost of units that samples share, and the remedy.
fn unit_lines(out: &mut fmt::Formatter<'_>, units: &UnitPlan) -> fmt::Result {
    let (stored, each) = (ByteSize(units.stored_bytes), units.samples_per_unit);
    writeln!(
        out,
        "units        {} compressed units of {each:.0} samples each, {stored} in storage",
        units.units
    )?;
    if units.is_cached() {
        return writeln!(out, "             the caches hold all samples: each unit is read once in the run");
    }
    writeln!(
        out,
        "             memory for {:.0} % of their samples: each unit is read about {:.1} times per epoch, {} \
         per epoch",
        100.0 * units.kept_share,
        units.reads_per_epoch,
        ByteSize(units.bytes_per_epoch())
    )?;
    writeln!(
        out,
        "             caches for {} would read each once; rewritten with one sample per unit, an epoch reads \
         about {stored}",
        ByteSize(units.delivered_bytes)
    )
}

/// The gain of a placement by storage server.
fn gain_text(gain: &ServerGain) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    format!(
        "by storage server: epochs after the first take {:.2} s instead of {:.2} s",
        seconds(gain.epoch_ns),
        seconds(gain.ignoring_servers_ns)
    )
}

/// The times of epochs, with similar epochs in one line.
fn epoch_lines(out: &mut fmt::Formatter<'_>, forecast: &[Forecast]) -> fmt::Result {
    for epochs in forecast.chunk_by(Forecast::is_like) {
        let ([first, ..], [.., last]) = (epochs, epochs) else { continue };
        let (name, each) = match epochs.len() {
            1 => (format!("epoch {}", first.epoch), ""),
            _ => (format!("epochs {}-{}", first.epoch, last.epoch), " each"),
        };
        writeln!(
            out,
            "{name:12} {:.2} s, limited by {}: {} from storage in {} requests{each}",
            first.seconds,
            first.limit,
            range(epochs.iter().map(|epoch| ByteSize(epoch.origin_bytes))),
            range(epochs.iter().map(|epoch| epoch.origin_requests)),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Epochs(Vec<Forecast>);

    impl fmt::Display for Epochs {
        fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            epoch_lines(out, &self.0)
        }
    }

    fn text(reads: &[(u64, u64)]) -> String {
        let forecast = |(epoch, (origin_bytes, origin_requests))| Forecast {
            epoch,
            seconds: 5.25,
            limiting: "compute".to_owned(),
            limit: "compute".to_owned(),
            origin_requests,
            origin_bytes,
        };
        Epochs((0..).zip(reads.iter().copied()).map(forecast).collect()).to_string()
    }

    #[test]
    fn epochs_of_equal_time_that_read_nothing_have_their_own_line() {
        assert_eq!(
            text(&[(4096, 1600), (0, 0), (0, 0)]),
            "epoch 0      5.25 s, limited by compute: 4.0 KiB from storage in 1600 requests\n\
             epochs 1-2   5.25 s, limited by compute: 0 B from storage in 0 requests each\n"
        );
    }

    #[test]
    fn reads_that_differ_slightly_are_a_range() {
        assert_eq!(
            text(&[(2048, 20), (2150, 21), (2048, 20)]),
            "epochs 0-2   5.25 s, limited by compute: 2.0 KiB to 2.1 KiB from storage in 20 to 21 \
             requests each\n"
        );
    }

    #[test]
    fn epoch_without_known_times_is_limited_by_nothing() {
        let mut config = foreread::Config::default();
        (config.epochs, config.origin_limit) = (3, Some(1000));
        config.memory = foreread::Memory::Bytes(1 << 20);
        let sizes = [foreread::plan::Sizes::uniform(10, 100)];
        let report = PlanReport::of(&Planned::new(config, &sizes).unwrap(), None).unwrap();
        let text = report.to_string();
        assert!(text.contains("limited by the bandwidth of storage"), "{text}");
        let later = "epochs 1-2   0.00 s, limited by nothing known: 0 B from storage in 0 requests each";
        assert!(text.contains(later), "{text}");
        assert_eq!(report.forecast[1].limiting, "nothing");
    }
}
