//! The policy file, `agent.toml`: read at the start, and again whenever it changes.
//!
//! ```toml
//! memory = "100GiB"
//!
//! [limit]                              # by store
//! "s3://my-bucket" = "500MB/s"
//!
//! [weight]                             # by job
//! "search-*" = 4
//!
//! [pin]                                # by dataset
//! "s3://my-bucket/train" = true
//! ```
//!
//! It is looked at four times a second, because file systems on networks do not notify of changes
//! by other nodes. A file with a mistake changes nothing: the values before it stay in force.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::policy::{Policy, PolicyError, PolicySource};

/// The identity and the content's version of a file. `None`: there is no file.
type FileVersion = Option<(u64, u64, i64, i64)>;

/// A policy file, which need not exist.
#[derive(Debug)]
pub(crate) struct PolicyFile {
    path: PathBuf,
    /// As it was read last.
    version: FileVersion,
}

impl PolicyFile {
    /// The file at `path`, which was not read yet.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, version: None }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The values, if the file has changed since the last call. None are left if it was removed.
    ///
    /// # Errors
    /// If it cannot be read, or has a mistake.
    pub(crate) fn changed(&mut self) -> Option<Result<Policy, PolicyError>> {
        let version = version(&self.path);
        if version == self.version {
            return None;
        }
        self.version = version;
        Some(if version.is_some() { read(&self.path) } else { Ok(Policy::default()) })
    }
}

fn version(path: &Path) -> FileVersion {
    let found = fs::metadata(path).ok()?;
    Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

fn read(path: &Path) -> Result<Policy, PolicyError> {
    let wrong = |why: String| PolicyError::new(format!("{}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    parse(&text).map_err(wrong)
}

fn parse(text: &str) -> Result<Policy, String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let mut policy = Policy::default();
    for (word, value) in &table {
        let values = match value {
            toml::Value::Table(names) => names.iter().map(|(name, value)| (&**name, value)).collect(),
            value => vec![("", value)],
        };
        for (about, value) in values {
            let text = match value {
                toml::Value::String(text) => text.clone(),
                toml::Value::Integer(_) | toml::Value::Boolean(_) => value.to_string(),
                _ => return Err(format!("{word}: expected text, a number, true or false")),
            };
            policy.set(word, about, &text, PolicySource::File).map_err(|error| error.to_string())?;
        }
    }
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_read_whenever_it_changes() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("agent.toml");
        let mut file = PolicyFile::new(path.clone());
        assert!(file.changed().is_none());
        let text =
            "memory = '1GB'\n[limit]\n's3://a' = '5MB/s'\n'*' = 7\n[weight]\nx = 4\n[pin]\n'/d' = true\n";
        fs::write(&path, text).unwrap();
        let policy = file.changed().unwrap().unwrap();
        assert_eq!(policy.memory(), Some(1_000_000_000));
        assert_eq!(policy.store("s3://a").bytes_per_second.unwrap().get(), 5_000_000);
        assert_eq!(policy.store("s3://b").bytes_per_second.unwrap().get(), 7);
        assert_eq!((policy.job_weight("x").get(), policy.dataset("/d", 9).1.floor), (4, 9));
        assert!(file.changed().is_none());
        fs::write(&path, "memory = 3.5").unwrap();
        let error = file.changed().unwrap().unwrap_err().to_string();
        assert!(error.contains("agent.toml: memory: expected text"), "{error}");
        fs::write(&path, "limit = [").unwrap();
        assert!(file.changed().unwrap().is_err());
        fs::remove_file(&path).unwrap();
        assert_eq!(file.changed().unwrap().unwrap(), Policy::default());
        assert!(file.changed().is_none());
    }
}
