//! `foreread load`: runs the loader like a trainer, and reports each epoch.

mod decode;
mod ranks;
pub mod text;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use foreread::plan::Prepared;
use foreread::report::{EpochReport, Report};
use foreread::{Batch, Error, LoadErrorKind, Loader, RankOf, Registry, State};
use foreread_settings::Knobs;
use sha2::{Digest, Sha256};

use self::decode::{DecodeReport, Decoding};
use self::text::EpochTable;
use crate::arguments::Load;
use crate::progress::{ProgressMode, WorkProgress};
use crate::signals::Signals;
use crate::{output, plots, progress, settings};

/// How often a wait for a batch checks for signals.
const SIGNAL_POLL: Duration = Duration::from_millis(50);

pub fn run(options: &Load, registry: Registry) -> Result<ExitCode> {
    let Some(knobs) = settings::gather(&options.settings)? else { return Ok(ExitCode::SUCCESS) };
    let json = settings::is_json(&knobs)?;
    let config = foreread_settings::config(&knobs)?;
    let compute = compute(&knobs)?;
    let wanted = RecordOptions { digest: knobs.value("digest")?, ids: knobs.value("ids")? };
    let state = knobs.get("state").map(|(path, _)| PathBuf::from(path));
    if state.as_deref().is_some_and(|path| path.file_name().is_none()) {
        return Err(knobs.refuse("state", "expected a file name").into());
    }
    let decoding = Decoding::new(&knobs, &config)?;
    let (RankOf { rank, ranks: world_size }, node_ranks) = (config.rank, config.ranks_on_node());
    let builder = Loader::builder_with(&options.target, config.clone()).compute_per_batch(compute);
    let builder = builder.registry(registry);
    let (mut builder, together) = ranks::gather(builder, &config, &knobs)?;
    if state.is_some() && world_size > 1 && !together {
        // Such ranks advance separately, and do not know the lowest step that all have completed.
        let why = "these ranks do not work together and cannot agree on one; start them with torchrun, \
                   mpirun or srun, or set FOREREAD_MEET to a directory that all ranks see, without \
                   --peers off";
        return Err(knobs.refuse("state", why).into());
    }
    // In a group, rank 0 reports for all.
    let first = rank == 0 || !together;
    let keeps = state.is_some();
    let state = state.filter(|_| first);
    // Until the end of the run: another run with this file would overwrite its position.
    let _lock = state.as_deref().map(State::lock).transpose()?;
    if let Some(state) = state.as_deref().map(State::read).transpose()?.flatten() {
        builder = builder.resume(state);
    }
    let show = ProgressMode::of(&knobs, rank);
    let plot = plots::file_of(rank, &knobs)?;
    let ready = builder.prepare_with(progress::listing(show, &options.target))?;
    if let Some(path) = &state {
        keep_out(path, ready.prepared()).map_err(|why| knobs.refuse("state", why))?;
    }
    let passes: Vec<u64> = ready.prepared().run().passes().map(|pass| pass.batches).collect();
    let mut out = output::stdout();
    if !json && first {
        text::heading(&mut out, ready.prepared(), node_ranks, &knobs)?;
        if passes.iter().all(|&batches| batches == 0) {
            output::complain("this run is complete; raise --epochs to continue");
        }
    }
    // Without digests and ids, rank 0 alone prints rows.
    let mixed = together && (wanted.digest || wanted.ids);
    let mut table = EpochTable::new(ready.prepared(), mixed.then_some(rank));
    let loader = ready.start();
    // The state is saved at once, so that an unwritable path is detected before hours of work.
    let state_file = StateFile::new(state, keeps)?;
    state_file.save(&loader)?;
    let work = WorkProgress::new(show, "starting", 0, "batches");
    let records = Vec::new();
    let mut session = TrainerSession { loader, state_file, compute, wanted, work, decoding, records };
    let mut shown = None;
    let mut ended = None;
    for batches in passes.into_iter().filter(|&batches| batches > 0) {
        let pass = session.pass(batches);
        // A failed run saves its state, too: delivered samples are not delivered again.
        let kept = session.state_file.save(&session.loader);
        ended = pass?;
        kept?;
        if !json && (first || wanted.digest || wanted.ids) {
            // The pass that has just ended, unless it had no batch.
            let last = session.report().epochs.pop();
            if let Some(last) = last.filter(|last| shown != Some((last.epoch, last.phase.clone()))) {
                table.row(&mut out, &last)?;
                shown = Some((last.epoch, last.phase));
            }
            out.flush()?;
        }
        if ended.is_some() {
            break;
        }
    }
    let left = ranks::leave(&session.loader, session.state_file.signals.as_ref());
    // Once more: by now rank 0 knows the steps of all ranks.
    let saved = session.state_file.save(&session.loader)?;
    let all = left?;
    let ended = ended.or_else(|| session.state_file.received().filter(|_| together));
    let notice = session.state_file.path.as_deref().filter(|_| ended.is_some() && !options.settings.quiet);
    let notice = notice.map(|path| {
        format!("stopped at {saved}; the state is in {}: the same command resumes there", path.display())
    });
    let (title, history) = (session.loader.catalogs()[0].base_url().to_owned(), session.loader.history());
    let decode = session.decoding.as_ref().map(Decoding::report);
    let report = LoadReport { report: Report { all_ranks: all, ..session.end()? }, decode };
    let file = knobs.get("report-file").map(|(path, _)| path.replace("%r", &rank.to_string()));
    if let Some(path) = &file {
        write_report(path, &report)?;
    }
    if !json && first {
        text::total(&mut out, &report.report)?;
        if let Some(decode) = &report.decode {
            writeln!(out, "{}", decode.text())?;
        }
    } else if json && file.is_none() {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    }
    out.flush()?;
    let report = report.report;
    // After the report, which a plot that cannot be written must not cost.
    if let Some(path) = plot {
        plots::run(&path, &title, &report, &history)?;
    }
    // The option to skip is for a few unreadable samples, and not for all of them.
    let delivered = report.epochs.iter().map(|epoch| epoch.samples).sum::<u64>();
    if ended.is_none() && delivered == 0 && report.skipped > 0 {
        bail!(
            "no sample could be read, and all {} were skipped; is the dataset where it was when it was \
             indexed?",
            report.skipped
        );
    }
    if let Some(notice) = notice {
        output::complain(&notice);
    }
    Ok(ended.unwrap_or(ExitCode::SUCCESS))
}

