//! Settings as typed values.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use foreread::calibration::Calibration;
use foreread::size::{ByteRate, ByteSize};
use foreread::{Config, Deal, Disk, Format, OnError, Result};

use crate::calibration;
use crate::knobs::Knobs;

/// Converts settings to their types. Unset ones stay as in [`Config::default`].
///
/// # Errors
/// If a value does not parse, is out of range, or contradicts another. The message names the
/// setting and its source.
pub fn config(knobs: &Knobs) -> Result<Config> {
    let mut config = Config::default();
    let dealt = knobs.parse::<DealSetting>("deal")?.unwrap_or_default();
    (config.deal, config.locality) = (dealt.deal, dealt.locality);
    config.batch_size = knobs.parse("batch-size")?.unwrap_or(config.batch_size);
    config.epochs = knobs.parse("epochs")?.unwrap_or(config.epochs);
    config.seed = knobs.parse("seed")?.unwrap_or(config.seed);
    if let Some(group) = knobs.parse::<String>("order-group")? {
        config.seed = foreread::order_group_seed(&group);
    }
    config.sampler = knobs.parse("sampler")?.unwrap_or(config.sampler);
    config.drop_last = knobs.parse("drop-last")?.unwrap_or(config.drop_last);
    config.memory = knobs.parse("memory")?.unwrap_or(config.memory);
    config.disk = knobs.parse::<DisksSetting>("disk")?.map_or(config.disk, |disks| disks.0);
    config.agent = knobs.parse("agent")?.unwrap_or(config.agent);
    config.memory_alone =
        knobs.parse::<CacheSize>("memory-alone")?.map_or(config.memory_alone, |size| size.0);
    config.job_name = knobs.parse("job-name")?;
    let look_ahead = knobs.parse::<AutoSetting<ByteSize>>("look-ahead")?.and_then(|look_ahead| look_ahead.0);
    config.look_ahead = look_ahead.map_or(config.look_ahead, |size| size.0);
    config.rank.rank = knobs.parse("rank")?.unwrap_or(config.rank.rank);
    config.rank.ranks = knobs.parse("world-size")?.unwrap_or(config.rank.ranks);
    config.origin_limit = knobs.parse::<ByteRate>("origin-limit")?.map(|rate| rate.0);
    config.origin_parallelism = origin_parallelism(knobs)?;
    config.patience =
        knobs.parse::<AutoSetting<SecondsSetting>>("patience")?.and_then(|most| most.0).map(|it| it.0);
    config.recall = knobs.parse("recall")?.unwrap_or(config.recall);
    config.calibration = calibration(knobs)?;
    config.format = format(knobs)?;
    config.on_error = knobs.parse::<OnErrorSetting>("on-error")?.map_or(config.on_error, |text| text.0);
    config.validate = knobs.get("validate").map(|(value, _)| value.to_owned());
    if knobs.get("rank").is_none() && config.rank.ranks > 1 {
        return Err(
            knobs.refuse("world-size", "needs rank, too: which rank is this? (rank, or the launcher's RANK)")
        );
    }
    config.check().map_err(|(name, why)| knobs.refuse(name, why))?;
    Ok(config)
}

/// The most reads from storage at once. `None`: found while reading.
///
/// # Errors
/// If the value is neither a number nor `auto`.
pub fn origin_parallelism(knobs: &Knobs) -> Result<Option<usize>> {
    Ok(knobs.parse::<AutoSetting<_>>("origin-parallelism")?.and_then(|most| most.0))
}

/// The calibration: the file that is set, or the one in the working directory.
///
/// A file that was only found must not end a run. So an unreadable one is a warning. Its speeds
/// count for the dataset and the directories that it measured, as the speeds of a set file do. It
/// may be from another machine: runs adapt their parallelism to their own measurements, and only
/// predicted times would be wrong.
fn calibration(knobs: &Knobs) -> Result<Option<Arc<Calibration>>> {
    let path = match knobs.get("calibration") {
        None | Some(("off", _)) => return Ok(None),
        Some(("auto", _)) => {
            let found = knobs.directory().join(calibration::FILE_NAME);
            if !found.is_file() {
                return Ok(None);
            }
            return match calibration::read(&found) {
                Ok(read) => {
                    tracing::info!("{} was found, and its speeds are used", found.display());
                    Ok(Some(Arc::new(read)))
                }
                Err(error) => {
                    tracing::warn!("{error}; it is ignored");
                    Ok(None)
                }
            };
        }
        Some((path, _)) => path,
    };
    let read = calibration::read(Path::new(path));
    read.map(|read| Some(Arc::new(read))).map_err(|error| knobs.refuse("calibration", error))
}

