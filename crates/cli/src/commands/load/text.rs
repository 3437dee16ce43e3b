//! The report of `foreread load` as text: a heading, a row per epoch, the totals.

use std::io::Write;

use anyhow::Result;
use foreread::Memory;
use foreread::plan::{NodeCacheSize, Prepared};
use foreread::report::{CountReport, EpochReport, Report};
use foreread::size::ByteSize;
use foreread_settings::{Knobs, calibration::FILE_NAME};

/// The datasets, and where their samples are cached.
///
/// `launched` is the number of ranks that the launcher reports on this node. Each has its own
/// memory. They share the disks.
pub(super) fn heading(out: &mut impl Write, prepared: &Prepared, launched: u32, knobs: &Knobs) -> Result<()> {
    let on_node = prepared.group_ranks_on_node().unwrap_or(launched);
    for (catalog, name) in prepared.catalogs().zip(["dataset", "validation"]) {
        writeln!(
            out,
            "{name:12} {}: {} samples, {}",
            catalog.base_url(),
            catalog.len(),
            ByteSize(catalog.total_bytes())
        )?;
    }
    for level in prepared.levels() {
        writeln!(
            out,
            "{:12} {}",
            level.name,
            foreread_estimate::level_text(level, prepared.local_plan().retention())
        )?;
    }
    if let Some(NodeCacheSize { ranks, memory_bytes, disk_bytes, .. }) = prepared.node_cache() {
        let (all, each) = (ByteSize(memory_bytes), ByteSize(memory_bytes / u64::from(ranks.max(1))));
        write!(out, "{:12} memory {each} x {ranks} ranks on this node: {all}", "")?;
        if disk_bytes > 0 {
            write!(out, ", and disks of {}", ByteSize(disk_bytes))?;
        }
        writeln!(out, ", as one cache")?;
    } else if on_node > 1 && !prepared.has_agent() {
        for level in prepared.levels() {
            let (all, size) = (level.capacity.saturating_mul(on_node.into()), ByteSize(level.capacity));
            writeln!(
                out,
                "{:12} {} {size} x {on_node} ranks on this node: {}",
                "",
                level.name,
                ByteSize(all)
            )?;
        }
    }
    match memory_off(prepared) {
        Some(line) => writeln!(out, "{line}")?,
        None if prepared.has_agent() => writeln!(out, "{:12} the node's agent, for all jobs", "memory")?,
        None if prepared.levels().is_empty() => {
            let keeps = prepared.units().is_some();
            let memory = if keeps { "keeps samples of units until their next use" } else { "none" };
            writeln!(out, "{:12} {memory}", "memory")?;
        }
        None => {}
    }
    if let Some(line) = calibration(knobs, prepared) {
        writeln!(out, "{line}")?;
    }
    Ok(out.flush()?)
}

/// Why there is no memory tier, if the kernel is the reason.
pub fn memory_off(prepared: &Prepared) -> Option<String> {
    let is_automatic = prepared.config().memory == Memory::Auto && prepared.config().origin_limit.is_none();
    let has_memory = prepared.levels().iter().any(|level| level.name == "memory");
    (is_automatic && !has_memory && prepared.is_kernel_cached()).then(|| {
        "memory       off: the kernel already caches this local directory (--memory SIZE forces it)"
            .to_owned()
    })
}

/// The calibration that was found, and its use.
pub fn calibration(knobs: &Knobs, prepared: &Prepared) -> Option<String> {
    if !matches!(knobs.get("calibration"), Some(("auto", _))) {
        return None;
    }
    let config = prepared.config();
    let found = config.calibration.as_deref()?;
    let measured = prepared.catalogs().next().is_some_and(|it| found.of_origin(it.base_url()).is_some());
    let disks = config.disk.iter().any(|disk| found.of_disk(&disk.directory).is_some());
    let used = match (measured, disks, &found.origin) {
        (true, ..) => "measured this dataset's storage".to_owned(),
        (false, true, _) => "measured a disk of this run".to_owned(),
        (false, false, Some(origin)) => format!("measured {}, and is not used here", origin.url),
        (false, false, None) => "measured other disks, and is not used here".to_owned(),
    };
    Some(format!("calibration  {FILE_NAME} in the working directory {used}"))
}

/// The epochs as a table, at most 100 columns wide.
pub(super) struct EpochTable {
    has_disk: bool,
    /// The name of the cache that several processes share, if the samples come from there.
    shared: Option<&'static str>,
    /// The rank, if rows of several ranks may mix.
    rank: Option<u32>,
    has_heading: bool,
}

