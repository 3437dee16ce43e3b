//! Settings as typed values.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use foreread::calibration::Calibration;
use foreread::size::{ByteRate, ByteSize};
use foreread::{Config, Deal, Disk, Format, OnError, Result};

use crate::calibration;
use crate::knobs::Knobs;
use crate::table::{KNOBS, Knob, find_knob};

/// Converts settings to their types. Unset ones stay as in [`Config::default`].
///
/// # Errors
/// If a value does not parse, is out of range, or contradicts another. The message names the
/// setting and its source.
pub fn config(knobs: &Knobs) -> Result<Config> {
    let mut config = Config::default();
    KNOBS.iter().try_for_each(|knob| apply(knobs, knob, &mut config))?;
    if knobs.get("calibration").is_some_and(|(value, _)| value.trim() == "auto") {
        config.calibration = found_calibration(knobs.directory());
    }
    if knobs.get("rank").is_none() && config.rank.ranks > 1 {
        return Err(
            knobs.refuse("world-size", "needs rank, too: which rank is this? (rank, or the launcher's RANK)")
        );
    }
    config.check().map_err(|(name, why)| knobs.refuse(name, why))?;
    Ok(config)
}

/// Converts these settings only, without a check of their meaning together. All others are as in
/// [`Config::default`].
///
/// # Errors
/// If a value does not parse.
pub fn config_of(knobs: &Knobs, names: &[&str]) -> Result<Config> {
    let mut config = Config::default();
    names.iter().filter_map(|name| find_knob(name)).try_for_each(|knob| apply(knobs, knob, &mut config))?;
    Ok(config)
}

/// Sets the value of one setting, unless it is `auto`.
fn apply(knobs: &Knobs, knob: &Knob, config: &mut Config) -> Result<()> {
    let (Some(apply), Some((value, _))) = (knob.apply, knobs.get(knob.name)) else { return Ok(()) };
    if knob.has_auto() && value.trim() == "auto" {
        return Ok(());
    }
    apply(config, value).map_err(|why| knobs.refuse(knob.name, why))
}

/// The calibration in the directory of the settings file.
///
/// A file that was only found must not end a run. So an unreadable one is a warning. Its speeds
/// count for the dataset and the directories that it measured, as the speeds of a set file do. It
/// may be from another machine: runs adapt their parallelism to their own measurements, and only
/// predicted times would be wrong.
fn found_calibration(directory: &Path) -> Option<Arc<Calibration>> {
    let found = directory.join(calibration::FILE_NAME);
    if !found.is_file() {
        return None;
    }
    match calibration::read(&found) {
        Ok(read) => {
            tracing::info!("{} was found, and its speeds are used", found.display());
            Some(Arc::new(read))
        }
        Err(error) => {
            tracing::warn!("{error}; it is ignored");
            None
        }
    }
}

/// Sets a field.
pub(crate) fn put<T>(field: &mut T, value: Result<T, String>) -> Result<(), String> {
    *field = value?;
    Ok(())
}

/// A value of a type that parses itself.
pub(crate) fn parsed<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|error: T::Err| error.to_string())
}

/// A number of bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    parsed::<ByteSize>(text).map(|size| size.0)
}

/// The size of a cache, without a forgotten unit.
pub(crate) fn cache_bytes(text: &str) -> Result<u64, String> {
    ByteSize::of_cache(text.trim()).map(|size| size.0).map_err(|error| error.to_string())
}

/// A number of bytes per second.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    parsed::<ByteRate>(text).map(|rate| rate.0)
}

/// A whole number of seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = parsed(text).map_err(|_| "expected auto or SECONDS, e.g. 3600")?;
    Ok(Duration::from_secs(seconds))
}

/// One directory per line.
pub(crate) fn disks(text: &str) -> Result<Vec<Disk>, String> {
    text.trim().lines().map(str::parse).collect()
}

/// The seed of a group's order.
pub(crate) fn order_group(name: &str) -> Result<u64, String> {
    Ok(foreread::order_group_seed(name.trim()))
}

/// An arithmetic dealing, or the planner's.
pub(crate) fn deal(config: &mut Config, text: &str) -> Result<(), String> {
    config.locality = text.trim() == "locality";
    config.deal = if config.locality { Deal::default() } else { parsed(text)? };
    Ok(())
}

/// The reaction to an unreadable sample. Other words are refused before.
pub(crate) fn on_error(text: &str) -> OnError {
    match text.trim() {
        "skip" => OnError::Skip,
        "substitute" => OnError::Substitute,
        _ => OnError::Fail,
    }
}

/// The format of the objects, if this build knows it.
pub(crate) fn format(name: &str) -> Result<Option<Format>, String> {
    let format = Format::from_name(name.trim());
    format.map(Some).ok_or_else(|| "this build does not read it".to_owned())
}

/// The calibration in a file.
pub(crate) fn calibration_file(path: &str) -> Result<Option<Arc<Calibration>>, String> {
    match path {
        "off" => Ok(None),
        path => calibration::read(Path::new(path))
            .map(|read| Some(Arc::new(read)))
            .map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(directory: &Path, arguments: &[(&'static str, &str)]) -> Result<Config> {
        let arguments = arguments.iter().map(|(name, value)| (*name, (*value).to_owned()));
        config(&Knobs::gather(arguments, |_| None, &directory.join("foreread.toml"))?)
    }

    /// The defaults of the table are those of the library, apart from the number of epochs, which
    /// has none there.
    #[test]
    fn config_without_settings_is_the_default_one() {
        let directory = tempfile::tempdir().unwrap();
        let mut expected = Config::default();
        expected.epochs = 2;
        let found = given(directory.path(), &[]).unwrap();
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
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
