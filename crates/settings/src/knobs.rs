//! Settings as text, each with its source.
//!
//! A setting (a *knob*) has one name (`look-ahead`), and its other names follow: `--look-ahead` on
//! the command line, `FOREREAD_LOOK_AHEAD` in the environment, `look-ahead = "1GiB"` in
//! `foreread.toml`. Settings are gathered as text first and converted once
//! ([`config`](crate::config())). So every bad value is reported with its source, and `--explain`
//! costs nothing. The price: types are checked a little later than by an argument parser.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use foreread::{Error, ErrorKind, Result};

/// Every knob of a run.
pub const KNOBS: &[Knob] = &[
    ("batch-size", Some("64"), "samples per batch"),
    ("epochs", Some("2"), "passes over the dataset"),
    ("seed", Some("0"), "the seed of the order"),
    ("sampler", Some("shuffle"), "shuffle, torch, feistel or sequential"),
    ("drop-last", Some("false"), "drop the rest that does not divide evenly, instead of padding"),
    (
        "deal",
        Some("torch"),
        "how ranks share an epoch: torch (strided), blocks, or locality (by where samples are cached)",
    ),
    ("validate", None, "a second dataset, read in order after every epoch"),
    ("memory", Some("auto"), "the memory tier of each rank"),
    ("disk", None, "the disk tier of this node: DIR=SIZE or DIR=SIZE,shared, one per line"),
    ("look-ahead", Some("256MiB"), "how many bytes are prefetched"),
    ("rank", None, "this process among the ranks"),
    ("world-size", None, "the number of ranks"),
    ("origin-limit", None, "the most bytes per second from storage"),
    ("origin-parallelism", None, "the most reads from storage at once"),
    ("calibration", None, "the file that `foreread calibrate` wrote"),
    ("compute-ms", Some("0"), "how long the trainer computes on each batch"),
    ("on-error", Some("fail"), "what to do if a sample cannot be read: fail, skip or substitute"),
];

/// The command's own settings, in addition to those of a run. Other readers of the same
/// `foreread.toml` ignore them.
pub const COMMAND_KNOBS: &[Knob] = &[
    ("report", Some("text"), "text or json; for simulate also csv"),
    ("progress", Some("auto"), "whether long work shows progress: auto (rank 0 only) or off"),
    ("digest", Some("false"), "add each epoch's SHA-256 to the report"),
    ("ids", Some("false"), "add each epoch's delivered ids to the report"),
    ("state", None, "the file of the run's state"),
    ("report-file", None, "the report's file instead of standard output; %r is the rank"),
    ("peers", Some("auto"), "whether ranks share their caches: auto or off"),
    ("samples", None, "the number of samples, without a dataset"),
    ("sample-bytes", None, "the length of each"),
    ("epoch", Some("0"), "which epoch's order to print"),
    ("format", None, "the format of objects: auto, files, tar, tfrecord or zip"),
    ("include", None, "globs of files to index"),
    ("exclude", None, "globs of files to leave out"),
    ("seconds", Some("30"), "how long a calibration may take"),
    ("origin-bytes", Some("1GiB"), "the most bytes that a calibration reads from storage"),
    ("policy", Some("all"), "the policy to simulate"),
    ("plot", None, "the file for plots"),
    ("seeds", Some("1"), "the number of seeds that a simulation averages"),
];

