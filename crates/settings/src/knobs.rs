//! Settings as text, from wherever they come, and where each came from.
//!
//! A knob has one name (`look-ahead`), from which its other names follow: `--look-ahead` on the command line,
//! `FOREREAD_LOOK_AHEAD` in the environment, `look-ahead = "1GiB"` in `foreread.toml`. They are gathered as text first
//! and given types once ([`config`](crate::config())), so a bad value is reported in one way with the place that it came
//! from, and `--explain` costs nothing extra. The price is that types are checked a little later than an argument parser
//! would.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use foreread::{Error, ErrorKind, Result};

/// Every knob of a run.
pub const KNOBS: &[Knob] = &[
    ("batch-size", Some("64"), "samples a batch"),
    ("epochs", Some("2"), "how often the dataset is read"),
    ("seed", Some("0"), "what the order is drawn from"),
    ("sampler", Some("shuffle"), "shuffle, torch, feistel or sequential"),
    ("drop-last", Some("false"), "drop what does not divide evenly"),
    (
        "deal",
        Some("torch"),
        "how ranks share an epoch: torch (strided), blocks, or locality (by who has what)",
    ),
    ("validate", None, "a second dataset, read in order after every epoch"),
    ("memory", Some("auto"), "the memory tier of each rank"),
    ("disk", None, "the disk tier of this node: DIR=SIZE or DIR=SIZE,shared, one a line"),
    ("look-ahead", Some("256MiB"), "how far reads run ahead of the trainer"),
    ("rank", None, "this process among the ranks"),
    ("world-size", None, "how many ranks there are"),
    ("origin-limit", None, "the most bytes a second that are read from the origin"),
    ("origin-parallelism", None, "the most reads from the origin at once"),
    ("calibration", None, "what the tiers can do, as `foreread calibrate` wrote it"),
    ("compute-ms", Some("0"), "how long the trainer computes on each batch"),
    ("on-error", Some("fail"), "what to do about a sample that cannot be read: fail, skip or substitute"),
];

/// The command's own knobs, beside those of a run. Whoever reads the same `foreread.toml` passes over them.
pub const COMMAND_KNOBS: &[Knob] = &[
    ("report", Some("text"), "text or json; simulate: csv, too"),
    ("progress", Some("auto"), "whether long work shows how far it has come: auto (rank 0 only) or off"),
    ("digest", Some("false"), "add each epoch's SHA-256 to the report"),
    ("ids", Some("false"), "add each epoch's delivered ids to the report"),
    ("state", None, "where the run's state is kept"),
    ("report-file", None, "where the report is written instead of standard output; %r is the rank"),
    ("peers", Some("auto"), "whether ranks that find each other share their caches: auto or off"),
    ("samples", None, "how many samples there are, where there is no dataset"),
    ("sample-bytes", None, "how long each is"),
    ("epoch", Some("0"), "which epoch's order to print"),
    ("format", None, "how samples lie in objects: auto, files, tar, tfrecord or zip"),
    ("include", None, "globs of what to index"),
    ("exclude", None, "globs of what to leave out"),
    ("seconds", Some("30"), "how long a calibration may take"),
    ("origin-bytes", Some("1GiB"), "how much a calibration may read from the origin"),
    ("policy", Some("all"), "which policy is simulated"),
    ("plot", None, "where plots are drawn"),
    ("seeds", Some("1"), "how many seeds a simulation averages"),
];

/// Where launchers say which rank this is; the first that is set counts. MPI's come before SLURM's: started by mpirun
/// within a batch job, every process has the batch script's own `SLURM_PROCID=0`.
const RANKS: [(&str, &str); 4] = [
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

/// Where a value came from, in order of precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Provenance {
    /// Given by the caller: an argument of the command, a call of the library.
    Argument,
    /// This environment variable.
    Environment(String),
    /// This file.
    File(PathBuf),
    /// Nobody said anything.
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
    said: fn(&str) -> String,
}

/// As the command line writes a knob's name.
fn option(name: &str) -> String {
    format!("--{name}")
}

fn usage(message: String) -> Error {
    Error::new(ErrorKind::Usage, message)
}

