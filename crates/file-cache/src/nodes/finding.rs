//! How hosts of several nodes find each other: a directory that all of them see.
//!
//! Each host has a file there with its addresses, one a line. The name of the file is the id of the
//! host, which stays the same for a directory of copies until the machine starts again. So a host
//! that is restarted replaces its file. The directory belongs to the job and is private to the
//! user. It has no secrets: the token authenticates hosts.
//!
//! Only names are listed, and a file is read once, or again after its host did not answer. So many
//! nodes cost a file server little. The price: files of killed hosts stay for some minutes, and
//! each costs a failed connection then.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use foreread_connection::Address;
use foreread_launcher::{INTERFACE, InterfaceFilter};
use foreread_preload::layout::PathHash;
use foreread_types::Rank;
use if_addrs::Interface;

use crate::adoption::boot;
use crate::directory::{is_own, make};

/// The files that are looked at. More hosts do not find each other all.
const MAX_HOSTS: usize = 4096;

/// The most bytes of a file that are read, and the most addresses.
const MAX_BYTES: u64 = 2048;
const MAX_ADDRESSES: usize = 16;

/// A file that is so much older than this host's is that of a dead host, if no host answers there.
const OLD: Duration = Duration::from_secs(300);

/// The id of a host, which its file is named by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostId(pub(super) u64);

impl HostId {
    /// The id of the host of a cache in this directory, until the machine starts again.
    pub(super) fn of(cache: &Path) -> io::Result<Self> {
        let boot = boot().unwrap_or_default();
        let found = std::fs::metadata(cache)?;
        let name = format!("{} {} {}", String::from_utf8_lossy(&boot).trim(), found.dev(), found.ino());
        let hash = PathHash::new(0, 0).add(name.bytes(), true).and_then(PathHash::finish);
        Ok(Self(hash.unwrap_or(1)))
    }

    /// The number by which a host names itself in a handshake.
    pub(super) fn rank(self) -> Rank {
        Rank(self.0 as u32)
    }

    fn parse(name: &str) -> Option<Self> {
        let is_id = name.len() == 16 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        u64::from_str_radix(name, 16).ok().filter(|_| is_id).map(Self)
    }

    fn name(self) -> String {
        format!("{:016x}", self.0)
    }
}

/// The directory in which hosts find each other, and this host's file there.
#[derive(Debug)]
pub(super) struct HostDirectory {
    path: PathBuf,
    own: HostId,
    text: String,
    /// Whether this host has left. Its file is not written again then.
    has_left: Mutex<bool>,
}

