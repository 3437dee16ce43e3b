//! The tokens of a cluster, by the name of the user that may connect.
//!
//! A file has one token per line, with a name before it: `alice 9f86d0...`. A file with a token
//! alone is for a cluster of one user. The name is the user whose jobs an agent serves. So an agent
//! cannot claim to be another user's. Only its owner may read the file.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use foreread_connection::{Identity, Token};
use foreread_types::{Rank, mix};

use crate::error::AgentError;

/// The name of a token without one.
pub(super) const DEFAULT_NAME: &str = "cluster";

/// The most bytes of a file.
const MAX_BYTES: u64 = 1 << 20;

/// The name of the token of a job's own agents.
const JOB_NAME: &str = "job";

/// A token of a cluster, and its name.
#[derive(Clone, Debug)]
pub struct ClusterToken {
    pub(super) name: String,
    identity: Identity,
}

impl ClusterToken {
    /// The token of an agent.
    ///
    /// # Errors
    /// If the file cannot be read, others can read it, or it has not exactly one token.
    pub fn read(path: &Path) -> Result<Self, AgentError> {
        match <[Self; 1]>::try_from(read_tokens(path)?) {
            Ok([token]) => Ok(token),
            Err(_) => {
                let why = "an agent has one token, and there are several".to_owned();
                Err(AgentError::Token { path: path.to_owned(), why })
            }
        }
    }

    fn new(name: &str, token: Token) -> Self {
        let text = b"foreread control ".iter().chain(name.as_bytes());
        let job = text.fold(0, |hash, byte| mix(hash ^ u64::from(*byte)));
        Self { name: name.to_owned(), identity: Identity { rank: Rank(0), job, token } }
    }

    /// The token of a job, whose agents have this identity.
    pub(super) fn of_job(identity: Identity) -> Self {
        Self { name: JOB_NAME.to_owned(), identity }
    }

    /// The identity by which both ends of a connection know the token.
    pub fn identity(&self) -> Identity {
        self.identity.clone()
    }
}

/// The tokens of a file.
///
/// # Errors
/// If it cannot be read, others can read it, or a line is not valid.
pub(super) fn read_tokens(path: &Path) -> Result<Vec<ClusterToken>, AgentError> {
    let wrong = |why: String| AgentError::Token { path: path.to_owned(), why };
    let found = fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if !found.is_file() || found.len() > MAX_BYTES {
        return Err(wrong(format!("expected a file of at most {MAX_BYTES} bytes")));
    }
    // A secret that Kubernetes mounts belongs to root, and the pod reads it by its group.
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    if found.mode() & if is_own { 0o077 } else { 0o007 } != 0 {
        return Err(wrong("other users can read it: chmod 600".to_owned()));
    }
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let mut names = BTreeSet::new();
    let mut tokens = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, token) = line.split_once(char::is_whitespace).unwrap_or((DEFAULT_NAME, line));
        let token = Token::new(token).map_err(|error| wrong(format!("line {number}: {error}")))?;
        if !names.insert(name.to_owned()) {
            return Err(wrong(format!("line {number}: the name {name} is there twice")));
        }
        if name.contains(['/', '@', '*']) {
            return Err(wrong(format!("line {number}: a name has no '/', '@' or '*'")));
        }
        tokens.push(ClusterToken::new(name, token));
    }
    if tokens.is_empty() {
        return Err(wrong("it has no token: `foreread token` prints a new one".to_owned()));
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TOKEN: &str = "b7e1c95a03f64d2893ab5c17e0d68f42";

    #[test]
    // semantics: CONTROL-1
    fn tokens_have_names_and_a_private_file() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("tokens");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            read_tokens(&path)
        };
        let names =
            |text: &str| -> Vec<String> { read(text).unwrap().into_iter().map(|token| token.name).collect() };
        assert_eq!(names(&format!("# all\n\n{TOKEN}\n")), ["cluster"]);
        assert_eq!(names(&format!("alice {TOKEN}\nbob\t{TOKEN}\n")), ["alice", "bob"]);
        let jobs: BTreeSet<u64> = read(&format!("alice {TOKEN}\nbob {TOKEN}\n"))
            .unwrap()
            .iter()
            .map(|token| token.identity().job)
            .collect();
        assert_eq!(jobs.len(), 2);
        for (text, says) in [
            ("", "no token"),
            ("alice hunter2", "line 1: a token needs 128 random bits"),
            (&*format!("a {TOKEN}\na {TOKEN}"), "line 2: the name a is there twice"),
            (&*format!("a/b {TOKEN}"), "a name has no '/'"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read_tokens(&path).unwrap_err().to_string().contains("chmod 600"));
        assert!(read_tokens(root.path()).unwrap_err().to_string().contains("expected a file"));
    }
}
