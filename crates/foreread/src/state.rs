//! The position of a run, as a file. The run can resume later, elsewhere, with another number of
//! ranks.
//!
//! The state contains the inputs of the order and the identity of its data, as values and as
//! fingerprints. So an error can name the difference. World size, batch size, dealing and the
//! number of epochs may change and are not part of it. The file has a few hundred bytes of JSON.
//! Writing is atomic (a new file, flushed, renamed over the old one). A job that is killed while it
//! writes leaves the previous state.
//!
//! Two jobs with one file would overwrite each other's position. A [`StateLock`] prevents that. It
//! is a hidden file next to the state, because the state itself is replaced at each write. The
//! price: a killed job leaves that file, which locks nothing.

use std::ffi::OsString;
use std::fmt;
use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};

use foreread_dataset::{Catalog, LockAttempt, LockFile};
use foreread_open::error::{Error, ErrorKind, Result};
use foreread_oracle::{Position, SamplerKind, Schedule};
use serde::{Deserialize, Serialize};

use crate::config::Config;

const VERSION: u32 = 1;

/// A saved run. Small, versioned, independent of the topology.
///
/// [`Loader::state`](crate::Loader::state) returns it, and
/// [`Builder::resume`](crate::Builder::resume) takes it. Sampler, seed and data must be the same.
/// Batch size, number of ranks and number of epochs may differ.
///
/// ```
/// use foreread::{Loader, State};
/// # let directory = tempfile::tempdir()?;
/// # let data = directory.path().join("train");
/// # std::fs::create_dir(&data)?;
/// # for name in ["a", "b", "c", "d"] { std::fs::write(data.join(name), name)?; }
/// # let target = data.to_str().expect("a path of ASCII");
/// # let file = directory.path().join("state.json");
/// let builder = || Loader::builder(target).batch_size(2).epochs(2).seed(7);
/// // No other process writes the file until the lock is dropped.
/// let lock = State::lock(&file)?;
/// let loader = builder().start()?;
/// let batch = loader.batches().next().expect("four batches")?;
/// // After a complete step: batches that were taken count as consumed.
/// loader.state().write(&file)?;
/// drop((batch, loader, lock));
///
/// // In the next process:
/// let mut builder = builder();
/// if let Some(state) = State::read(&file)? {
///     assert_eq!(state.to_string(), "epoch 0, 2 of 4 samples");
///     builder = builder.resume(state);
/// }
/// assert_eq!(builder.start()?.batches().count(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    sampler: SamplerKind,
    seed: u64,
    train: DataIdentity,
    #[serde(skip_serializing_if = "Option::is_none")]
    validation: Option<DataIdentity>,
    epoch: u64,
    phase: u32,
    consumed: u64,
}

/// The right to write a state file, until it is dropped or the process ends ([`State::lock`]).
#[derive(Debug)]
pub struct StateLock {
    _file: LockFile,
}

/// The data of the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DataIdentity {
    samples: u64,
    catalog: String,
}

impl DataIdentity {
    fn of(catalog: &Catalog) -> Self {
        Self { samples: catalog.len(), catalog: catalog.fingerprint().to_string() }
    }
}

impl State {
    pub(crate) fn new(config: &Config, catalogs: &[Catalog], position: &Position) -> Self {
        let mut data = catalogs.iter().map(DataIdentity::of);
        Self {
            version: VERSION,
            sampler: config.sampler,
            seed: config.seed,
            train: data.next().unwrap_or(DataIdentity { samples: 0, catalog: String::new() }),
            validation: data.next(),
            epoch: position.epoch,
            phase: position.phase,
            consumed: position.consumed,
        }
    }

    /// The epoch in which the run resumes, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The samples of the current pass of that epoch that all ranks together have consumed.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// The position in `schedule`, if this is a state of a run by `config` over `catalogs`.
    pub(crate) fn position(
        &self,
        config: &Config,
        catalogs: &[Catalog],
        schedule: &Schedule,
    ) -> Result<Position> {
        self.compare(config, catalogs)?;
        let Self { epoch, phase, consumed, .. } = *self;
        Ok(Position { schedule: schedule.fingerprint(), epoch, phase, consumed })
    }

