//! The part of `foreread plan` for programs that are not changed: the opens that `foreread run`
//! would serve, and its reads and writes.
//!
//! The figures come from the simulator, which drives the rule of `foreread run` itself. At most
//! [`MOST_FILES`] files are simulated, of equal length: shares hardly depend on the number of
//! files. The price is an error of about .005 in the shares of larger datasets.
//!
//! A budget of writes allows a number of such epochs per day. Its effect on more frequent epochs
//! depends on their time, so it is only known with `--compute-ms`.

use std::fmt;
use std::time::Duration;

use anyhow::Result;
use foreread::plan::Sizes;
use foreread::size::ByteSize;
use foreread::{Catalog, Config, Memory, SampleId};
use foreread_settings::Knobs;
use foreread_simulator::{FileOrder, FilesComparison, FilesPolicy, FilesScenario};
use serde::Serialize;

use crate::arguments::Plan;

/// The most simulated files.
const MOST_FILES: u64 = 20_000;

/// The most simulated epochs. Those after the first are alike.
const MOST_EPOCHS: u64 = 5;

/// A copy takes whole blocks.
const BLOCK: u64 = 4096;

/// The seconds of a day, and of an epoch where no time matters.
const DAY: f64 = 86_400.0;

/// The plan of `foreread run` on one node.
#[derive(Debug, Serialize)]
pub struct UnchangedReport {
    files: u64,
    bytes: u64,
    capacity_bytes: u64,
    /// The part of the files that have room.
    cache: f64,
    /// The lower bound of an epoch after the first.
    floor_origin_bytes: u64,
    /// If writes are not limited.
    unlimited: ServedFiles,
    /// The limit of a disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<WriteBudget>,
}

/// An epoch after the first.
#[derive(Debug, Serialize)]
struct ServedFiles {
    /// The part of the opens that find a copy.
    served: f64,
    origin_bytes: u64,
    written_bytes: u64,
}

/// The bytes that may be written to a disk.
#[derive(Debug, Serialize)]
struct WriteBudget {
    /// As a part of the disk.
    writes_per_day: f64,
    bytes_per_day: u64,
    /// Epochs per day that may write without limit. `None`: any number, nothing is written.
    epochs_per_day: Option<f64>,
    /// If the time of an epoch is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch_seconds: Option<f64>,
    /// An epoch of this time within the budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    limited: Option<ServedFiles>,
}

/// The files that a program opens.
#[derive(Clone, Copy, Debug)]
pub struct OpenedFiles {
    files: u64,
    bytes: u64,
    /// The bytes that their copies take.
    footprint: u64,
    /// Samples of an epoch, for its time.
    samples: u64,
}

impl OpenedFiles {
    /// Each sample is a file.
    pub fn samples(sizes: &Sizes) -> Self {
        let files = sizes.len();
        let copy = |id: u64| sizes.bytes(SampleId(id)).div_ceil(BLOCK).saturating_mul(BLOCK);
        let footprint = match sizes.is_uniform() && files > 0 {
            true => copy(0).saturating_mul(files),
            false => (0..files).map(copy).fold(0, u64::saturating_add),
        };
        Self { files, bytes: sizes.total(), footprint, samples: files }
    }

    /// The files of a dataset, as they are stored: samples or shards.
    pub fn of(catalog: &Catalog) -> Self {
        let all = Self::samples(&catalog.stored_sizes().unwrap_or_else(|| catalog.sizes()));
        let files = catalog.objects();
        if files == all.files {
            return all;
        }
        // The last block of a shard is half full on average.
        Self { files, footprint: all.bytes.saturating_add(files.saturating_mul(BLOCK / 2)), ..all }
    }
}