impl Knobs {
    /// The defaults, then `file` (a missing one is no error), then the environment, then `arguments`: the later wins.
    /// `more` are knobs of the caller's own, beside [`KNOBS`].
    ///
    /// # Errors
    /// If the file cannot be read or is no TOML, or names a knob that does not exist.
    pub fn gather(
        more: &'static [Knob],
        arguments: impl IntoIterator<Item = (&'static str, String)>,
        environment: impl Fn(&str) -> Option<String>,
        file: &Path,
    ) -> Result<Self> {
        let mut knobs = Self { tables: vec![KNOBS, more], values: BTreeMap::new(), said: option };
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

    /// The same, with knobs called in messages as the caller's users write them, instead of `--name`.
    #[must_use]
    pub fn calling(self, said: fn(&str) -> String) -> Self {
        Self { said, ..self }
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
        let name = self.known(name).ok_or_else(|| usage(format!("there is no setting '{name}'")))?;
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
            usage(format!("{} is no TOML: {}", path.display(), error.message()))
        })?;
        for (name, value) in table {
            let name = self
                .known(&name)
                .ok_or_else(|| usage(format!("{}: there is no setting '{name}'", path.display())))?;
            let value = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Boolean(flag) => flag.to_string(),
                toml::Value::Float(number) => number.to_string(),
                toml::Value::Array(list) if list.iter().all(toml::Value::is_str) => {
                    list.iter().filter_map(toml::Value::as_str).collect::<Vec<_>>().join("\n")
                }
                _ => {
                    return Err(usage(format!("{}: {name} is a value or a list of strings", path.display())));
                }
            };
            self.values.insert(name, (value, Provenance::File(path.to_owned())));
        }
        Ok(())
    }

    fn read_environment(&mut self, environment: impl Fn(&str) -> Option<String>) {
        let set = |name: &str| environment(name).filter(|value| !value.is_empty());
        // One half without the other is taken too, and then refused where the halves are checked against each other.
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

    /// The value of a knob and where it came from.
    pub fn get(&self, name: &str) -> Option<(&str, &Provenance)> {
        self.values.get(name).map(|(value, from)| (value.as_str(), from))
    }

    /// All that are set, by name, with their provenance.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str, &Provenance)> {
        self.values.iter().map(|(name, (value, from))| (*name, value.as_str(), from))
    }

    /// The names of all knobs that nobody has set and that have no default.
    pub fn unset(&self) -> impl Iterator<Item = &'static str> {
        let all = self.tables.iter().copied().flatten().map(|(name, ..)| *name);
        all.filter(|name| !self.values.contains_key(name))
    }

    /// A knob's value with a type.
    ///
    /// # Errors
    /// If the value does not parse: the message names the knob, the value, why, and where it came from.
    pub fn parse<T>(&self, name: &str) -> Result<Option<T>>
    where
        T: FromStr<Err: fmt::Display>,
    {
        let Some((value, _)) = self.get(name) else { return Ok(None) };
        value.trim().parse().map(Some).map_err(|error: T::Err| self.refuse(name, format!("{error}")))
    }

    /// An error about a knob's value.
    pub fn refuse(&self, name: &str, why: impl fmt::Display) -> Error {
        let said = (self.said)(name);
        match self.get(name) {
            Some((value, from)) => Error::new(ErrorKind::Usage, format!("{said} {value} ({from}): {why}")),
            None => Error::new(ErrorKind::Usage, format!("{said}: {why}")),
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
    fn launchers_give_the_rank_and_never_halves_of_two() {
        let knobs = gather(&[], &[("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8"), ("RANK", "")], "").unwrap();
        assert_eq!(knobs.parse::<u32>("rank").unwrap(), Some(3));
        assert_eq!(knobs.parse::<u32>("world-size").unwrap(), Some(8));
        let knobs = gather(&[("rank", "0")], &[("RANK", "1"), ("WORLD_SIZE", "2")], "").unwrap();
        assert_eq!(knobs.parse::<u32>("rank").unwrap(), Some(0));
    }

    #[test]
    fn unknown_names_and_bad_values_are_named_with_their_place() {
        assert!(
            gather(&[], &[], "batchsize = 3").unwrap_err().to_string().ends_with("no setting 'batchsize'")
        );
        assert!(
            gather(&[], &[], "seed = [1]")
                .unwrap_err()
                .to_string()
                .ends_with("seed is a value or a list of strings")
        );
        assert!(gather(&[], &[], "seed =").unwrap_err().to_string().contains("is no TOML"));
        let knobs = gather(&[], &[("FOREREAD_SEED", "x")], "").unwrap();
        let error = knobs.parse::<u64>("seed").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert_eq!(error.to_string(), "--seed x (environment FOREREAD_SEED): invalid digit found in string");
    }
}