    fn compare(&self, config: &Config, catalogs: &[Catalog]) -> Result<()> {
        let same = |what: &str, then: &dyn fmt::Display, now: &dyn fmt::Display| {
            let (then, now) = (then.to_string(), now.to_string());
            if then == now {
                return Ok(());
            }
            let message = format!("the state is of another run: its {what} is {then}, this run's is {now}");
            Err(Error::new(ErrorKind::State, message))
        };
        same("sampler", &self.sampler, &config.sampler)?;
        same("seed", &self.seed, &config.seed)?;
        let presence = |there: bool| if there { "present" } else { "absent" };
        same("validation set", &presence(self.validation.is_some()), &presence(catalogs.len() > 1))?;
        for ((what, then), now) in
            [("dataset", Some(&self.train)), ("validation set", self.validation.as_ref())]
                .into_iter()
                .zip(catalogs)
        {
            let Some(then) = then else { continue };
            same(&format!("{what}'s number of samples"), &then.samples, &now.len())?;
            same(&format!("{what}'s catalog fingerprint"), &then.catalog, &now.fingerprint())?;
        }
        Ok(())
    }

    /// Locks a state file, which need not exist, against other processes that lock it. Without
    /// effect on file systems without locks.
    ///
    /// # Errors
    /// If another process has the lock, which the error names. Also if the state cannot be written
    /// there.
    pub fn lock(path: &Path) -> Result<StateLock> {
        let shown = path.display();
        let lock = lock_path(path).and_then(|lock| LockFile::lock(&lock));
        match lock.map_err(|error| unwritable(path, &error))? {
            LockAttempt::Locked(file) => Ok(StateLock { _file: file }),
            LockAttempt::InUse(by) => Err(Error::new(
                ErrorKind::State,
                format!("{shown} is the state of another run, {by}; wait for its end, or name another file"),
            )),
        }
    }

    /// Reads a state file. `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read or is not a valid state.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let wrong = |why: &dyn fmt::Display| {
            Error::new(ErrorKind::State, format!("{} is not a valid state: {why}", path.display()))
        };
        let text = match crate::text::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(wrong(&error)),
        };
        Self::parse(&text).map(Some).map_err(|why| wrong(&why))
    }

    /// Parses the text of [`to_json`](Self::to_json).
    ///
    /// # Errors
    /// If it is not a valid state.
    pub fn from_json(text: &str) -> Result<Self> {
        let wrong = |why| Error::new(ErrorKind::State, format!("this is not a valid state: {why}"));
        Self::parse(text).map_err(wrong)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let state: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if state.version != VERSION {
            return Err(format!("its version is {}, this release reads {VERSION}", state.version));
        }
        Ok(state)
    }

    /// The content that [`write`](Self::write) writes, for other storage: a line of JSON.
    pub fn to_json(&self) -> String {
        // The value has only numbers and strings, so this cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Writes a state file atomically. It is durable when this returns.
    ///
    /// # Errors
    /// If it cannot be written. The file is then unchanged. If only its directory cannot be
    /// flushed, the file is new, but a power failure may undo that.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.replace(path).map_err(|error| unwritable(path, &error))
    }

    fn replace(&self, path: &Path) -> std::io::Result<()> {
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        foreread_dataset::replace_file(&target(path), &text)
    }
}

/// The position: `epoch 2, 448 of 1280 samples`.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pass, data) = match (self.phase, &self.validation) {
            (1.., Some(data)) => (", validation", data),
            _ => ("", &self.train),
        };
        write!(f, "epoch {}{pass}, {} of {} samples", self.epoch, self.consumed, data.samples)
    }
}

