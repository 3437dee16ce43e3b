//! Whether only this user can put files into a directory, or another directory in its place.
//!
//! Programs load a library from a cache of files and connect to the sockets of agents. So other
//! users must be able to replace neither their directory nor a directory above it. The owner of a
//! directory can replace its entries. So can its group and others who may write to it, unless it
//! has the sticky bit, as `/tmp`. Links on the way count as the directories that they are in, and
//! their targets are on the way too.
//!
//! Trusted are root, this user, and a group that has no other member. Groups of a directory service
//! are in no file, so such a group counts as private only if its number is the user's. The price: a
//! directory below one of a colleague is refused, even if the colleague is trustworthy.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// The most links on the way, as in Linux.
const MAX_LINKS: u32 = 40;

/// A directory or link through which other users can replace the directories below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplaceableThrough {
    directory: PathBuf,
    owner: u32,
    group: u32,
    mode: u32,
    /// Whether its owner is the reason, and not its mode.
    is_foreign: bool,
}

impl fmt::Display for ReplaceableThrough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { directory, owner, group, mode, is_foreign } = self;
        let directory = directory.display();
        write!(f, "{directory} (owner {owner}, group {group}, mode {mode:04o}) ")?;
        if *is_foreign {
            return write!(f, "belongs to another user: use a directory below those of root and your own");
        }
        write!(f, "can be written by others and has no sticky bit: ")?;
        write!(f, "use another directory, or let its owner take that right away (chmod go-w {directory}) ")?;
        write!(f, "or set the bit (chmod +t {directory})")
    }
}

/// The first directory or link on the way to `directory` through which other users could replace
/// it. `directory` itself need not exist.
///
/// # Errors
/// If a part of the way cannot be looked at.
pub fn replaceable_through(directory: &Path) -> io::Result<Option<ReplaceableThrough>> {
    let absolute = std::path::absolute(directory)?;
    absolute.parent().map_or(Ok(None), |above| Caller::of_this_process().untrusted_in(above, MAX_LINKS))
}

/// Whether `path` is a directory of this user, and no link, that others cannot even search.
///
/// # Errors
/// If it cannot be looked at.
pub fn is_private_directory(path: &Path) -> io::Result<bool> {
    let found = fs::symlink_metadata(path)?;
    let user = rustix::process::geteuid().as_raw();
    Ok(found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0)
}

/// The user for whom directories are checked.
struct Caller {
    user: u32,
    /// The owner that the kernel shows for users without a number in this namespace. On the machine
    /// they are root, or users without any right here.
    unmapped: Option<u32>,
    /// The content of `/etc/passwd` and `/etc/group`.
    users: String,
    groups: String,
}

impl Caller {
    fn of_this_process() -> Self {
        let read = |path: &str| fs::read(path).map_or_else(|_| String::new(), lossy);
        let lines = read("/proc/self/uid_map");
        let maps_all = lines.split_whitespace().eq(["0", "0", "4294967295"]);
        let unmapped = read("/proc/sys/kernel/overflowuid").trim().parse().ok();
        Self {
            user: rustix::process::geteuid().as_raw(),
            unmapped: unmapped.filter(|_| !lines.is_empty() && !maps_all),
            users: read("/etc/passwd"),
            groups: read("/etc/group"),
        }
    }

