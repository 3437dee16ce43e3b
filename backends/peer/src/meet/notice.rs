//! Rank 0's notice in a shared directory: its addresses, and the job's token if the user gave none.
//!
//! The notice is a file that only its owner can read, in a directory that only its owner can enter.
//! Readers check the owner: a directory of another user is refused. The notice is replaced as a
//! whole, so that a reader sees the last run's notice or this one's, never half of either. A reader
//! that rank 0 refuses reads it again. Each loader of a process has its own notice and token.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use foreread_connection::Token;
use foreread_launcher::{LauncherEnv, MEET, TOKEN};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::{MeetError, MeetErrorKind};

/// The file name for a process's first loader.
const NOTICE: &str = "rank0";

/// The file name for any loader.
fn notice_name(loader: u16) -> String {
    match loader {
        0 => NOTICE.to_owned(),
        later => format!("{NOTICE}-{later}"),
    }
}

/// The largest notice.
const MAX_NOTICE_BYTES: u64 = 64 * 1024;

/// Attempts of operations that the end of an earlier run can disturb.
const MAX_ATTEMPTS: u32 = 10;

fn secret_error(line: String) -> MeetError {
    MeetError::new(MeetErrorKind::Secret, line)
}

/// The user's token, if any.
///
/// # Errors
///
/// [`MeetErrorKind::Secret`] if it can be guessed.
pub fn given_token(surroundings: &LauncherEnv<'_>) -> Result<Option<Token>, MeetError> {
    let token = surroundings.get(TOKEN).map(Token::new).transpose();
    token.map_err(|why| secret_error(format!("{TOKEN} cannot be used: {why}")))
}

/// The error if there is neither a token nor a private way to pass one.
pub(super) fn no_token(meet: &impl std::fmt::Display) -> MeetError {
    secret_error(format!(
        "ranks meet at {meet}, where a token is required: put `export {TOKEN}=$(foreread token)` into the \
         job script before the command that starts the ranks, or set {MEET} to a directory that all ranks \
         share"
    ))
}

/// The notice that rank 0 publishes.
#[derive(Serialize, Deserialize)]
pub(super) struct Rank0Notice {
    /// The process that wrote it.
    pub instance: u64,
    /// Rank 0's node. Its Unix sockets are unreachable from other nodes.
    #[serde(default)]
    pub node: String,
    /// The addresses of rank 0.
    pub addresses: Vec<String>,
    /// The token, if the user gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// A directory that only this user can access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PrivateDirectory {
    path: PathBuf,
    uid: u32,
}

impl PrivateDirectory {
    /// Opens `path`, and creates it if it does not exist.
    pub(super) fn open(path: &Path) -> Result<Self, MeetError> {
        Self::at(path, rustix::process::geteuid().as_raw())
    }