/// The file that is written at `path`: the target of a link, not the link.
fn target(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The lock of the state file at `path`.
fn lock_path(path: &Path) -> std::io::Result<PathBuf> {
    let target = target(path);
    let name = target.file_name().ok_or_else(|| std::io::Error::other("the path has no file name"))?;
    let mut lock = OsString::from(".");
    lock.push(name);
    lock.push(".foreread-lock");
    Ok(target.with_file_name(lock))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::State, format!("the state cannot be written to {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use foreread_tier::Object;
    use foreread_types::RankOf;

    use super::*;

    fn catalog(paths: &[&str]) -> Catalog {
        let objects = paths.iter().map(|&path| Object { path: path.into(), size: 1, version: None });
        Catalog::from_objects("/x", objects).unwrap()
    }

    fn state(config: &Config, catalogs: &[Catalog]) -> State {
        let position =
            Position { schedule: foreread_types::Fingerprint(0), epoch: 3, phase: 0, consumed: 17 };
        State::new(config, catalogs, &position)
    }

    #[test]
    // semantics: STATE-4
    fn state_survives_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        assert_eq!(State::read(&path).unwrap(), None);
        let saved = state(&Config::default(), &[catalog(&["a", "b"])]);
        saved.write(&path).unwrap();
        saved.write(&path).unwrap();
        assert_eq!(State::read(&path).unwrap(), Some(saved));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn state_displays_its_position() {
        let data = [catalog(&["a", "b"]), catalog(&["c"])];
        let mut saved = state(&Config::default(), &data);
        assert_eq!(saved.to_string(), "epoch 3, 17 of 2 samples");
        (saved.phase, saved.consumed) = (1, 0);
        assert_eq!(saved.to_string(), "epoch 3, validation, 0 of 1 samples");
    }

    #[test]
    // semantics: STATE-7, FAIL-26
    fn state_is_locked_and_written_under_every_name_of_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("state.json"), directory.path().join("link"));
        let lock = State::lock(&path).unwrap();
        state(&Config::default(), &[catalog(&["a"])]).write(&path).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for name in [&path, &link] {
            let error = State::lock(name).unwrap_err().to_string();
            let start =
                format!("{} is the state of another run, process {} on ", name.display(), std::process::id());
            assert!(error.starts_with(&start), "{error}");
            assert!(error.ends_with("; wait for its end, or name another file"), "{error}");
        }
        let other = State::lock(&directory.path().join("other.json")).unwrap();
        drop((lock, other));
        drop(State::lock(&link).unwrap());
        let saved = state(&Config { seed: 5, ..Config::default() }, &[catalog(&["a"])]);
        saved.write(&link).unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(State::read(&path).unwrap(), Some(saved));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "a lock file was left");
    }

    #[test]
    // semantics: STATE-6
    fn refused_state_names_the_difference() {
        let (config, data) = (Config::default(), [catalog(&["a", "b"])]);
        let saved = state(&config, &data);
        let refused =
            |config: &Config, catalogs: &[Catalog]| saved.compare(config, catalogs).unwrap_err().to_string();
        assert!(saved.compare(&config, &data).is_ok());
        let other = Config { seed: 5, ..config.clone() };
        assert!(refused(&other, &data).ends_with("its seed is 0, this run's is 5"));
        let other = Config { sampler: SamplerKind::Torch, ..config.clone() };
        assert!(refused(&other, &data).ends_with("its sampler is shuffle, this run's is torch"));
        assert!(refused(&config, &[catalog(&["a"])]).contains("number of samples is 2, this run's is 1"));
        assert!(refused(&config, &[catalog(&["a", "c"])]).contains("catalog fingerprint is"));
        assert!(refused(&config, &[data[0].clone(), data[0].clone()]).contains("validation set is absent"));
        // These settings may change between runs.
        let other = Config { batch_size: 7, epochs: 99, rank: RankOf { rank: 3, ranks: 4 }, ..config };
        assert!(saved.compare(&other, &data).is_ok());
    }

    #[test]
    fn damaged_or_foreign_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        for text in ["", "{}", "[1,2", "hello"] {
            std::fs::write(&path, text).unwrap();
            assert!(State::read(&path).unwrap_err().to_string().contains("is not a valid state"), "{text}");
        }
        let text = serde_json::to_string(&state(&Config::default(), &[catalog(&["a"])])).unwrap();
        std::fs::write(&path, text.replace("\"version\":1", "\"version\":9")).unwrap();
        assert!(State::read(&path).unwrap_err().to_string().contains("version is 9"));
    }
}