    fn untrusted_in(&self, path: &Path, links: u32) -> io::Result<Option<ReplaceableThrough>> {
        for part in path.ancestors() {
            let found = fs::symlink_metadata(part)?;
            let (owner, group, mode) = (found.uid(), found.gid(), found.mode() & 0o7777);
            let is_foreign = !self.trusts(owner);
            let is_open = || !found.is_symlink() && self.others_may_write(mode, group, || has_acl(part));
            if is_foreign || is_open() {
                let directory = part.to_owned();
                return Ok(Some(ReplaceableThrough { directory, owner, group, mode, is_foreign }));
            }
            if found.is_symlink() {
                let links = links.checked_sub(1).ok_or(Errno::LOOP)?;
                let target = part.parent().unwrap_or(part).join(fs::read_link(part)?);
                if let Some(found) = self.untrusted_in(&target, links)? {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    fn trusts(&self, owner: u32) -> bool {
        owner == 0 || owner == self.user || Some(owner) == self.unmapped
    }

    /// Whether a mode lets other users replace the entries of a directory. With access control
    /// lists, the bits of the group are the rights of any user.
    fn others_may_write(&self, mode: u32, group: u32, has_acl: impl Fn() -> bool) -> bool {
        let by_group = mode & 0o020 != 0 && (!self.is_private(group) || has_acl());
        mode & 0o1000 == 0 && (mode & 0o002 != 0 || by_group)
    }

    /// Whether this user is alone in a group.
    fn is_private(&self, group: u32) -> bool {
        let number = |text: &str| text.parse::<u32>().ok();
        let (mut name, mut is_shared) = (None, false);
        for line in self.users.lines() {
            let mut fields = line.split(':');
            let (Some(user), Some(id)) = (fields.next(), fields.nth(1).and_then(number)) else { continue };
            if id == self.user {
                name = name.or(Some(user));
            } else {
                is_shared |= fields.next().and_then(number) == Some(group);
            }
        }
        let mut is_listed = false;
        for line in self.groups.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            if fields.get(2).copied().and_then(number) == Some(group) {
                is_listed = true;
                let members = fields.get(3).copied().unwrap_or_default().split(',');
                is_shared |= members.filter(|member| !member.is_empty()).any(|member| Some(member) != name);
            }
        }
        let is_own = group == self.user || is_listed && group == rustix::process::getegid().as_raw();
        is_own && !is_shared
    }
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a directory has an access control list, or may have one.
fn has_acl(directory: &Path) -> bool {
    let found = rustix::fs::getxattr(directory, "system.posix_acl_access", &mut [0; 0][..]);
    !matches!(found, Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn caller(user: u32) -> Caller {
        Caller {
            user,
            unmapped: None,
            users: "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:\nbob:x:1001:1001::/:\neve:x:1002:50::/:\n"
                .into(),
            groups: "root:x:0:\nann:x:1000:ann\nbob:x:1001:eve\nstaff:x:50:\n".into(),
        }
    }

    #[test]
    // semantics: AGENT-5, FILES-2
    fn group_write_is_trusted_in_a_group_without_others_alone() {
        let may_write = |user, mode, group, acl| caller(user).others_may_write(mode, group, || acl);
        assert!(!may_write(1000, 0o775, 1000, false), "the user's private group");
        assert!(may_write(1000, 0o775, 1000, true), "a list may name any user");
        assert!(may_write(1000, 0o777, 1000, false));
        assert!(may_write(1001, 0o775, 1001, false), "it has another member");
        assert!(may_write(1000, 0o775, 50, false), "another user's group");
        assert!(!may_write(1000, 0o755, 50, true) && !may_write(1000, 0o1777, 50, true));
        // In no file, as with a directory service.
        assert!(!may_write(7000, 0o775, 7000, false) && may_write(7000, 0o775, 7001, false));
    }

    #[test]
    // semantics: AGENT-5, FILES-2
    fn owners_without_a_number_in_a_namespace_are_trusted() {
        assert!(!caller(1000).trusts(65_534));
        let inside = Caller { unmapped: Some(65_534), ..caller(1000) };
        assert!(inside.trusts(65_534) && inside.trusts(0) && inside.trusts(1000) && !inside.trusts(1001));
    }

    /// Root sets owners, and checks for itself and as user 1000.
    #[test]
    // semantics: AGENT-5, FILES-2
    fn directory_below_one_of_another_user_is_replaceable() {
        let made = tempfile::tempdir().unwrap();
        let at = |name: &str| made.path().join(name);
        let set = |name: &str, mode| {
            fs::create_dir_all(at(name)).unwrap();
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        let through = |name: &str, user: u32| {
            let found = caller(user).untrusted_in(at(name).parent().unwrap(), MAX_LINKS).unwrap();
            found.map(|found| {
                (found.directory.strip_prefix(made.path()).unwrap().to_owned(), found.to_string())
            })
        };
        let own = rustix::process::geteuid().as_raw();
        set("open/inner", 0o700);
        set("open", 0o777);
        let (directory, error) = through("open/inner/new", own).unwrap();
        assert_eq!(directory, Path::new("open"));
        assert!(error.contains("mode 0777") && error.contains("chmod +t"), "{error}");
        set("open", 0o1777);
        assert_eq!(through("open/inner/new", own), None);
        // A link can be replaced where it is, and leads where others may write.
        set("safe", 0o755);
        symlink(at("open/inner"), at("safe/link")).unwrap();
        assert_eq!(through("safe/link/new", own), None);
        set("open", 0o777);
        assert_eq!(through("safe/link/new", own).unwrap().0, Path::new("open"));
        symlink(at("safe"), at("open/link")).unwrap();
        assert_eq!(through("open/link/new", own).unwrap().0, Path::new("open"));
        symlink("loop", at("loop")).unwrap();
        assert!(caller(own).untrusted_in(&at("loop"), MAX_LINKS).is_err());
        if own != 0 {
            println!("skipped in part: only root gives directories to other users");
            return;
        }
        set("of/bob/ann", 0o700);
        chown(at("of/bob"), Some(1001), Some(1001)).unwrap();
        chown(at("of/bob/ann"), Some(1000), Some(1000)).unwrap();
        set("of/bob", 0o1755);
        for user in [0, 1000] {
            let (directory, error) = through("of/bob/ann", user).unwrap();
            assert_eq!(directory, Path::new("of/bob"));
            assert!(error.contains("owner 1001") && error.contains("another user"), "{error}");
        }
        assert_eq!(through("of/bob/ann", 1001), None);
        assert_eq!(through("of/bob/ann/new", 0).unwrap().0, Path::new("of/bob/ann"));
    }
}
