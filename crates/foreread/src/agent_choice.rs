//! Which agent a job uses, and where the agent of a user listens.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The environment variable with the path of an agent's socket.
pub const AGENT_VARIABLE: &str = "FOREREAD_AGENT";

/// The name of an agent's socket in its directory.
const SOCKET: &str = "node.sock";

/// The agent that a job uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AgentChoice {
    /// The agent that `FOREREAD_AGENT` names, or the user's own if it runs, or none.
    #[default]
    Auto,
    /// None.
    Off,
    /// The one whose socket has this path.
    At(PathBuf),
    /// The cache that processes of one job share on a node. One of them hosts it.
    Job {
        /// The path of its socket.
        socket: PathBuf,
        /// The number of processes.
        ranks: u32,
    },
}

impl FromStr for AgentChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            path if Path::new(path).is_absolute() => Ok(Self::At(path.into())),
            other => Err(format!("'{other}': expected auto, off, or the absolute path of an agent's socket")),
        }
    }
}

impl fmt::Display for AgentChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::At(path) | Self::Job { socket: path, .. } => path.display().fmt(f),
        }
    }
}

/// The socket of this user's agent, which need not exist: in `XDG_RUNTIME_DIR`, else in a directory
/// of the user in `/tmp`.
pub fn default_socket() -> PathBuf {
    foreread_tier::user_directory().join(SOCKET)
}

impl AgentChoice {
    /// The socket of the agent, if there may be one.
    #[cfg(all(feature = "share", target_os = "linux"))]
    pub fn socket(&self) -> Option<PathBuf> {
        self.expected().filter(ExpectedSocket::may_use).map(|expected| expected.path)
    }

    /// Where an agent may serve now or later.
    #[cfg(all(feature = "share", target_os = "linux"))]
    pub(crate) fn expected(&self) -> Option<ExpectedSocket> {
        match self {
            Self::Off => None,
            Self::At(path) => Some(ExpectedSocket { path: path.clone(), is_named: true, shared_by: None }),
            Self::Job { socket, ranks } => {
                Some(ExpectedSocket { path: socket.clone(), is_named: true, shared_by: Some(*ranks) })
            }
            Self::Auto => match std::env::var_os(AGENT_VARIABLE).filter(|path| !path.is_empty()) {
                Some(text) => text.to_str()?.parse::<Self>().ok().filter(|it| *it != Self::Auto)?.expected(),
                None => Some(ExpectedSocket { path: default_socket(), is_named: false, shared_by: None }),
            },
        }
    }
}

/// The path of an agent's socket, which need not exist.
#[cfg(all(feature = "share", target_os = "linux"))]
#[derive(Clone, Debug)]
pub(crate) struct ExpectedSocket {
    pub(crate) path: PathBuf,
    /// Whether the user has named it, in contrast to the default.
    pub(crate) is_named: bool,
    /// The number of processes that share it, if one of them hosts it.
    pub(crate) shared_by: Option<u32>,
}

#[cfg(all(feature = "share", target_os = "linux"))]
impl ExpectedSocket {
    /// Whether it may be used now.
    pub(crate) fn may_use(&self) -> bool {
        self.is_named || is_own(&self.path)
    }
}

/// Whether a socket is in a directory that other users cannot change. Anyone may create the
/// directory in `/tmp`.
#[cfg(all(feature = "share", target_os = "linux"))]
pub(crate) fn is_own(socket: &Path) -> bool {
    socket.exists() && why_not_own(socket).is_none()
}

/// The reason why others may use or replace a socket, if they may.
#[cfg(all(feature = "share", target_os = "linux"))]
pub(crate) fn why_not_own(socket: &Path) -> Option<String> {
    use foreread_tier::{is_private_directory, replaceable_through};

    let directory = socket.parent()?;
    let shown = directory.display();
    match is_private_directory(directory).and_then(|is_own| Ok((is_own, replaceable_through(directory)?))) {
        Ok((true, None)) => None,
        Ok((true, Some(through))) => Some(format!("other users can replace {shown}: {through}")),
        Ok((false, _)) => Some(format!("{shown} belongs to another user or can be searched by others")),
        Err(error) => Some(format!("{shown} cannot be looked at: {error}")),
    }
}

#[cfg(all(test, feature = "share", target_os = "linux"))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn choices_have_texts() {
        for text in ["auto", "off", "/run/foreread/node.sock"] {
            assert_eq!(text.parse::<AgentChoice>().unwrap().to_string(), text);
        }
        assert!("node.sock".parse::<AgentChoice>().unwrap_err().contains("absolute path"));
        assert_eq!(AgentChoice::Off.socket(), None);
    }

    #[test]
    // semantics: AGENT-5
    fn socket_in_a_directory_of_others_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join(SOCKET);
        std::fs::write(&socket, "").unwrap();
        let mode = |mode| {
            std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            is_own(&socket)
        };
        assert!(mode(0o700) && !mode(0o770) && !mode(0o701));
        let inside = directory.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        std::fs::set_permissions(&inside, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::write(inside.join(SOCKET), "").unwrap();
        let is_replaceable = |above| {
            mode(above);
            !is_own(&inside.join(SOCKET))
        };
        assert!(is_replaceable(0o777) && !is_replaceable(0o1777) && !is_replaceable(0o755));
        // Any directory on the way counts.
        let far = inside.join("far");
        std::fs::create_dir(&far).unwrap();
        std::fs::set_permissions(&far, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::write(far.join(SOCKET), "").unwrap();
        assert!(mode(0o700) && is_own(&far.join(SOCKET)));
        mode(0o777);
        let why = why_not_own(&far.join(SOCKET)).unwrap();
        assert!(why.contains("mode 0777") && why.contains("chmod +t"), "{why}");
        assert!(!is_own(Path::new("/tmp/nothing/node.sock")));
    }
}
