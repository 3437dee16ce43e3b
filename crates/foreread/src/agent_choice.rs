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
    /// The one that `FOREREAD_AGENT` names, or the user's own if it runs, or none.
    #[default]
    Auto,
    /// None.
    Off,
    /// The one whose socket has this path.
    At(PathBuf),
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
            Self::At(path) => path.display().fmt(f),
        }
    }
}

/// The socket of this user's agent, which need not exist: in `XDG_RUNTIME_DIR`, else in a directory
/// of the user in `/tmp`.
pub fn default_socket() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| Path::new(path).is_absolute());
    let directory = match runtime {
        Some(runtime) => Path::new(&runtime).join("foreread"),
        None => PathBuf::from(format!("/tmp/foreread-{}", rustix::process::geteuid().as_raw())),
    };
    directory.join(SOCKET)
}

impl AgentChoice {
    /// Whether samples are not to be shared with other processes of the node.
    #[cfg(feature = "peer")]
    pub(crate) fn is_off(&self) -> bool {
        let variable = || std::env::var(AGENT_VARIABLE).is_ok_and(|value| value == "off");
        *self == Self::Off || *self == Self::Auto && variable()
    }

    /// The socket of the agent, if there may be one.
    #[cfg(all(feature = "agent", target_os = "linux"))]
    pub fn socket(&self) -> Option<PathBuf> {
        match self {
            Self::Off => None,
            Self::At(path) => Some(path.clone()),
            Self::Auto => match std::env::var_os(AGENT_VARIABLE).filter(|path| !path.is_empty()) {
                Some(text) => text.to_str()?.parse::<Self>().ok().filter(|it| *it != Self::Auto)?.socket(),
                None => Some(default_socket()).filter(|path| is_own(path)),
            },
        }
    }
}

/// Whether a socket is in a directory that other users cannot change. Anyone may create the
/// directory in `/tmp`.
#[cfg(all(feature = "agent", target_os = "linux"))]
fn is_own(socket: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let own = rustix::process::geteuid().as_raw();
    let directory = socket.parent().and_then(|directory| directory.symlink_metadata().ok());
    let is_private = directory.is_some_and(|it| it.is_dir() && it.uid() == own && it.mode() & 0o077 == 0);
    is_private && socket.exists()
}

#[cfg(all(test, feature = "agent", target_os = "linux"))]
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
        assert!(!is_own(Path::new("/tmp/nothing/node.sock")));
    }
}