impl UnchangedReport {
    /// Simulates the run that the settings describe.
    ///
    /// # Errors
    /// Settings that `foreread run` does not take.
    pub fn new(
        options: &Plan,
        knobs: &Knobs,
        config: &Config,
        files: OpenedFiles,
        compute: Duration,
    ) -> Result<Self> {
        let writes_per_day = options.disk_writes_per_day;
        if !(writes_per_day.is_finite() && writes_per_day >= 0.0) {
            let problem = format!("--disk-writes-per-day {writes_per_day}: expected a part, at least 0");
            return Err(foreread::Error::new(foreread::ErrorKind::Usage, problem).into());
        }
        let (capacity, is_disk) = match (&config.disk[..], &config.memory) {
            ([disk], Memory::Auto) => (disk.bytes, true),
            ([], Memory::Bytes(bytes)) => (*bytes, false),
            _ => {
                let problem = "--unchanged needs one --disk, or --memory, as `foreread run` does";
                return Err(knobs.refuse("disk", problem).into());
            }
        };
        let cache = if files.footprint == 0 { 1.0 } else { capacity as f64 / files.footprint as f64 };
        let cache = cache.min(1.0);
        let simulated = files.files.clamp(1, MOST_FILES);
        let scenario = FilesScenario {
            name: String::new(),
            seed: config.seed,
            files: simulated as u32,
            bytes: files.bytes / simulated,
            cache,
            order: FileOrder::Unknown,
            epochs: config.epochs.clamp(2, MOST_EPOCHS) as u32,
            seconds: DAY,
            writes_per_day: None,
        };
        let (floor_origin_bytes, unlimited) = ServedFiles::simulate(scenario.clone())?;
        let batches = files
            .samples
            .div_ceil(config.batch_size.max(1).saturating_mul(u64::from(config.rank.ranks.max(1))));
        let seconds = compute.as_secs_f64() * batches as f64;
        let limited = match is_disk && seconds > 0.0 {
            true => {
                let limited = FilesScenario { seconds, writes_per_day: Some(writes_per_day), ..scenario };
                Some(ServedFiles::simulate(limited)?.1)
            }
            false => None,
        };
        let bytes_per_day = writes_per_day * capacity as f64;
        let budget = is_disk.then(|| WriteBudget {
            writes_per_day,
            bytes_per_day: bytes_per_day as u64,
            epochs_per_day: (unlimited.written_bytes > 0)
                .then(|| bytes_per_day / unlimited.written_bytes as f64),
            epoch_seconds: limited.is_some().then_some(seconds),
            limited,
        });
        let OpenedFiles { files, bytes, .. } = files;
        Ok(Self { files, bytes, capacity_bytes: capacity, cache, floor_origin_bytes, unlimited, budget })
    }
}

impl ServedFiles {
    /// The lower bound of an epoch's reads, and the epoch.
    fn simulate(scenario: FilesScenario) -> Result<(u64, Self)> {
        let compared = FilesComparison::run(scenario, &[FilesPolicy::CopiesAhead], 1, &mut |_, _| ())?;
        let mean =
            |of: fn(&foreread_simulator::FilesOutcome) -> f64| compared.outcomes().iter().map(of).sum();
        let (served, origin, written): (f64, f64, f64) =
            (mean(|it| it.served), mean(|it| it.origin_bytes), mean(|it| it.written_bytes));
        let epoch = Self { served, origin_bytes: origin as u64, written_bytes: written as u64 };
        Ok((compared.bound(), epoch))
    }
}

impl fmt::Display for ServedFiles {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { served, origin_bytes, written_bytes } = self;
        let (origin, written) = (ByteSize(*origin_bytes), ByteSize(*written_bytes));
        write!(out, "{:.1} % of the opens, {origin} from storage, {written} written", 100.0 * served)
    }
}

impl fmt::Display for UnchangedReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (files, bytes, room) = (self.files, ByteSize(self.bytes), ByteSize(self.capacity_bytes));
        let cache = 100.0 * self.cache;
        writeln!(out, "foreread run {files} files, {bytes}, of which {cache:.1} % have room in {room}")?;
        let floor = ByteSize(self.floor_origin_bytes);
        writeln!(
            out,
            "             later epochs in an unknown order: {} (lower bound {floor})",
            self.unlimited
        )?;
        let Some(budget) = &self.budget else { return Ok(()) };
        let (part, day) = (budget.writes_per_day, ByteSize(budget.bytes_per_day));
        match budget.epochs_per_day {
            Some(epochs) => writeln!(
                out,
                "             {day} may be written per day (--disk-writes-per-day {part}): enough for \
                 {epochs:.2} such epochs per day"
            )?,
            None => {
                writeln!(out, "             {day} may be written per day (--disk-writes-per-day {part})")?
            }
        }
        match (budget.epoch_seconds, &budget.limited) {
            (Some(seconds), Some(limited)) => {
                writeln!(out, "             in epochs of {seconds:.0} s within this budget: {limited}")
            }
            _ if budget.epochs_per_day.is_some() => {
                writeln!(
                    out,
                    "             in shorter epochs at least {cache:.1} % of the opens (--compute-ms)"
                )
            }
            _ => Ok(()),
        }
    }
}