impl EpochTable {
    pub(super) fn new(prepared: &Prepared, rank: Option<u32>) -> Self {
        let has_disk = !prepared.config().disk.is_empty() && prepared.node_cache().is_none();
        let shared = match prepared.node_cache() {
            Some(_) => Some("node"),
            None => prepared.has_agent().then_some("agent"),
        };
        Self { has_disk, shared, rank, has_heading: false }
    }

    #[cfg(test)]
    fn of(has_disk: bool, shared: Option<&'static str>, rank: Option<u32>) -> Self {
        Self { has_disk, shared, rank, has_heading: false }
    }

    /// Prints a row, and the heading before the first.
    pub(super) fn row(&mut self, out: &mut impl Write, epoch: &EpochReport) -> Result<()> {
        if !self.has_heading {
            self.has_heading = true;
            self.heading(out)?;
        }
        let rate = |amount: u64| if epoch.seconds > 0.0 { amount as f64 / epoch.seconds } else { 0.0 };
        self.rank(out, |rank| rank.to_string())?;
        write!(
            out,
            "{:>5} {:<10} {:>9} {:>9} {:>9.0} {:>7.1} {:>9}",
            epoch.epoch,
            epoch.phase,
            epoch.samples,
            seconds(epoch.seconds),
            rate(epoch.samples),
            rate(epoch.bytes) / f64::from(1 << 20),
            seconds(epoch.stall_seconds),
        )?;
        let share = |count: CountReport| match epoch.samples {
            0 => 0.0,
            samples => 100.0 * count.samples.unwrap_or(0) as f64 / samples as f64,
        };
        write!(out, " {:>7.1}% {:>6.1}%", share(epoch.reads.origin), share(epoch.reads.memory))?;
        if self.has_disk {
            write!(out, " {:>5.1}%", share(epoch.reads.disk))?;
        }
        if self.shared.is_some() {
            write!(out, " {:>5.1}%", share(epoch.reads.agent))?;
        }
        writeln!(out)?;
        if let Some(digest) = &epoch.digest {
            self.rank(out, |rank| rank.to_string())?;
            writeln!(out, "      sha256 {digest}")?;
        }
        if let Some(ids) = &epoch.ids {
            let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
            self.rank(out, |rank| rank.to_string())?;
            writeln!(out, "      ids {}", ids.join(" "))?;
        }
        Ok(())
    }

    fn heading(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out)?;
        self.rank(out, |_| "rank".to_owned())?;
        write!(
            out,
            "{:>5} {:<10} {:>9} {:>9} {:>9} {:>7} {:>9} {:>8} {:>7}",
            "epoch", "phase", "samples", "time", "samples/s", "MiB/s", "stalled", "storage", "memory"
        )?;
        let more = [self.has_disk.then_some("disk"), self.shared];
        for name in more.into_iter().flatten() {
            write!(out, " {name:>6}")?;
        }
        Ok(writeln!(out)?)
    }

    /// The first column, if there is one.
    fn rank(&self, out: &mut impl Write, text: impl Fn(u32) -> String) -> Result<()> {
        match self.rank {
            Some(rank) => Ok(write!(out, "{:>4} ", text(rank))?),
            None => Ok(()),
        }
    }
}

fn seconds(seconds: f64) -> String {
    if seconds < 1000.0 { format!("{seconds:.2} s") } else { format!("{seconds:.0} s") }
}