impl HostDirectory {
    /// Announces a host at these addresses.
    pub(super) fn join(path: &Path, own: HostId, addresses: &[Address]) -> io::Result<Self> {
        make(path)?;
        if !is_own(path, rustix::process::geteuid().as_raw())? {
            let why = "it is not a private directory of this user (mode 0700)";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let text = addresses.iter().map(|address| format!("{address}\n")).collect();
        let directory = Self { path: path.to_owned(), own, text, has_left: Mutex::new(false) };
        directory.write()?;
        Ok(directory)
    }

    fn file_of(&self, host: HostId) -> PathBuf {
        self.path.join(host.name())
    }

    /// Writes this host's file, also to show that it is alive.
    pub(super) fn write(&self) -> io::Result<()> {
        let has_left = self.has_left.lock().unwrap_or_else(PoisonError::into_inner);
        if *has_left {
            return Ok(());
        }
        let new = self.path.join(format!("{}.{}", self.own.name(), std::process::id()));
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(self.text.as_bytes())?;
        std::fs::rename(&new, self.file_of(self.own))
    }

    /// Removes this host's file.
    pub(super) fn leave(&self) {
        let mut has_left = self.has_left.lock().unwrap_or_else(PoisonError::into_inner);
        *has_left = true;
        // A later host of this directory of copies replaces one that stays.
        let _ = std::fs::remove_file(self.file_of(self.own));
    }

    /// The other hosts that have a file.
    pub(super) fn others(&self) -> io::Result<Vec<HostId>> {
        let names = std::fs::read_dir(&self.path)?.flatten().take(MAX_HOSTS);
        let hosts = names.filter_map(|entry| HostId::parse(entry.file_name().to_str()?));
        Ok(hosts.filter(|host| *host != self.own).collect())
    }

    /// The addresses of a host. None if there is no file of a host.
    pub(super) fn addresses(&self, host: HostId) -> Vec<Address> {
        let mut text = String::new();
        let read = std::fs::File::open(self.file_of(host))
            .and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
        if let Err(error) = read {
            tracing::debug!(%error, host = host.name(), "no addresses of a host");
            return Vec::new();
        }
        let all = text.lines().filter_map(|line| line.parse().ok());
        all.filter(|address| matches!(address, Address::Tcp(..))).take(MAX_ADDRESSES).collect()
    }

    /// Removes the file of a host that does not answer, if it is old. Both times are those of the
    /// file server, so clocks of nodes may differ.
    pub(super) fn remove_if_old(&self, host: HostId) {
        let time = |host| std::fs::metadata(self.file_of(host)).and_then(|found| found.modified());
        let (Ok(its), Ok(ours)) = (time(host), time(self.own)) else { return };
        if ours.duration_since(its).is_ok_and(|age| age > OLD) {
            let _ = std::fs::remove_file(self.file_of(host));
        }
    }
}

/// The addresses of this machine that other nodes may reach: those of the interfaces that the user
/// names, as in [`INTERFACE`], or all. Those of the loopback interface if it has no others.
///
/// # Errors
/// If no interface has any of the names, or the system does not list them.
pub fn own_addresses(names: Option<&str>, port: u16) -> io::Result<Vec<Address>> {
    let interfaces = if_addrs::get_if_addrs()?;
    let reachable = interfaces.iter().filter(|of| !of.is_link_local());
    let all: Vec<IpAddr> = match names.map(InterfaceFilter::of) {
        Some(names) => reachable.filter(|of| names.matches(&of.name)).map(Interface::ip).collect(),
        None => reachable.filter(|of| !of.is_loopback()).map(Interface::ip).collect(),
    };
    if all.is_empty() && names.is_some() {
        let why = format!("no network interface of this host matches {INTERFACE}");
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    let loopback = all.is_empty().then(|| IpAddr::from([127, 0, 0, 1]));
    let all = all.into_iter().chain(loopback).take(MAX_ADDRESSES);
    Ok(all.map(|ip| Address::tcp(ip.to_string(), port)).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn hosts_find_each_other_until_they_leave() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("hosts");
        let address = Address::tcp("10.0.0.1", 7);
        let one = HostDirectory::join(&path, HostId(1), std::slice::from_ref(&address)).unwrap();
        let other = HostDirectory::join(&path, HostId(2), &[]).unwrap();
        std::fs::write(path.join("000000000000000A"), "10.0.0.1:9").unwrap();
        assert_eq!((one.others().unwrap(), other.others().unwrap()), (vec![HostId(2)], vec![HostId(1)]));
        assert_eq!(other.addresses(HostId(1)), [address]);
        // Sockets of a node and damaged lines are no addresses of other nodes.
        std::fs::write(path.join(HostId(2).name()), "unix:@x\nnonsense\n[::1]:9\n").unwrap();
        assert_eq!(one.addresses(HostId(2)), [Address::tcp("::1", 9)]);
        other.remove_if_old(HostId(1));
        one.leave();
        one.write().unwrap();
        assert_eq!(other.others().unwrap(), []);
        assert_eq!(other.addresses(HostId(1)), []);
    }

    #[test]
    fn directory_that_others_can_enter_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        std::fs::set_permissions(parent.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let refused = HostDirectory::join(parent.path(), HostId(1), &[]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    // semantics: RANK-26
    fn addresses_are_those_of_named_interfaces() {
        let of = |names| own_addresses(names, 7);
        assert!(of(Some("lo")).unwrap().contains(&Address::tcp("127.0.0.1", 7)));
        assert!(!of(None).unwrap().is_empty());
        let error = of(Some("nosuch")).unwrap_err().to_string();
        assert_eq!(error, "no network interface of this host matches FOREREAD_INTERFACE");
    }

    #[test]
    fn id_is_that_of_the_directory_of_copies() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let id = HostId::of(one.path()).unwrap();
        assert_eq!((HostId::of(one.path()).unwrap(), HostId::parse(&id.name())), (id, Some(id)));
        assert_ne!(HostId::of(other.path()).unwrap(), id);
    }
}
