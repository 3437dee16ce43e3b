//! The agent's socket: a private directory, a lock, and nothing left by a killed agent.

use std::fs::{DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use foreread_dataset::{LockAttempt, LockFile};
use foreread_tier::{is_private_directory, replaceable_through};

use crate::error::AgentError;

const LOCK: &str = "agent.lock";

/// How long the end of a killed agent is waited for. Its memory is released first.
const ENDING: Duration = Duration::from_secs(5);

const POLL: Duration = Duration::from_millis(5);

/// The directory of a socket, which is created if it does not exist.
///
/// # Errors
/// If it cannot be created, belongs to another user, or can be searched or replaced by others.
pub fn private_directory(socket: &Path) -> Result<&Path, AgentError> {
    let directory = socket.parent().unwrap_or(Path::new("/"));
    let shown = directory.display();
    match DirBuilder::new().recursive(true).mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(AgentError::system(format!("cannot create {shown}"), error));
        }
        _ => {}
    }
    let system = |error| AgentError::system(format!("cannot look at {shown}"), error);
    if !is_private_directory(directory).map_err(system)? {
        return Err(AgentError::NotPrivate { directory: directory.to_owned() });
    }
    match replaceable_through(directory).map_err(system)? {
        Some(through) => Err(AgentError::Replaceable { directory: directory.to_owned(), through }),
        None => Ok(directory),
    }
}

/// The process that has locked the directory of a socket, if it still has. It may not answer: it is
/// stopped, or its socket was removed.
pub fn directory_holder(socket: &Path) -> Option<u32> {
    let lock = socket.parent()?.join(LOCK);
    let id = |found: std::fs::Metadata| (found.dev(), found.ino());
    let found = lock.metadata().ok().map(id)?;
    let text = std::fs::read_to_string(lock).ok()?;
    let process: u32 = text.strip_prefix("process ")?.split(' ').next()?.parse().ok()?;
    // Another process may have got the number since.
    let mut open = std::fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten();
    // Only its name is read of other files, which may be on a mount that hangs.
    let is_lock = |path: &Path| path.read_link().is_ok_and(|target| target.ends_with(LOCK));
    open.any(|file| is_lock(&file.path()) && file.path().metadata().ok().map(id) == Some(found))
        .then_some(process)
}

/// Whether the process that has locked the directory of a socket was killed, or is gone. It has the
/// lock until its memory is released.
fn is_ending(socket: &Path) -> bool {
    const KILL: u64 = 1 << (9 - 1);
    let Some(process) = directory_holder(socket) else { return true };
    let Ok(status) = std::fs::read_to_string(format!("/proc/{process}/status")) else { return true };
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_pending = |name| {
        value(name).and_then(|set| u64::from_str_radix(set, 16).ok()).is_some_and(|set| set & KILL != 0)
    };
    let has_ended = value("State:").is_some_and(|state| state.starts_with(['Z', 'X']));
    // A process without memory is past its last instruction.
    has_ended || is_pending("SigPnd:") || is_pending("ShdPnd:") || value("VmSize:").is_none()
}

/// Locks the directory of a socket for this process. Removes a socket that an ended agent has left.
pub(crate) fn prepare(socket: &Path) -> Result<LockFile, AgentError> {
    let directory = private_directory(socket)?;
    let shown = directory.display();
    let begun = Instant::now();
    let lock = loop {
        let lock = LockFile::lock(&directory.join(LOCK));
        match lock.map_err(|error| AgentError::system(format!("cannot lock {shown}"), error))? {
            LockAttempt::Locked(lock) => break lock,
            LockAttempt::InUse(by) if begun.elapsed() > ENDING || !is_ending(socket) => {
                return Err(AgentError::InUse { directory: directory.to_owned(), by });
            }
            LockAttempt::InUse(_) => std::thread::sleep(POLL),
        }
    };
    let wrong = |error| AgentError::system(format!("cannot replace {}", socket.display()), error);
    match socket.symlink_metadata() {
        // A file may be of value to its user.
        Ok(found) if !found.file_type().is_socket() => Err(wrong(ErrorKind::AlreadyExists.into())),
        Ok(_) => std::fs::remove_file(socket).map(|()| lock).map_err(wrong),
        Err(_) => Ok(lock),
    }
}

/// Lets only this user open the socket, whatever the directory allows later.
pub(crate) fn restrict(socket: &Path) -> Result<(), AgentError> {
    std::fs::set_permissions(socket, Permissions::from_mode(0o600))
        .map_err(|error| AgentError::system(format!("cannot protect {}", socket.display()), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: AGENT-5
    fn directory_must_be_private_and_is_used_once() {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("a/b/node.sock");
        let lock = prepare(&socket).unwrap();
        let directory = socket.parent().unwrap();
        assert_eq!(directory.metadata().unwrap().mode() & 0o777, 0o700);
        assert!(matches!(prepare(&socket).unwrap_err(), AgentError::InUse { .. }));
        assert_eq!(directory_holder(&socket), Some(std::process::id()));
        // Left by an agent that was killed.
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        drop(lock);
        assert_eq!(directory_holder(&socket), None);
        std::fs::write(directory.join(LOCK), "process 1 on elsewhere, which was killed").unwrap();
        assert_eq!(directory_holder(&socket), None);
        drop(prepare(&socket).unwrap());
        assert!(!socket.exists());
        std::fs::write(&socket, "a file of the user").unwrap();
        assert!(matches!(prepare(&socket).unwrap_err(), AgentError::System { .. }));
        assert!(socket.exists());
        std::fs::set_permissions(root.path().join("a"), Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(prepare(&socket).unwrap_err(), AgentError::Replaceable { .. }));
        std::fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(prepare(&socket).unwrap_err(), AgentError::NotPrivate { .. }));
    }
}