/// The format of the objects. `None`: detected.
///
/// # Errors
/// If this build does not know the format.
pub fn format(knobs: &Knobs) -> Result<Option<Format>> {
    match knobs.get("format") {
        None | Some(("auto", _)) => Ok(None),
        Some((name, _)) => match Format::from_name(name.trim()) {
            Some(format) => Ok(Some(format)),
            None => Err(knobs.refuse("format", "this build does not read it")),
        },
    }
}

/// The size of a cache, without a forgotten unit.
struct CacheSize(u64);

impl FromStr for CacheSize {
    type Err = foreread::size::ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        ByteSize::of_cache(text).map(|size| Self(size.0))
    }
}

/// A value, or `auto`.
struct AutoSetting<T>(Option<T>);

impl<T: FromStr> FromStr for AutoSetting<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        match text {
            "auto" => Ok(Self(None)),
            value => value.parse().map(|value| Self(Some(value))),
        }
    }
}

/// A whole number of seconds.
struct SecondsSetting(Duration);

impl FromStr for SecondsSetting {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let seconds = text.parse().map_err(|_| "expected auto or SECONDS, e.g. 3600")?;
        Ok(Self(Duration::from_secs(seconds)))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn given(directory: &Path, arguments: &[(&'static str, &str)]) -> Result<Config> {
        let arguments = arguments.iter().map(|(name, value)| (*name, (*value).to_owned()));
        config(&Knobs::gather(arguments, |_| None, &directory.join("foreread.toml"))?)
    }

    const MEASURED: &str = "version = 1\nmade = 1790000000\n";

    #[test]
    fn auto_values_are_those_of_the_default_config() {
        let directory = tempfile::tempdir().unwrap();
        let default = Config::default();
        let auto = given(
            directory.path(),
            &[
                ("look-ahead", "auto"),
                ("origin-parallelism", "auto"),
                ("calibration", "auto"),
                ("format", "auto"),
            ],
        )
        .unwrap();
        assert_eq!(auto.look_ahead, default.look_ahead);
        assert_eq!((auto.origin_parallelism, auto.format), (None, None));
        assert!(auto.calibration.is_none());
        let set = given(directory.path(), &[("look-ahead", "1MiB"), ("origin-parallelism", "7")]).unwrap();
        assert_eq!((set.look_ahead, set.origin_parallelism), (1 << 20, Some(7)));
        let wrong = given(directory.path(), &[("look-ahead", "some")]).unwrap_err().to_string();
        assert!(wrong.starts_with("--look-ahead some (argument): "), "{wrong}");
        let hour = given(directory.path(), &[("patience", "3600")]).unwrap();
        assert_eq!(hour.patience, Some(Duration::from_secs(3600)));
        let wrong = given(directory.path(), &[("patience", "1h")]).unwrap_err().to_string();
        assert_eq!(wrong, "--patience 1h (argument): expected auto or SECONDS, e.g. 3600");
    }

    /// Guards against this fault: a shell does not replace a variable in single quotes, and the
    /// cache was in a directory of that name.
    #[test]
    fn variable_in_the_name_of_a_disk_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let wrong = given(directory.path(), &[("disk", "$TMPDIR=1GB")]).unwrap_err().to_string();
        assert!(wrong.contains("invalid disk '$TMPDIR=1GB': variables are not replaced here"), "{wrong}");
    }

    #[test]
    fn calibration_is_found_next_to_the_settings() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(calibration::FILE_NAME);
        std::fs::write(&path, MEASURED).unwrap();
        let found = given(directory.path(), &[]).unwrap().calibration.unwrap();
        assert_eq!(found.made, 1_790_000_000);
        assert!(given(directory.path(), &[("calibration", "off")]).unwrap().calibration.is_none());
        // A broken file that was only found does not end a run. A broken file that is set does.
        std::fs::write(&path, "version = 9").unwrap();
        assert!(given(directory.path(), &[]).unwrap().calibration.is_none());
        let set = given(directory.path(), &[("calibration", path.to_str().unwrap())]).unwrap_err();
        assert!(set.to_string().starts_with("--calibration "), "{set}");
    }

    #[test]
    fn locality_is_never_automatic() {
        let directory = tempfile::tempdir().unwrap();
        let config = given(directory.path(), &[("rank", "0"), ("world-size", "8")]).unwrap();
        assert_eq!((config.deal, config.locality), (Deal::Torch, false));
    }
}
