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
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::policy::{Policy, PolicyError, PolicySource};

/// The most bytes of a file.
const MAX_BYTES: u64 = 1 << 20;

/// The identity and the content's version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// A policy file, which need not exist.
#[derive(Debug)]
pub(crate) struct PolicyFile {
    path: PathBuf,
    /// As it was read last. `None`: there was no file.
    version: Option<FileVersion>,
    /// The last mistake, which is reported once.
    mistake: Option<String>,
}

impl PolicyFile {
    /// The file at `path`, which was not read yet.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, version: None, mistake: None }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The values, if the file has changed since the last call. None are left if it was removed. A
    /// file that cannot be read is tried again at the next call.
    ///
    /// # Errors
    /// If it cannot be read, or has a mistake. The same one is returned once.
    pub(crate) fn changed(&mut self) -> Option<Result<Policy, PolicyError>> {
        let read = match version(&self.path) {
            Ok(version) if version == self.version => return None,
            Ok(None) => {
                self.version = None;
                Ok(Policy::default())
            }
            Ok(version) => read(&self.path).and_then(|text| {
                self.version = version;
                parse(&text)
            }),
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok(policy) => {
                self.mistake = None;
                Some(Ok(policy))
            }
            Err(why) if self.mistake.as_ref() == Some(&why) => None,
            Err(why) => {
                self.mistake = Some(why.clone());
                Some(Err(PolicyError::new(format!("{}: {why}", self.path.display()))))
            }
        }
    }
}

/// The version of the file, or `None` if there is none. Other failures may pass, and change
/// nothing.
fn version(path: &Path) -> io::Result<Option<FileVersion>> {
    match fs::metadata(path) {
        Ok(found) => Ok(Some(FileVersion {
            inode: found.ino(),
            length: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read(path: &Path) -> Result<String, String> {
    // A pipe would be waited for.
    let found = fs::metadata(path).map_err(|error| error.to_string())?;
    if !found.is_file() || found.len() > MAX_BYTES {
        return Err(format!("expected a file of at most {MAX_BYTES} bytes"));
    }
    fs::read_to_string(path).map_err(|error| error.to_string())
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
        assert!(file.changed().is_none(), "the same mistake is reported once");
        // What cannot be looked at was not removed.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&path, &path).unwrap();
        assert!(file.changed().unwrap().is_err());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(file.changed().unwrap().unwrap_err().to_string().contains("expected a file"));
        fs::remove_dir(&path).unwrap();
        assert_eq!(file.changed().unwrap().unwrap(), Policy::default());
        assert!(file.changed().is_none());
    }
}
