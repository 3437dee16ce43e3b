//! The directory that processes of one user share on a machine.

use std::fs::{self, DirBuilder};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::{is_private_directory, replaceable_through};

/// The directory for sockets and links of this user's processes, which need not exist: in
/// `XDG_RUNTIME_DIR` if that is a directory, else in `/tmp`. Anyone may create the one in `/tmp`,
/// so it proves nothing.
pub fn user_directory() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| Path::new(path).is_absolute());
    match runtime.filter(|path| Path::new(path).is_dir()) {
        Some(runtime) => Path::new(&runtime).join("foreread"),
        None => PathBuf::from(format!("/tmp/foreread-{}", rustix::process::geteuid().as_raw())),
    }
}

/// A directory of this name in the [user's](user_directory). Both are created if they are missing,
/// and no other user can look into them or replace them.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] if others can, or the surrounding directory is another user's,
/// as after `sudo` with the user's environment. Also if it cannot be created.
pub fn private_user_directory(name: &str) -> Result<PathBuf> {
    private_in(&user_directory(), name)
}

fn private_in(user: &Path, name: &str) -> Result<PathBuf> {
    let refused = |path: &Path| {
        Error::new(ErrorKind::PermissionDenied, format!("{} is not this user's alone", path.display()))
    };
    let outer = user.parent().unwrap_or(user);
    let found = fs::metadata(outer)?;
    let is_sticky = found.mode() & 0o1000 != 0;
    if found.uid() != rustix::process::geteuid().as_raw() && !is_sticky {
        return Err(refused(outer));
    }
    let own = user.join(name);
    for directory in [user, &own] {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if !is_private_directory(directory)? {
            return Err(refused(directory));
        }
    }
    match replaceable_through(user)? {
        Some(_) => Err(refused(user)),
        None => Ok(own),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn directories_of_others_are_refused() {
        let outer = tempfile::tempdir().unwrap();
        let user = outer.path().join("foreread");
        let own = private_in(&user, "links").unwrap();
        assert_eq!((own.clone(), private_in(&user, "links").unwrap()), (user.join("links"), own.clone()));
        // A link to a directory of this user, and a directory that others can search.
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), user.join("link")).unwrap();
        assert_eq!(private_in(&user, "link").unwrap_err().kind(), ErrorKind::PermissionDenied);
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(private_in(&user, "links").unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert!(private_in(Path::new("/proc/none/foreread"), "links").is_err());
    }
}
