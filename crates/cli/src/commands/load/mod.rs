//! `foreread load`: run the loader as a trainer would and report each epoch.

mod ranks;
mod text;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use foreread::plan::Prepared;
use foreread::report::{EpochReport, Report};
use foreread::{Batch, Error, LoadErrorKind, Loader, Registry, State};
use sha2::{Digest, Sha256};

use crate::arguments::Load;
use crate::progress::{ProgressMode, WorkProgress};
use crate::signals::Signals;
use crate::{output, progress, settings};

/// A wait for a batch looks for signals this often.
const NAP: Duration = Duration::from_millis(50);

pub fn run(options: &Load, registry: Registry) -> Result<ExitCode> {
    let knobs = settings::gather(options.given())?;
    if options.running.explain {
        return settings::explain(&knobs).map(|()| ExitCode::SUCCESS);
    }
    let json = settings::is_json(&knobs)?;
    let mut config = foreread_settings::config(&knobs)?;
    config.format = settings::format(&knobs)?;
    let wanted =
        Wanted { digest: knobs.parse("digest")?.unwrap_or(false), ids: knobs.parse("ids")?.unwrap_or(false) };
    let state = knobs.get("state").map(|(path, _)| PathBuf::from(path));
    let (compute, rank, world_size, node_ranks) =
        (config.compute, config.rank, config.world_size, config.ranks_on_node());
    let builder = Loader::builder_with(&options.target, config.clone()).registry(registry);
    let (mut builder, together) = ranks::gather(builder, &config, &knobs)?;
    if state.is_some() && world_size > 1 && !together {
        // Each rank has come another way, and nothing tells them the lowest step that all have completed.
        let why = "ranks that do not work together cannot agree on one; see --peers";
        return Err(knobs.refuse("state", why).into());
    }
    // Where ranks work together, the first speaks for all.
    let first = rank == 0 || !together;
    let keeps = state.is_some();
    let state = state.filter(|_| first);
    if let Some(state) = state.as_deref().map(State::read).transpose()?.flatten() {
        builder = builder.resume(state);
    }
    let show = ProgressMode::of(&knobs, rank)?;
    let ready = builder.prepare_with(progress::listing(show, &options.target))?;
    if let Some(path) = &state {
        keep_out(path, ready.prepared()).map_err(|why| knobs.refuse("state", why))?;
    }
    let passes: Vec<u64> = ready.prepared().run().passes().map(|pass| pass.batches).collect();
    let mut out = output::stdout();
    if !json && first {
        text::heading(&mut out, ready.prepared(), node_ranks)?;
        if passes.iter().all(|&batches| batches == 0) {
            writeln!(out, "this run is complete; raise --epochs to continue")?;
        }
    }
    let who = if together { format!("rank {rank} of {world_size}: ") } else { String::new() };
    let loader = ready.start();
    // From here on there is something to be saved. The first time at once, so that a path that cannot be written is
    // found out before hours of work.
    let keeper = Keeper::new(state, keeps)?;
    keeper.keep(&loader)?;
    let work = WorkProgress::new(show, "starting", 0, "batches");
    let mut session = Session { loader, keeper, compute, wanted, work, seen: Vec::new() };
    let mut shown = None;
    let mut ended = None;
    for batches in passes.into_iter().filter(|&batches| batches > 0) {
        let pass = session.pass(batches);
        // Also of a run that has failed: what was delivered need not be delivered again.
        let kept = session.keeper.keep(&session.loader);
        ended = pass?;
        kept?;
        if !json && (first || wanted.digest || wanted.ids) {
            // The pass that was just taken, if anything of it was.
            let last = session.report().epochs.pop();
            if let Some(last) = last.filter(|last| shown != Some((last.epoch, last.phase.clone()))) {
                text::line(&mut out, &who, &last)?;
                shown = Some((last.epoch, last.phase));
            }
            out.flush()?;
        }
        if ended.is_some() {
            break;
        }
    }
    let left = ranks::leave(&session.loader, session.keeper.signals.as_ref());
    // Once more: by now all ranks have said how far they have come.
    session.keeper.keep(&session.loader)?;
    let all = left?;
    let ended = ended.or_else(|| session.keeper.signalled().filter(|_| together));
    let report = Report { all_ranks: all, ..session.end()? };
    if let Some((path, _)) = knobs.get("report-file") {
        write_report(&path.replace("%r", &rank.to_string()), &report)?;
    } else if json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else if first {
        text::total(&mut out, &report)?;
    }
    out.flush()?;
    // The report says so too, but whoever skips a few unreadable samples does not mean all of them.
    let delivered = report.epochs.iter().map(|epoch| epoch.samples).sum::<u64>();
    if ended.is_none() && delivered == 0 && report.skipped > 0 {
        bail!(
            "no sample could be read, and all {} were skipped; is the dataset where it was when it was indexed?",
            report.skipped
        );
    }
    Ok(ended.unwrap_or(ExitCode::SUCCESS))
}

/// Writes a report to a file of its own: what several ranks write to one pipe is mixed where it is long.
fn write_report(path: &str, report: &Report) -> Result<()> {
    let mut text = serde_json::to_vec(report)?;
    text.push(b'\n');
    std::fs::write(path, text).with_context(|| format!("the report cannot be written to {path}"))
}

