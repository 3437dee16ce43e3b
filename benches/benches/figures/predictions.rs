//! The predicted duration of epochs compared with the measured one. Origins with a limited
//! bandwidth and a latency, in real time, are measured as by `foreread calibrate`, then planned,
//! then read.
//!
//! Only epochs of a second or more that the origin limits are compared, because there are no
//! promises for others.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use foreread::calibration::Calibration;
use foreread::{Config, Disk, Loader, Memory, Registry};
use foreread_benches::table::{Figure, Goal};
use foreread_estimate::{CalibrateOptions, calibrate};
use foreread_planner::Resource;
use foreread_tier::{Backend, OpenContext, OpenOptions, OriginTier, TierError};
use foreread_tier_testing::FakeOrigin;

const SCHEME: &str = "fake";
const URL: &str = "fake://origin";

/// Bytes per sample.
const LENGTH: u64 = 100_000;

/// Time to read the whole dataset, so that half of it takes a second.
const SECONDS: u64 = 2;

/// The look-ahead is a tenth of the bytes that the origin delivers per second. That covers its
/// latency and is little compared with the uncached bytes.
const LOOK_AHEAD: u64 = 10;

/// Time to calibrate an origin.
const CALIBRATION_TIME: Duration = Duration::from_secs(8);

/// A backend with a fake origin, whose bandwidth does not grow with parallelism.
#[derive(Debug)]
struct FakeBackend(FakeOrigin);

#[async_trait::async_trait]
impl Backend for FakeBackend {
    fn schemes(&self) -> &[&str] {
        &[SCHEME]
    }

    async fn open(
        &self,
        _: &str,
        _: &OpenOptions,
        _: &OpenContext,
    ) -> Result<Arc<dyn OriginTier>, TierError> {
        Ok(Arc::new(self.0.clone()))
    }
}

pub fn figures() -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (megabytes, latency_ms) in [50, 100, 400].into_iter().flat_map(|rate| [(rate, 1), (rate, 10)]) {
        let rate = megabytes * 1_000_000;
        let samples = rate * SECONDS / LENGTH;
        let origin = FakeOrigin::uniform(samples, LENGTH)
            .with_zeroes()
            .with_bandwidth(rate)
            .with_latency(Duration::from_millis(latency_ms));
        let registry = Registry::with_defaults().register(FakeBackend(origin));
        let directory = tempfile::tempdir()?;
        let mut options = CalibrateOptions::default();
        (options.target, options.time) = (Some(URL.to_owned()), CALIBRATION_TIME);
        options.disks = vec![directory.path().to_owned()];
        let calibration = Arc::new(calibrate(options, registry.clone(), |_| ())?);
        let (all, half) = (2 * samples * LENGTH, samples * LENGTH / 2);
        let disk = |bytes| Some(Disk { directory: directory.path().to_owned(), bytes, shared: false });
        for (tiers, memory, disk) in [
            ("memory for all", all, None),
            ("memory for half", half, None),
            ("no tiers", 0, None),
            ("a disk for all", 0, disk(all)),
            ("a disk for half", 0, disk(half)),
        ] {
            let about = format!("{megabytes} MB/s, {latency_ms} ms, {tiers}");
            let caches = (memory, disk);
            figures.extend(compare(&about, caches, rate / LOOK_AHEAD, &calibration, &registry)?);
        }
    }
    Ok(figures)
}

fn compare(
    about: &str,
    (memory, disk): (u64, Option<Disk>),
    look_ahead: u64,
    calibration: &Arc<Calibration>,
    registry: &Registry,
) -> Result<Vec<Figure>> {
    let mut config = Config::default();
    (config.memory, config.epochs, config.look_ahead) = (Memory::Bytes(memory), 3, look_ahead);
    // A previous run's copies would make the first epoch warm.
    if let Some(disk) = &disk {
        std::fs::remove_dir_all(&disk.directory)?;
    }
    config.disk.extend(disk);
    // Several batches fit in the smallest look-ahead.
    config.batch_size = 16;
    config.calibration = Some(Arc::clone(calibration));
    let ready = Loader::builder_with(URL, config).registry(registry.clone()).prepare()?;
    let forecast = ready.prepared().forecast()?.unwrap_or_default();
    let loader = ready.start();
    for batch in &loader {
        batch?;
    }
    let mut figures = Vec::new();
    for (epoch, predicted) in loader.report().epochs.iter().zip(&forecast) {
        let origin_binds = matches!(
            predicted.limiting,
            Resource::OriginBandwidth | Resource::OriginClient | Resource::OriginRequests
        );
        if !origin_binds || epoch.seconds < 1.0 && predicted.seconds() < 1.0 {
            continue;
        }
        let what = format!("{about}: epoch {}, measured / predicted", epoch.epoch + 1);
        // The ratio treats too slow and too fast epochs alike.
        let ratio = epoch.seconds / predicted.seconds();
        figures.push(Figure::new(what, Goal::AtMost(1.1), ratio.max(1.0 / ratio), "times").note(format!(
            "{:.2} s, {:.2} s predicted",
            epoch.seconds,
            predicted.seconds()
        )));
    }
    Ok(figures)
}
