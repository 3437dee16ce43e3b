//! The policy file, `agent.toml`: read at the start, and again whenever it changes.
//!
//! ```toml
//! memory = "100GiB"
//!
//! [limit]                              # by storage
//! "s3://my-bucket" = "500MB/s"
//!
//! [weight]                             # by job
//! "search-*" = 4
//!
//! [pin]                                # by dataset
//! "s3://my-bucket/train" = true
//! ```
//!
//! The table `cluster` is the policy of the control process, with tables of its own. So one file
//! can be for both. Each of them reads its own part, and mistakes in the other one do not matter.
//!
//! It is looked at four times a second, because file systems on networks do not notify of changes
//! by other nodes. A file with a mistake changes nothing: the values before it stay in force.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::policy::{AGENT_WORDS, Policy, PolicyError, PolicySource, Words};

/// The table with the policy of the control process.
const CLUSTER: &str = "cluster";

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
pub struct PolicyFile {
    path: PathBuf,
    /// The words of the keys that are read.
    words: Words,
    /// As it was read last. `None`: there was no file.
    version: Option<FileVersion>,
    /// The last mistake, which is reported once.
    mistake: Option<String>,
}

impl PolicyFile {
    /// An agent's file at `path`, which was not read yet.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self::with_words(path, AGENT_WORDS)
    }

    /// The file at `path`, of which the part with these words is read.
    pub fn with_words(path: PathBuf, words: Words) -> Self {
        Self { path, words, version: None, mistake: None }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The values, if the file has changed since the last call. None are left if it was removed. A
    /// file that cannot be read is tried again at the next call.
    ///
    /// # Errors
    /// If it cannot be read, or has a mistake. The same mistake is returned once.
    pub fn changed(&mut self) -> Option<Result<Policy, PolicyError>> {
        let read = match version(&self.path) {
            Ok(version) if version == self.version => return None,
            Ok(None) => {
                self.version = None;
                Ok(Policy::new(self.words))
            }
            Ok(version) => read(&self.path).and_then(|text| {
                self.version = version;
                parse(&text, self.words)
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

fn parse(text: &str, words: Words) -> Result<Policy, String> {
    let mut table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let cluster = table.remove(CLUSTER);
    if words != AGENT_WORDS {
        table = match cluster {
            Some(toml::Value::Table(cluster)) => cluster,
            Some(_) => return Err(format!("{CLUSTER}: expected a table, such as [{CLUSTER}.limit]")),
            None => toml::Table::new(),
        };
    }
    let mut policy = Policy::new(words);
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
    // semantics: AGENT-10
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
        assert_eq!(policy.origin_limits("s3://a").bytes_per_second.unwrap().get(), 5_000_000);
        assert_eq!(policy.origin_limits("s3://b").bytes_per_second.unwrap().get(), 7);
        assert_eq!((policy.job_weight("x").get(), policy.dataset("/d", 9).1.floor), (4, 9));
        assert!(file.changed().is_none());
        // Of one file for both, each reads its part.
        let mut of_cluster = PolicyFile::with_words(path.clone(), crate::policy::CLUSTER_WORDS);
        assert_eq!(of_cluster.changed().unwrap().unwrap(), Policy::new(crate::policy::CLUSTER_WORDS));
        fs::write(&path, format!("{text}[cluster.quota]\n'/d' = '3GB'\n[cluster.drain]\nn1 = true\n"))
            .unwrap();
        let policy = of_cluster.changed().unwrap().unwrap();
        assert_eq!((policy.find("quota", "/d"), policy.find("drain", "n1")), (Some(3_000_000_000), Some(1)));
        assert_eq!(file.changed().unwrap().unwrap().find("quota", "/d"), None);
        fs::write(&path, "cluster = 3").unwrap();
        assert!(of_cluster.changed().unwrap().unwrap_err().to_string().contains("expected a table"));
        fs::write(&path, "memory = 3.5").unwrap();
        let error = file.changed().unwrap().unwrap_err().to_string();
        assert!(error.contains("agent.toml: memory: expected text"), "{error}");
        fs::write(&path, "limit = [").unwrap();
        assert!(file.changed().unwrap().is_err());
        assert!(file.changed().is_none(), "the same mistake is reported once");
        // A file that cannot be read was not removed.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&path, &path).unwrap();
        assert!(file.changed().unwrap().unwrap_err().to_string().contains("symbolic links"));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(file.changed().unwrap().unwrap_err().to_string().contains("expected a file"));
        fs::remove_dir(&path).unwrap();
        fs::write(&path, text).unwrap();
        assert!(file.changed().unwrap().is_ok());
        // A pipe stands for a file on a server that hangs.
        fs::remove_file(&path).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(file.changed().unwrap().unwrap_err().to_string().contains("expected a file"));
        fs::remove_file(&path).unwrap();
        assert_eq!(file.changed().unwrap().unwrap(), Policy::default());
        assert!(file.changed().is_none());
    }
}