/// A state that lies in a dataset would be a sample of it the next time that it is listed.
fn keep_out(state: &Path, prepared: &Prepared) -> Result<(), String> {
    let Some(name) = state.file_name() else { return Err("expected a file name".to_owned()) };
    let parent = state.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A directory that is not there is found out when the state is written.
    let Ok(parent) = parent.canonicalize() else { return Ok(()) };
    for catalog in prepared.catalogs() {
        let base = catalog.base_url();
        let inside = Path::new(base.strip_prefix("file://").unwrap_or(base))
            .canonicalize()
            .is_ok_and(|dataset| parent.starts_with(dataset));
        if inside && !name.as_encoded_bytes().starts_with(b".") {
            return Err(format!(
                "it lies in the dataset {base} and would be a sample of it; keep it elsewhere"
            ));
        }
    }
    Ok(())
}

/// The run from the trainer's side: takes batches, computes, remembers what it saw.
struct Session {
    loader: Loader,
    keeper: Keeper,
    compute: Duration,
    wanted: Wanted,
    work: WorkProgress,
    seen: Vec<Seen>,
}

impl Session {
    /// Takes one pass's batches; ends early, with the exit code, when a signal has come.
    fn pass(&mut self, batches: u64) -> Result<Option<ExitCode>> {
        for number in 0..batches {
            // Here the step before is complete: what has been taken has been computed on.
            let batch = loop {
                if let Some(code) = self.keeper.signalled() {
                    return Ok(Some(code));
                }
                match self.loader.next_timeout(NAP) {
                    Err(error) if error.kind() == LoadErrorKind::Timeout => {}
                    next => break next.map_err(Error::from)?,
                }
            };
            let Some(batch) = batch else { break };
            if number == 0 {
                tracing::debug!(epoch = batch.epoch(), phase = %batch.phase(), "first batch");
                self.begin_pass(&batch);
                self.work.next(format!("epoch {} {}", batch.epoch(), batch.phase()), batches, "batches");
            }
            self.work.step();
            if let Some(seen) = self.seen.last_mut() {
                seen.see(&batch);
            }
            drop(batch);
            if !self.compute.is_zero() {
                std::thread::sleep(self.compute);
            }
            self.loader.step_done();
        }
        Ok(None)
    }

    /// Notes that a pass begins whose first batch this is.
    fn begin_pass(&mut self, batch: &Batch) {
        if !self.wanted.digest && !self.wanted.ids {
            return;
        }
        if self.seen.len() > Report::MOST_EPOCHS {
            let report = self.loader.report();
            self.seen.retain(|seen| report.epochs.iter().any(|epoch| seen.is_of(epoch)));
        }
        self.seen.push(Seen::new(batch, self.wanted));
    }

    fn report(&self) -> Report {
        finish(self.loader.report(), &self.seen)
    }

    /// Ends the run in order; the last report of it.
    fn end(self) -> Result<Report> {
        Ok(finish(self.loader.close()?, &self.seen))
    }
}

/// Keeps the run's state in a file, if one was named and this rank is the one to write it.
struct Keeper {
    path: Option<PathBuf>,
    signals: Option<Signals>,
}

impl Keeper {
    /// Where no state is kept, signals end the program as they always do: there is nothing to be saved.
    fn new(path: Option<PathBuf>, keeps: bool) -> Result<Self> {
        Ok(Self { path, signals: keeps.then(Signals::watch).transpose()? })
    }

    fn keep(&self, loader: &Loader) -> Result<()> {
        // Asked for in any case: others learn from it how far this rank has come.
        let state = loader.state();
        match &self.path {
            Some(path) => Ok(state.write(path)?),
            None => Ok(()),
        }
    }

    fn signalled(&self) -> Option<ExitCode> {
        self.signals.as_ref()?.received()
    }
}

#[derive(Clone, Copy)]
struct Wanted {
    digest: bool,
    ids: bool,
}

/// What was seen of one pass, beyond what the loader's own report says.
struct Seen {
    epoch: u64,
    phase: String,
    digest: Option<Sha256>,
    ids: Option<Vec<u64>>,
}

impl Seen {
    /// Nothing yet, of the pass that `batch` is of.
    fn new(batch: &Batch, wanted: Wanted) -> Self {
        let (epoch, phase) = (batch.epoch(), batch.phase().to_string());
        Self { epoch, phase, digest: wanted.digest.then(Sha256::new), ids: wanted.ids.then(Vec::new) }
    }

    /// Whether `report` is of this pass alone.
    fn is_of(&self, report: &EpochReport) -> bool {
        (report.passes, report.epoch, &report.phase) == (1, self.epoch, &self.phase)
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
    let mut seen = seen.iter();
    // Both are in order. What sums up several passes has neither digest nor ids.
    for epoch in report.epochs.iter_mut().filter(|epoch| epoch.passes == 1) {
        let Some(seen) = seen.find(|seen| seen.is_of(epoch)) else { continue };
        epoch.digest = seen.digest.clone().map(|digest| hex(&digest.finalize()));
        epoch.ids.clone_from(&seen.ids);
    }
    report
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