    /// Opens `path`, and creates it if it does not exist. Only `uid` may have access.
    fn at(path: &Path, uid: u32) -> Result<Self, MeetError> {
        let shown = path.display();
        let cannot = |what: &str, error: io::Error| {
            let line = format!("ranks cannot meet in {shown}: {what}: {error}");
            MeetError::caused(MeetErrorKind::Secret, line, error)
        };
        let refused = |why: String| secret_error(format!("ranks do not meet in {shown}: {why}"));
        let parent = path.parent().unwrap_or(path);
        let above = fs::metadata(parent).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let why = format!("create {}, a directory that all ranks can access", parent.display());
                cannot(&why, error)
            }
            _ => cannot("its parent cannot be read", error),
        })?;
        // A user with write access to the parent could replace this directory, unless the parent is
        // sticky.
        let open = above.mode() & 0o022 != 0 && above.mode() & 0o1000 == 0;
        if open || ![uid, 0].contains(&above.uid()) {
            let why = if open {
                "is writable by other users".to_owned()
            } else {
                format!("is user {}'s", above.uid())
            };
            return Err(refused(format!(
                "other users can replace it, because {} {why}: choose a directory that only you can write \
                 to",
                parent.display()
            )));
        }
        // The last rank of an earlier run may remove it between the two calls.
        let mut attempts = 0;
        let found = loop {
            match fs::DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(cannot("it cannot be made", error));
                }
                _ => {}
            }
            attempts += 1;
            match fs::symlink_metadata(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < MAX_ATTEMPTS => {}
                found => break found.map_err(|error| cannot("it cannot be read", error))?,
            }
        };
        if !found.is_dir() {
            return Err(refused("it is not a directory; remove it".to_owned()));
        }
        if found.uid() != uid {
            return Err(refused(format!("it belongs to user {}, not to user {uid}", found.uid())));
        }
        if found.mode() & 0o077 != 0 {
            return Err(refused(format!("other users can enter it: `chmod 700 {shown}`")));
        }
        Ok(Self { path: path.to_owned(), uid })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the notice of this loader.
    pub(super) fn publish(&self, loader: u16, notice: &Rank0Notice) -> Result<(), MeetError> {
        let path = self.path.join(notice_name(loader));
        let new = self.path.join(format!("{NOTICE}.{:016x}", notice.instance));
        let write = || -> io::Result<()> {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut attempts = 0;
            let file = loop {
                attempts += 1;
                match rustix::fs::open(&new, flags, Mode::RUSR | Mode::WUSR) {
                    // The last rank of an earlier run has just removed the directory.
                    Err(rustix::io::Errno::NOENT) if attempts < MAX_ATTEMPTS => {
                        drop(fs::DirBuilder::new().mode(0o700).create(&self.path));
                    }
                    file => break file?,
                }
            };
            let mut file = fs::File::from(file);
            file.write_all(&serde_json::to_vec(notice)?)?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        write().map_err(|error| {
            // Otherwise it would block the next attempt.
            drop(fs::remove_file(&new));
            let line =
                format!("rank 0 cannot write {}, by which other ranks find it: {error}", path.display());
            MeetError::caused(MeetErrorKind::Secret, line, error)
        })
    }

    /// The notice for this loader, if there is one.
    pub(super) fn notice(&self, loader: u16) -> Result<Option<Rank0Notice>, MeetError> {
        self.notice_at(&notice_name(loader))
    }

    fn notice_at(&self, name: &str) -> Result<Option<Rank0Notice>, MeetError> {
        let (path, uid) = (self.path.join(name), self.uid);
        let shown = path.display();
        // Network file systems revalidate a directory when it is listed, but may cache that a name
        // does not exist.
        let listed = fs::read_dir(&self.path).map(|entries| entries.flatten().any(|e| e.file_name() == name));
        if !listed.unwrap_or(true) {
            return Ok(None);
        }
        let read = || -> io::Result<(fs::Metadata, Vec<u8>)> {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = fs::File::from(rustix::fs::open(&path, flags, Mode::empty())?);
            let metadata = file.metadata()?;
            let mut text = Vec::new();
            file.take(MAX_NOTICE_BYTES).read_to_end(&mut text)?;
            Ok((metadata, text))
        };
        let (metadata, text) = match read() {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let line = format!("{shown}, by which rank 0 is found, cannot be read: {error}");
                // Possibly temporary: a file server that restarts, or a file that is being
                // replaced.
                return Err(MeetError::caused(MeetErrorKind::Network, line, error));
            }
        };
        if !metadata.is_file() || metadata.uid() != uid || metadata.permissions().mode() & 0o077 != 0 {
            return Err(secret_error(format!(
                "{shown} must be a private file of user {uid}, but it belongs to user {} with mode {:o}: \
                 remove it",
                metadata.uid(),
                metadata.permissions().mode() & 0o7777
            )));
        }
        // On a network file system, a file that is being replaced may be read in part. It then
        // counts as missing.
        Ok(serde_json::from_slice(&text).ok())
    }

    /// Removes the loader's notice if `instance` wrote it, and the directory if it is empty.
    ///
    /// The notice is renamed before it is checked and removed, because a new rank 0 may replace it
    /// at any moment.
    pub(super) fn withdraw(&self, loader: u16, instance: u64) {
        let (name, aside) = (notice_name(loader), format!("{NOTICE}.{instance:016x}.old"));
        let (path, aside_path) = (self.path.join(&name), self.path.join(&aside));
        let is_ours = |name: &str| {
            self.notice_at(name).ok().flatten().is_some_and(|notice| notice.instance == instance)
        };
        if is_ours(&name) && fs::rename(&path, &aside_path).is_ok() {
            if !is_ours(&aside) {
                // A new rank 0 replaced it in between: restored, unless there is a newer one still.
                drop(fs::hard_link(&aside_path, &path));
            }
            drop(fs::remove_file(&aside_path));
        }
        // Fails if other notices are in it, as intended.
        drop(fs::remove_dir(&self.path));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn refusal(path: &Path, uid: u32) -> String {
        match PrivateDirectory::at(path, uid) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{} was taken", path.display()),
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    fn notice(instance: u64) -> Rank0Notice {
        let token = Some("b7e1c95a03f64d2893ab5c17e0d68f42".to_owned());
        Rank0Notice { instance, node: "a".to_owned(), addresses: vec!["unix:/x".to_owned()], token }
    }

    #[test]
    fn only_the_owner_can_read_the_token() {
        let base = tempfile::tempdir().unwrap();
        let directory = PrivateDirectory::open(&base.path().join("meet")).unwrap();
        assert!(directory.notice(0).unwrap().is_none());
        directory.publish(0, &notice(1)).unwrap();
        assert_eq!(mode(directory.path()), 0o700);
        assert_eq!(mode(&directory.path().join(NOTICE)), 0o600);
        assert_eq!(
            directory.notice(0).unwrap().unwrap().token.as_deref(),
            Some("b7e1c95a03f64d2893ab5c17e0d68f42")
        );
        // A later run replaces it, and the earlier one does not remove it.
        directory.publish(0, &notice(2)).unwrap();
        directory.withdraw(0, 1);
        assert_eq!(directory.notice(0).unwrap().unwrap().instance, 2);
        directory.withdraw(0, 2);
        assert!(!directory.path().exists());
    }

    #[test]
    fn each_loader_has_its_own_notice() {
        let base = tempfile::tempdir().unwrap();
        let directory = PrivateDirectory::open(&base.path().join("meet")).unwrap();
        directory.publish(0, &notice(1)).unwrap();
        assert!(directory.notice(1).unwrap().is_none());
        directory.publish(1, &notice(2)).unwrap();
        let instance = |loader| directory.notice(loader).unwrap().map(|notice| notice.instance);
        assert_eq!((instance(0), instance(1)), (Some(1), Some(2)));
        directory.withdraw(1, 2);
        assert_eq!((instance(0), instance(1)), (Some(1), None));
    }

    #[test]
    fn directory_with_wrong_permissions_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("meet");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(refusal(&path, uid()).contains("other users can enter it"));
        let link = base.path().join("link");
        symlink(base.path(), &link).unwrap();
        assert!(refusal(&link, uid()).contains("it is not a directory"));
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o770)).unwrap();
        assert!(refusal(&path, uid()).contains("other users can replace it"));
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(PrivateDirectory::at(&path, uid()).is_ok());
    }

    #[test]
    fn directory_of_another_user_is_refused() {
        // In the sticky /tmp, checked as the next user id.
        let other =
            tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o700)).tempdir().unwrap();
        let stranger = uid() + 1;
        let why = refusal(other.path(), stranger);
        assert!(why.contains(&format!("it belongs to user {}, not to user {stranger}", uid())), "{why}");
    }

    #[test]
    fn notice_with_wrong_owner_or_mode_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let directory = PrivateDirectory::open(&base.path().join("meet")).unwrap();
        directory.publish(0, &notice(1)).unwrap();
        let others = PrivateDirectory { uid: uid() + 1, ..directory.clone() };
        let error = others.notice(0).err().unwrap();
        assert_eq!(error.kind(), MeetErrorKind::Secret);
        let path = directory.path().join(NOTICE);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = directory.notice(0).err().unwrap().to_string();
        assert!(error.contains("with mode 644: remove it"), "{error}");
        fs::remove_file(&path).unwrap();
        symlink("/etc/passwd", &path).unwrap();
        assert!(directory.notice(0).is_err());
    }

    #[test]
    fn directory_without_a_parent_is_named() {
        let base = tempfile::tempdir().unwrap();
        let error = PrivateDirectory::open(&base.path().join("gone/meet")).unwrap_err().to_string();
        let parent = base.path().join("gone");
        let remedy = format!("create {}, a directory that all ranks can access: ", parent.display());
        assert!(error.contains(&remedy), "{error}");
    }

    #[test]
    // semantics: RANK-10
    fn notice_of_another_rank_0_is_put_back() {
        let base = tempfile::tempdir().unwrap();
        let directory = PrivateDirectory::open(&base.path().join("meet")).unwrap();
        directory.publish(0, &notice(2)).unwrap();
        directory.withdraw(0, 1);
        assert_eq!(directory.notice(0).unwrap().unwrap().instance, 2);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn half_a_notice_is_none() {
        let base = tempfile::tempdir().unwrap();
        let directory = PrivateDirectory::open(&base.path().join("meet")).unwrap();
        directory.publish(0, &notice(1)).unwrap();
        let path = directory.path().join(NOTICE);
        let text = fs::read(&path).unwrap();
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert!(directory.notice(0).unwrap().is_none());
    }

    #[test]
    fn guessable_token_is_refused_with_the_remedy() {
        let with = |text: &'static str| {
            given_token(&LauncherEnv::new(&|name| (name == TOKEN).then(|| text.to_owned()), 0, 1))
        };
        assert!(with("").unwrap().is_none());
        assert!(with("b7e1c95a03f64d2893ab5c17e0d68f42").unwrap().is_some());
        let error = with("hunter2").unwrap_err();
        assert_eq!(error.kind(), MeetErrorKind::Secret);
        let line = error.to_string();
        assert!(line.contains("FOREREAD_TOKEN") && line.contains("foreread token"), "{line}");
        assert!(!line.contains("hunter2"), "{line}");
    }
}