/// The report of a run, and of its decoding.
#[derive(serde::Serialize)]
struct LoadReport {
    #[serde(flatten)]
    report: Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    decode: Option<DecodeReport>,
}

/// The computation time of the simulated trainer, per batch.
pub fn compute(knobs: &Knobs) -> Result<Duration> {
    let milliseconds: f64 = knobs.value("compute-ms")?;
    let time = Duration::try_from_secs_f64(milliseconds / 1e3);
    Ok(time.map_err(|_| knobs.refuse("compute-ms", "expected a number of milliseconds, at least 0"))?)
}

/// Writes a report to a file: long reports of several ranks would mix in one pipe.
fn write_report(path: &str, report: &LoadReport) -> Result<()> {
    let mut text = serde_json::to_vec(report)?;
    text.push(b'\n');
    std::fs::write(path, text).with_context(|| format!("the report cannot be written to {path}"))
}

/// Refuses a state file inside of a dataset: the next listing would make it a sample.
fn keep_out(state: &Path, prepared: &Prepared) -> Result<(), String> {
    let is_hidden = state.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let parent = state.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A missing directory is reported when the state is written.
    let Ok(parent) = parent.canonicalize() else { return Ok(()) };
    for catalog in prepared.catalogs() {
        let base = catalog.base_url();
        let inside = Path::new(base.strip_prefix("file://").unwrap_or(base))
            .canonicalize()
            .is_ok_and(|dataset| parent.starts_with(dataset));
        if inside && !is_hidden {
            return Err(format!(
                "it lies in the dataset {base} and would be a sample of it; keep it elsewhere"
            ));
        }
    }
    Ok(())
}