/// The totals of the run, and the values that it adapted.
pub(super) fn total(out: &mut impl Write, report: &Report) -> Result<()> {
    writeln!(out)?;
    let floor = ByteSize(report.floor_origin_bytes);
    let bound = match &report.all_ranks {
        // The lower bound is of all ranks together.
        Some(_) => format!(" by rank {}", report.rank),
        None if report.world_size > 1 => format!(" (lower bound of all ranks {floor})"),
        // The samples of an agent, and its reads for others, are not this run's.
        None if report.agent.is_some() => " without the agent's".to_owned(),
        None => format!(" (lower bound {floor})"),
    };
    writeln!(
        out,
        "storage      {} in {} requests{bound}; {} retried, {}{} skipped, {} substituted",
        ByteSize(report.origin_bytes),
        report.origin_requests,
        report.retried,
        if report.hedged > 0 { format!("{} sent twice, ", report.hedged) } else { String::new() },
        report.skipped,
        report.substituted
    )?;
    let (peers, agent) = (report.peers.unwrap_or_default(), report.agent.unwrap_or_default());
    if peers.late + peers.lost + agent.direct_samples > 0 {
        writeln!(
            out,
            "direct       {} samples of late ranks, {} of silent ranks and {} of the node's cache were read \
             from storage",
            peers.late, peers.lost, agent.direct_samples
        )?;
    }
    if let Some(all) = &report.all_ranks {
        writeln!(
            out,
            "all ranks    {} of {}: {} in {} requests from storage (planned {}; lower bound {floor} with all \
             look-ahead as cache)",
            all.ranks,
            report.world_size,
            ByteSize(all.origin_bytes),
            all.origin_requests,
            ByteSize(report.planned_origin_bytes),
        )?;
    }
    if let Some(limit) = &report.adapted.origin_parallelism {
        let how = match limit.changes {
            0 => "unchanged".to_owned(),
            _ => format!("{}; was {} to {}", limit.why, limit.lowest, limit.highest),
        };
        writeln!(out, "parallelism  at most {} requests at once ({how}); peak {}", limit.now, limit.peak)?;
    }
    let look_ahead = report.adapted.look_ahead;
    if look_ahead.lowest_bytes < look_ahead.allowed_bytes {
        writeln!(
            out,
            "look-ahead   {} of {} in use, enough for the trainer's pace",
            ByteSize(look_ahead.now_bytes),
            ByteSize(look_ahead.allowed_bytes)
        )?;
    }
    if let Some(units) = report.units {
        writeln!(
            out,
            "units        {} compressed units read; {} samples from units in memory",
            units.read, units.kept
        )?;
    }
    if let Some(disk) = &report.disk {
        let capacity = match disk.capacity_bytes {
            0 => "another process's cache".to_owned(),
            capacity => ByteSize(capacity).to_string(),
        };
        writeln!(
            out,
            "disk         {} held of {}; {} written, {} skipped, {} failed, {} corrupt; read by {}",
            ByteSize(disk.held_bytes),
            capacity,
            disk.written,
            disk.skipped,
            disk.failed,
            disk.corrupt,
            disk.reader
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use foreread::report::ReadsReport;

    use super::*;

    fn count(samples: u64) -> CountReport {
        CountReport { samples: Some(samples), bytes: Some(samples * 1000) }
    }

    fn epoch(number: u64, samples: u64) -> EpochReport {
        let reads =
            ReadsReport { origin: count(samples / 4), memory: count(samples / 2), ..Default::default() };
        EpochReport {
            epoch: number,
            passes: 1,
            phase: "validation".to_owned(),
            samples,
            batches: 1,
            bytes: samples << 20,
            seconds: 8.0,
            stall_seconds: 0.5,
            first_batch_seconds: 0.1,
            reads,
            digest: None,
            ids: None,
        }
    }

    fn printed(mut table: EpochTable, epochs: &[EpochReport]) -> Vec<String> {
        let mut out = Vec::new();
        for epoch in epochs {
            table.row(&mut out, epoch).unwrap();
        }
        String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn epochs_are_rows_below_one_heading() {
        let table = EpochTable::of(false, None, None);
        let lines = printed(table, &[epoch(0, 4000), epoch(1, 4000)]);
        assert_eq!(
            lines,
            [
                "",
                "epoch phase        samples      time samples/s   MiB/s   stalled  storage  memory",
                "    0 validation      4000    8.00 s       500   500.0    0.50 s    25.0%   50.0%",
                "    1 validation      4000    8.00 s       500   500.0    0.50 s    25.0%   50.0%",
            ]
        );
    }

    #[test]
    fn widest_table_has_100_columns() {
        let table = EpochTable::of(true, Some("node"), Some(1023));
        let lines = printed(
            table,
            &[EpochReport { digest: Some("f".repeat(64)), bytes: 99 << 30, ..epoch(12_345, 123_456_789) }],
        );
        assert!(lines.iter().all(|line| line.len() <= 100), "{lines:#?}");
        assert!(lines[1].starts_with("rank epoch ") && lines[1].ends_with("   disk   node"), "{lines:#?}");
        assert_eq!(lines[1].len(), lines[2].len(), "{lines:#?}");
        // Rows of several ranks mix, so each line names its rank.
        assert!(lines[3].starts_with("1023       sha256 ffff"), "{lines:#?}");
    }
}
