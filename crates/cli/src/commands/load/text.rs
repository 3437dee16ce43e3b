//! The report of `foreread load` as text.

use std::io::Write;

use anyhow::Result;
use foreread::plan::Prepared;
use foreread::report::{EpochReport, Report};
use foreread::size::ByteSize;

/// The datasets, and where their samples are cached.
///
/// `on_node` is the number of ranks on this node. Each has its own memory. They share the disks.
pub(super) fn heading(out: &mut impl Write, prepared: &Prepared, on_node: u32) -> Result<()> {
    for (catalog, name) in prepared.catalogs().zip(["dataset", "validation"]) {
        writeln!(
            out,
            "{name:12} {}: {} samples, {}",
            catalog.base_url(),
            catalog.len(),
            ByteSize(catalog.total_bytes())
        )?;
    }
    for level in prepared.plan().levels() {
        writeln!(
            out,
            "{:12} {}",
            level.name,
            foreread_estimate::level_text(level, prepared.plan().retention())
        )?;
    }
    if on_node > 1 {
        for level in prepared.plan().levels() {
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
    if prepared.plan().levels().is_empty() {
        writeln!(out, "{:12} none", "memory")?;
    }
    Ok(out.flush()?)
}

/// One epoch, in one line.
pub(super) fn line(out: &mut impl Write, who: &str, epoch: &EpochReport) -> Result<()> {
    let rate = |amount: u64| if epoch.seconds > 0.0 { amount as f64 / epoch.seconds } else { 0.0 };
    let share = |count: foreread::report::CountReport| match epoch.samples {
        0 => 0.0,
        samples => 100.0 * count.samples.unwrap_or(0) as f64 / samples as f64,
    };
    let places = [
        ("storage", epoch.reads.origin),
        ("memory", epoch.reads.memory),
        ("disk", epoch.reads.disk),
        ("peers", epoch.reads.peer),
    ];
    // Storage and memory are always printed, the others where they exist.
    let from = places.iter().filter(|(_, count)| count.samples.is_some());
    let from: Vec<String> = from.map(|(name, count)| format!("{name} {:.1} %", share(*count))).collect();
    writeln!(
        out,
        "{who}epoch {:<3} {:10} {} samples in {:.2} s: {:.0} samples/s, {}/s; stalled {:.2} s; {}{}",
        epoch.epoch,
        epoch.phase,
        epoch.samples,
        epoch.seconds,
        rate(epoch.samples),
        ByteSize(rate(epoch.bytes) as u64),
        epoch.stall_seconds,
        from.join(", "),
        epoch.digest.as_ref().map(|digest| format!("; sha256 {digest}")).unwrap_or_default(),
    )?;
    if let Some(ids) = &epoch.ids {
        let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
        writeln!(out, "{who}ids {}", ids.join(" "))?;
    }
    Ok(())
}

/// The totals of the run, and the values that it adapted.
pub(super) fn total(out: &mut impl Write, report: &Report) -> Result<()> {
    let floor = ByteSize(report.floor_origin_bytes);
    let bound = match &report.all_ranks {
        // The lower bound is of all ranks together.
        Some(_) => format!(" by rank {}", report.rank),
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
