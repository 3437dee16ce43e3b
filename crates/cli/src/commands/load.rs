//! `foreread load`: run the loader as a trainer would and report each epoch.

use std::io::Write;

use anyhow::Result;
use foreread::{Batch, ByteSize, Config, EpochReport, Error, Loader, Report};
use sha2::{Digest, Sha256};

use crate::arguments::Load;
use crate::progress::Work;
use crate::{output, progress, settings};

pub fn run(options: &Load) -> Result<()> {
    let knobs = settings::gather(options.given())?;
    if options.running.explain {
        return settings::explain(&knobs);
    }
    let json = settings::is_json(&knobs)?;
    let config = Config::from_knobs(&knobs)?;
    let wanted = Wanted {
        digest: knobs.parse("digest")?.unwrap_or(false),
        ids: knobs.parse("ids")?.unwrap_or(false),
    };
    let compute = config.compute;
    let ready = Loader::builder(&options.target).config(config).prepare_with(progress::listing(&options.target))?;
    let passes: Vec<u64> = ready.prepared().run().passes().map(|pass| pass.batches).collect();
    let mut out = output::stdout();
    if !json {
        heading(&mut out, ready.prepared())?;
    }
    let mut loader = ready.start();
    let mut seen: Vec<Seen> = Vec::new();
    let mut shown = 0;
    for batches in passes {
        if batches == 0 {
            continue;
        }
        let mut work: Option<Work> = None;
        let mut pass = Seen::new(wanted);
        for _ in 0..batches {
            let Some(batch) = loader.batches().next() else { break };
            let batch = batch.map_err(Error::from)?;
            work.get_or_insert_with(|| Work::new(format!("epoch {} {}", batch.epoch(), batch.phase()), batches, "batches"))
                .step();
            pass.see(&batch);
            drop(batch);
            if !compute.is_zero() {
                std::thread::sleep(compute);
            }
        }
        drop(work);
        seen.push(pass);
        if !json {
            let report = finish(loader.report(), &seen);
            for epoch in &report.epochs[shown..] {
                line(&mut out, epoch)?;
            }
            shown = report.epochs.len();
            out.flush()?;
        }
    }
    let report = finish(loader.report(), &seen);
    if json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        total(&mut out, &report)?;
    }
    Ok(out.flush()?)
}

#[derive(Clone, Copy)]
struct Wanted {
    digest: bool,
    ids: bool,
}

/// What was seen of one pass, beyond what the loader's own report says.
struct Seen {
    digest: Option<Sha256>,
    ids: Option<Vec<u64>>,
}

impl Seen {
    fn new(wanted: Wanted) -> Self {
        Self { digest: wanted.digest.then(Sha256::new), ids: wanted.ids.then(Vec::new) }
    }

    fn see(&mut self, batch: &Batch) {
        for (id, bytes) in batch.iter() {
            if let Some(digest) = &mut self.digest {
                digest.update(id.0.to_le_bytes());
                digest.update(bytes);
            }
            if let Some(ids) = &mut self.ids {
                ids.push(id.0);
            }
        }
    }
}

fn finish(mut report: Report, seen: &[Seen]) -> Report {
    for (epoch, seen) in report.epochs.iter_mut().zip(seen) {
        epoch.digest = seen.digest.clone().map(|digest| hex(&digest.finalize()));
        epoch.ids.clone_from(&seen.ids);
    }
    report
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn heading(out: &mut impl Write, prepared: &foreread::Prepared) -> Result<()> {
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
            "{:12} {}, keeps {} samples, {}",
            level.name,
            ByteSize(level.capacity),
            level.samples,
            ByteSize(level.bytes)
        )?;
    }
    if prepared.plan().levels().is_empty() {
        writeln!(out, "{:12} none", "memory")?;
    }
    Ok(out.flush()?)
}

fn line(out: &mut impl Write, epoch: &EpochReport) -> Result<()> {
    let rate = |amount: u64| if epoch.seconds > 0.0 { amount as f64 / epoch.seconds } else { 0.0 };
    let share = |count: foreread::CountReport| match epoch.samples {
        0 => 0.0,
        samples => 100.0 * count.samples.unwrap_or(0) as f64 / samples as f64,
    };
    writeln!(
        out,
        "epoch {:<3} {:10} {} samples in {:.2} s: {:.0} samples/s, {}/s; stalled {:.2} s; origin {:.1} %, memory {:.1} %{}",
        epoch.epoch,
        epoch.phase,
        epoch.samples,
        epoch.seconds,
        rate(epoch.samples),
        ByteSize(rate(epoch.bytes) as u64),
        epoch.stall_seconds,
        share(epoch.reads.origin),
        share(epoch.reads.memory),
        epoch.digest.as_ref().map(|digest| format!("; sha256 {digest}")).unwrap_or_default(),
    )?;
    if let Some(ids) = &epoch.ids {
        let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
        writeln!(out, "ids {}", ids.join(" "))?;
    }
    Ok(())
}

fn total(out: &mut impl Write, report: &Report) -> Result<()> {
    writeln!(
        out,
        "origin       {} in {} requests (the floor is {}); {} retried, {} skipped, {} substituted",
        ByteSize(report.origin_bytes),
        report.origin_requests,
        ByteSize(report.floor_origin_bytes),
        report.retried,
        report.skipped,
        report.substituted
    )?;
    Ok(())
}