/// The launchers' variables of rank and world size. The first that is set counts. MPI's come before
/// SLURM's: under mpirun in a batch job, every process has the batch script's own `SLURM_PROCID=0`.
const RANKS: [(&str, &str); 4] = [
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

/// The source of a value, in order of precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Provenance {
    /// The caller: an argument of the command, a call of the library.
    Argument,
    /// This environment variable.
    Environment(String),
    /// This file.
    File(PathBuf),
    /// Not set.
    Default,
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument => f.write_str("argument"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// One knob: its name, its default as text (none: unset), and what it does.
pub type Knob = (&'static str, Option<&'static str>, &'static str);

/// A set of knobs, each as text with its provenance.
#[derive(Clone, Debug)]
pub struct Knobs {
    tables: Vec<&'static [Knob]>,
    values: BTreeMap<&'static str, (String, Provenance)>,
    name_in_messages: fn(&str) -> String,
}

/// The name of a setting on the command line.
fn option(name: &str) -> String {
    format!("--{name}")
}

fn usage(message: String) -> Error {
    Error::new(ErrorKind::Usage, message)
}

impl Knobs {
    /// The defaults, then `file` (which may be missing), then the environment, then `arguments`:
    /// the later wins. `more` are the caller's knobs in addition to [`KNOBS`].
    ///
    /// # Errors
    /// If the file cannot be read, is not TOML, or names an unknown knob.
    pub fn gather(
        more: &'static [Knob],
        arguments: impl IntoIterator<Item = (&'static str, String)>,
        environment: impl Fn(&str) -> Option<String>,
        file: &Path,
    ) -> Result<Self> {
        let mut knobs = Self { tables: vec![KNOBS, more], values: BTreeMap::new(), name_in_messages: option };
        for (name, default, _) in knobs.tables.iter().copied().flatten() {
            if let Some(default) = default {
                knobs.values.insert(name, ((*default).to_owned(), Provenance::Default));
            }
        }
        knobs.read_file(file)?;
        knobs.read_environment(environment);
        for (name, value) in arguments {
            knobs.set(name, value)?;
        }
        Ok(knobs)
    }

    /// Sets how messages name a knob, instead of `--name`.
    #[must_use]
    pub fn calling(self, name_in_messages: fn(&str) -> String) -> Self {
        Self { name_in_messages, ..self }
    }

    fn known(&self, name: &str) -> Option<&'static str> {
        let name = name.replace('_', "-");
        self.tables.iter().copied().flatten().map(|(known, ..)| *known).find(|known| *known == name)
    }

    /// Sets one knob, as an argument.
    ///
    /// # Errors
    /// If there is no such knob.
    pub fn set(&mut self, name: &str, value: impl Into<String>) -> Result<()> {
        let name = self.known(name).ok_or_else(|| usage(format!("unknown setting '{name}'")))?;
        self.values.insert(name, (value.into(), Provenance::Argument));
        Ok(())
    }

    fn read_file(&mut self, path: &Path) -> Result<()> {
        let text = match foreread::read_text(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(usage(format!("{} cannot be read: {error}", path.display()))),
        };
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            usage(format!("{} is not valid TOML: {}", path.display(), error.message()))
        })?;
        for (name, value) in table {
            let name = self
                .known(&name)
                .ok_or_else(|| usage(format!("{}: unknown setting '{name}'", path.display())))?;
            let value = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Boolean(flag) => flag.to_string(),
                toml::Value::Float(number) => number.to_string(),
                toml::Value::Array(list) if list.iter().all(toml::Value::is_str) => {
                    list.iter().filter_map(toml::Value::as_str).collect::<Vec<_>>().join("\n")
                }
                _ => {
                    return Err(usage(format!(
                        "{}: expected a value or a list of strings for {name}",
                        path.display()
                    )));
                }
            };
            self.values.insert(name, (value, Provenance::File(path.to_owned())));
        }
        Ok(())
    }

    fn read_environment(&mut self, environment: impl Fn(&str) -> Option<String>) {
        let set = |name: &str| environment(name).filter(|value| !value.is_empty());
        // One of the two without the other is taken, too. The later check refuses it.
        let launcher =
            RANKS.iter().find(|(rank, world_size)| set(rank).is_some() || set(world_size).is_some());
        if let Some((rank, world_size)) = launcher {
            for (name, variable) in [("rank", rank), ("world-size", world_size)] {
                if let Some(value) = set(variable) {
                    self.values.insert(name, (value, Provenance::Environment((*variable).to_owned())));
                }
            }
        }
        for (name, ..) in self.tables.clone().into_iter().flatten() {
            let variable = format!("FOREREAD_{}", name.to_uppercase().replace('-', "_"));
            if let Some(value) = environment(&variable) {
                self.values.insert(name, (value, Provenance::Environment(variable)));
            }
        }
    }

    /// The value of a knob and its source.
    pub fn get(&self, name: &str) -> Option<(&str, &Provenance)> {
        self.values.get(name).map(|(value, from)| (value.as_str(), from))
    }

    /// All set knobs by name, with their sources.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str, &Provenance)> {
        self.values.iter().map(|(name, (value, from))| (*name, value.as_str(), from))
    }

    /// The names of all knobs that are unset and have no default.
    pub fn unset(&self) -> impl Iterator<Item = &'static str> {
        let all = self.tables.iter().copied().flatten().map(|(name, ..)| *name);
        all.filter(|name| !self.values.contains_key(name))
    }

    /// A knob's value, converted to its type.
    ///
    /// # Errors
    /// If the value does not parse. The message names the knob, the value, the cause and the
    /// source.
    pub fn parse<T>(&self, name: &str) -> Result<Option<T>>
    where
        T: FromStr<Err: fmt::Display>,
    {
        let Some((value, _)) = self.get(name) else { return Ok(None) };
        value.trim().parse().map(Some).map_err(|error: T::Err| self.refuse(name, format!("{error}")))
    }

    /// An error about a knob's value.
    pub fn refuse(&self, name: &str, why: impl fmt::Display) -> Error {
        let name_in_message = (self.name_in_messages)(name);
        match self.get(name) {
            Some((value, from)) => {
                Error::new(ErrorKind::Usage, format!("{name_in_message} {value} ({from}): {why}"))
            }
            None => Error::new(ErrorKind::Usage, format!("{name_in_message}: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(arguments: &[(&'static str, &str)], environment: &[(&str, &str)], file: &str) -> Result<Knobs> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("foreread.toml");
        std::fs::write(&path, file).unwrap();
        let environment: BTreeMap<String, String> =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let arguments = arguments.iter().map(|(name, value)| (*name, (*value).to_owned()));
        Knobs::gather(&[], arguments, |name| environment.get(name).cloned(), &path)
    }

    #[test]
    fn argument_before_environment_before_file_before_default() {
        let file = "seed = 1\nepochs = 5\nlook-ahead = '1GiB'\ndrop_last = true";
        let knobs =
            gather(&[("seed", "3")], &[("FOREREAD_SEED", "2"), ("FOREREAD_EPOCHS", "7")], file).unwrap();
        let say = |name| {
            knobs.get(name).map(|(value, from)| format!("{value} {from}").replace(".toml", "")).unwrap()
        };
        assert_eq!(say("seed"), "3 argument");
        assert_eq!(say("epochs"), "7 environment FOREREAD_EPOCHS");
        assert!(say("look-ahead").starts_with("1GiB file "));
        assert!(say("drop-last").starts_with("true file "));
        assert_eq!(say("batch-size"), "64 default");
    }

    #[test]
    fn launcher_variables_are_taken_in_pairs() {
        let knobs = gather(&[], &[("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8"), ("RANK", "")], "").unwrap();
        assert_eq!(knobs.parse::<u32>("rank").unwrap(), Some(3));
        assert_eq!(knobs.parse::<u32>("world-size").unwrap(), Some(8));
        let knobs = gather(&[("rank", "0")], &[("RANK", "1"), ("WORLD_SIZE", "2")], "").unwrap();
        assert_eq!(knobs.parse::<u32>("rank").unwrap(), Some(0));
    }

    #[test]
    fn bad_names_and_values_are_reported_with_source() {
        assert!(
            gather(&[], &[], "batchsize = 3")
                .unwrap_err()
                .to_string()
                .ends_with("unknown setting 'batchsize'")
        );
        assert!(
            gather(&[], &[], "seed = [1]")
                .unwrap_err()
                .to_string()
                .ends_with("expected a value or a list of strings for seed")
        );
        assert!(gather(&[], &[], "seed =").unwrap_err().to_string().contains("is not valid TOML"));
        let knobs = gather(&[], &[("FOREREAD_SEED", "x")], "").unwrap();
        let error = knobs.parse::<u64>("seed").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert_eq!(error.to_string(), "--seed x (environment FOREREAD_SEED): invalid digit found in string");
    }
}