/// The trainer: it takes batches, computes, and records digests and ids.
struct TrainerSession {
    loader: Loader,
    state_file: StateFile,
    compute: Duration,
    wanted: RecordOptions,
    work: WorkProgress,
    decoding: Option<Decoding>,
    records: Vec<PassRecord>,
}

impl TrainerSession {
    /// Takes the batches of one pass. Ends early, with the exit code, after a signal.
    fn pass(&mut self, batches: u64) -> Result<Option<ExitCode>> {
        for number in 0..batches {
            // Here the previous step is complete.
            let batch = loop {
                if let Some(code) = self.state_file.received() {
                    return Ok(Some(code));
                }
                match self.loader.next_timeout(SIGNAL_POLL) {
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
            if let Some(record) = self.records.last_mut() {
                record.add(&batch);
            }
            match &mut self.decoding {
                Some(decoding) => {
                    let catalog = self.loader.catalog(&batch);
                    decoding.add(batch, catalog)?;
                }
                None => drop(batch),
            }
            if !self.compute.is_zero() {
                std::thread::sleep(self.compute);
            }
            self.loader.step_done();
        }
        if let Some(decoding) = &mut self.decoding {
            decoding.wait_for(0)?;
        }
        Ok(None)
    }

    /// Begins the records of a pass, with its first batch.
    fn begin_pass(&mut self, batch: &Batch) {
        if !self.wanted.digest && !self.wanted.ids {
            return;
        }
        if self.records.len() > Report::MAX_EPOCHS {
            let report = self.loader.report();
            self.records.retain(|record| report.epochs.iter().any(|epoch| record.is_of(epoch)));
        }
        self.records.push(PassRecord::new(batch, self.wanted));
    }

    fn report(&self) -> Report {
        finish(self.loader.report(), &self.records)
    }

    /// Closes the run, and returns its final report.
    fn end(self) -> Result<Report> {
        Ok(finish(self.loader.close()?, &self.records))
    }
}

/// Saves the run's state in a file, if one is set and this rank writes it.
struct StateFile {
    path: Option<PathBuf>,
    signals: Option<Signals>,
}

impl StateFile {
    /// Without a state file, signals end the program as usual.
    fn new(path: Option<PathBuf>, keeps: bool) -> Result<Self> {
        Ok(Self { path, signals: keeps.then(Signals::watch).transpose()? })
    }

    fn save(&self, loader: &Loader) -> Result<State> {
        // On every rank: this call tells rank 0 how far this rank has come.
        let state = loader.state();
        if let Some(path) = &self.path {
            state.write(path)?;
        }
        Ok(state)
    }

    fn received(&self) -> Option<ExitCode> {
        self.signals.as_ref()?.received()
    }
}

#[derive(Clone, Copy)]
struct RecordOptions {
    digest: bool,
    ids: bool,
}

/// The digest and ids of one pass.
struct PassRecord {
    epoch: u64,
    phase: String,
    digest: Option<Sha256>,
    ids: Option<Vec<u64>>,
}

impl PassRecord {
    /// An empty record of the pass of `batch`.
    fn new(batch: &Batch, wanted: RecordOptions) -> Self {
        let (epoch, phase) = (batch.epoch(), batch.phase().to_string());
        Self { epoch, phase, digest: wanted.digest.then(Sha256::new), ids: wanted.ids.then(Vec::new) }
    }

    /// Whether `report` is of this pass alone.
    fn is_of(&self, report: &EpochReport) -> bool {
        (report.passes, report.epoch, &report.phase) == (1, self.epoch, &self.phase)
    }

    fn add(&mut self, batch: &Batch) {
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

fn finish(mut report: Report, records: &[PassRecord]) -> Report {
    let mut records = records.iter();
    // Both are in order. Sums of several passes have neither digest nor ids.
    for epoch in report.epochs.iter_mut().filter(|epoch| epoch.passes == 1) {
        let Some(record) = records.find(|record| record.is_of(epoch)) else { continue };
        epoch.digest = record.digest.clone().map(|digest| hex(&digest.finalize()));
        epoch.ids.clone_from(&record.ids);
    }
    report
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
