//! Settings as typed values.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use foreread::calibration::Calibration;
use foreread::size::{ByteRate, ByteSize};
use foreread::{Config, Deal, Disk, Format, OnError, Result};

use crate::knobs::Knobs;

/// Converts settings to their types. Unset ones stay as in [`Config::default`].
///
/// # Errors
/// If a value does not parse, is out of range, or contradicts another. The message names the
/// setting and its source.
pub fn config(knobs: &Knobs) -> Result<Config> {
    let mut config = Config::default();
    let compute_ms: f64 = knobs.parse("compute-ms")?.unwrap_or(0.0);
    config.compute = Duration::try_from_secs_f64(compute_ms / 1e3)
        .map_err(|_| knobs.refuse("compute-ms", "expected a number of milliseconds, at least 0"))?;
    let dealt = knobs.parse::<DealSetting>("deal")?.unwrap_or_default();
    (config.deal, config.locality) = (dealt.deal, dealt.locality);
    config.batch_size = knobs.parse("batch-size")?.unwrap_or(config.batch_size);
    config.epochs = knobs.parse("epochs")?.unwrap_or(config.epochs);
    config.seed = knobs.parse("seed")?.unwrap_or(config.seed);
    config.sampler = knobs.parse("sampler")?.unwrap_or(config.sampler);
    config.drop_last = knobs.parse("drop-last")?.unwrap_or(config.drop_last);
    config.memory = knobs.parse("memory")?.unwrap_or(config.memory);
    config.disk = knobs.parse::<DisksSetting>("disk")?.map_or(config.disk, |disks| disks.0);
    config.look_ahead = knobs.parse::<ByteSize>("look-ahead")?.map_or(config.look_ahead, |size| size.0);
    config.rank = knobs.parse("rank")?.unwrap_or(config.rank);
    config.world_size = knobs.parse("world-size")?.unwrap_or(config.world_size);
    config.origin_limit = knobs.parse::<ByteRate>("origin-limit")?.map(|rate| rate.0);
    config.origin_parallelism = knobs.parse("origin-parallelism")?;
    config.calibration = calibration(knobs)?;
    config.format = format(knobs)?;
    config.on_error = knobs.parse::<OnErrorSetting>("on-error")?.map_or(config.on_error, |text| text.0);
    config.validate = knobs.get("validate").map(|(value, _)| value.to_owned());
    if knobs.get("rank").is_none() && config.world_size > 1 {
        return Err(
            knobs.refuse("world-size", "needs rank, too: which rank is this? (rank, or the launcher's RANK)")
        );
    }
    config.check().map_err(|(name, why)| knobs.refuse(name, why))?;
    Ok(config)
}

/// The setting `format`. `None` detects the format from the objects' names.
///
/// # Errors
/// If there is no such format.
pub fn format(knobs: &Knobs) -> Result<Option<Format>> {
    let Some((name, _)) = knobs.get("format").filter(|(name, _)| *name != "auto") else { return Ok(None) };
    let why = "expected auto, files, tar, tfrecord or zip";
    Format::from_name(name).map(Some).ok_or_else(|| knobs.refuse("format", why))
}

fn calibration(knobs: &Knobs) -> Result<Option<Arc<Calibration>>> {
    let Some((path, _)) = knobs.get("calibration") else { return Ok(None) };
    let read = crate::calibration::read(Path::new(path));
    read.map(|read| Some(Arc::new(read))).map_err(|error| knobs.refuse("calibration", error))
}

/// A setting with one directory per line.
struct DisksSetting(Vec<Disk>);

impl FromStr for DisksSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.lines().map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

/// The setting `deal`: an arithmetic dealing, or the planner's.
#[derive(Default)]
struct DealSetting {
    deal: Deal,
    locality: bool,
}

impl FromStr for DealSetting {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let locality = text == "locality";
        let deal = if locality { Ok(Deal::default()) } else { text.parse() };
        deal.map(|deal| Self { deal, locality }).map_err(|_| "expected torch, blocks or locality")
    }
}

struct OnErrorSetting(OnError);

impl FromStr for OnErrorSetting {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "fail" => Ok(Self(OnError::Fail)),
            "skip" => Ok(Self(OnError::Skip)),
            "substitute" => Ok(Self(OnError::Substitute)),
            _ => Err("expected fail, skip or substitute"),
        }
    }
}
