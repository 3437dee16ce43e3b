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
use std::sync::Once;

use foreread::{Error, ErrorKind, Result};

use crate::table::{KNOBS, Knob, LAUNCHERS, find_knob};

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

/// A set of knobs, each as text with its provenance.
#[derive(Clone, Debug)]
pub struct Knobs {
    values: BTreeMap<&'static str, (String, Provenance)>,
    name_in_messages: fn(&str) -> String,
    /// The directory of the settings file.
    directory: PathBuf,
}

/// The name of a setting on the command line.
fn option(name: &str) -> String {
    format!("--{name}")
}

/// Warns of variables that look like settings and are none, once per process.
pub fn warn_of_unknown_variables() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        for name in crate::table::unknown_variables(names) {
            tracing::warn!("{name} is not a setting, and is ignored; docs/settings.md lists all");
        }
    });
}

/// Why a setting is refused in the environment and in a file.
fn argument_only(knob: &Knob) -> String {
    format!("can be set by an argument only (--{}), not in the environment or a file", knob.name)
}

fn usage(message: String) -> Error {
    Error::new(ErrorKind::Usage, message)
}

impl Knobs {
    /// The defaults, then `file` (which may be missing), then the environment, then `arguments`:
    /// the later wins.
    ///
    /// # Errors
    /// If the file cannot be read or is not TOML. If the file names an unknown setting, or file or
    /// environment set a setting that is an argument only. If a value is not among the possible
    /// ones.
    pub fn gather(
        arguments: impl IntoIterator<Item = (&'static str, String)>,
        environment: impl Fn(&str) -> Option<String>,
        file: &Path,
    ) -> Result<Self> {
        Self::gather_named(option, arguments, environment, file)
    }

    /// [`gather`](Self::gather), with messages that name a setting by this function instead of as
    /// `--name`.
    ///
    /// # Errors
    /// As `gather`.
    pub fn gather_named(
        name_in_messages: fn(&str) -> String,
        arguments: impl IntoIterator<Item = (&'static str, String)>,
        environment: impl Fn(&str) -> Option<String>,
        file: &Path,
    ) -> Result<Self> {
        let directory = file.parent().unwrap_or(Path::new("")).to_owned();
        let mut knobs = Self { values: BTreeMap::new(), name_in_messages, directory };
        for knob in KNOBS {
            if let Some(default) = knob.default {
                knobs.values.insert(knob.name, (default.to_owned(), Provenance::Default));
            }
        }
        knobs.read_file(file)?;
        knobs.read_environment(environment)?;
        for (name, value) in arguments {
            let name = find_knob(name).ok_or_else(|| usage(format!("unknown setting '{name}'")))?.name;
            knobs.values.insert(name, (value, Provenance::Argument));
        }
        for knob in KNOBS {
            let wrong = knobs.get(knob.name).and_then(|(value, _)| knob.expected(value));
            if let Some(why) = wrong {
                return Err(knobs.refuse(knob.name, why));
            }
        }
        Ok(knobs)
    }

    /// Sets one knob, as an argument.
    ///
    /// # Errors
    /// If there is no such knob, or the value is not among the possible ones.
    pub fn set(&mut self, name: &str, value: impl Into<String>) -> Result<()> {
        let knob = find_knob(name).ok_or_else(|| usage(format!("unknown setting '{name}'")))?;
        self.values.insert(knob.name, (value.into(), Provenance::Argument));
        match self.get(name).and_then(|(value, _)| knob.expected(value)) {
            Some(why) => Err(self.refuse(name, why)),
            None => Ok(()),
        }
    }

    /// The directory of the settings file.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
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
        let mut names = Vec::new();
        for (name, value) in table {
            let knob = find_knob(&name.replace('_', "-"))
                .ok_or_else(|| usage(format!("{}: unknown setting '{name}'", path.display())))?;
            if knob.is_argument_only {
                return Err(usage(format!("{}: {name} {}", path.display(), argument_only(knob))));
            }
            let name = knob.name;
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
            names.push(name);
        }
        // A file in the working directory may be unexpected.
        tracing::info!("settings from {}: {}", path.display(), names.join(", "));
        Ok(())
    }

    fn read_environment(&mut self, environment: impl Fn(&str) -> Option<String>) -> Result<()> {
        let set = |name: &str| environment(name).filter(|value| !value.is_empty());
        // One of the two without the other is taken, too. The later check refuses it.
        let launcher =
            LAUNCHERS.iter().find(|(rank, world_size)| set(rank).is_some() || set(world_size).is_some());
        if let Some((rank, world_size)) = launcher {
            for (name, variable) in [("rank", rank), ("world-size", world_size)] {
                if let Some(value) = set(variable) {
                    self.values.insert(name, (value, Provenance::Environment((*variable).to_owned())));
                }
            }
        }
        for knob in KNOBS {
            let variable = knob.variable();
            match environment(&variable) {
                Some(_) if knob.is_argument_only => {
                    return Err(usage(format!("{variable}: {} {}", knob.name, argument_only(knob))));
                }
                Some(value) => {
                    self.values.insert(knob.name, (value, Provenance::Environment(variable)));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// The value of a knob and its source.
    pub fn get(&self, name: &str) -> Option<(&str, &Provenance)> {
        self.values.get(name).map(|(value, from)| (value.as_str(), from))
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

    /// The value of a knob that has a default, converted to its type.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn value<T>(&self, name: &str) -> Result<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        self.parse(name)?.ok_or_else(|| self.refuse(name, "not set"))
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
        Knobs::gather(arguments, |name| environment.get(name).cloned(), &path)
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

    #[test]
    // semantics: FAIL-31
    fn possible_values_are_checked_from_every_source() {
        let refused = |given: Result<Knobs>| given.unwrap_err().to_string();
        assert_eq!(
            refused(gather(&[], &[("FOREREAD_SAMPLER", "shufle")], "")),
            "--sampler shufle (environment FOREREAD_SAMPLER): expected shuffle, torch, feistel or sequential"
        );
        let file = refused(gather(&[], &[], "on-error = 'ignore'"));
        assert!(file.starts_with("--on-error ignore (file "), "{file}");
        assert!(file.ends_with("expected fail, skip or substitute"), "{file}");
        assert_eq!(
            refused(gather(&[("drop-last", "yes")], &[], "")),
            "--drop-last yes (argument): expected true or false"
        );
        // The value that wins counts.
        assert!(gather(&[("sampler", "torch")], &[("FOREREAD_SAMPLER", "shufle")], "").is_ok());
    }

    #[test]
    // semantics: FAIL-31
    fn arguments_of_one_call_are_refused_elsewhere() {
        for knob in KNOBS.iter().filter(|knob| knob.is_argument_only) {
            let variable = knob.variable();
            let error = gather(&[], &[(&variable, "1")], "").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert_eq!(
                error.to_string(),
                format!(
                    "{variable}: {} can be set by an argument only (--{}), not in the environment or a file",
                    knob.name, knob.name
                )
            );
            let file = gather(&[], &[], &format!("{} = '1'", knob.name)).unwrap_err().to_string();
            assert!(
                file.contains(&format!("foreread.toml: {} can be set by an argument", knob.name)),
                "{file}"
            );
        }
        assert_eq!(gather(&[("epoch", "3")], &[], "").unwrap().parse::<u64>("epoch").unwrap(), Some(3));
    }
}
