//! The identity of a node, and its host name.

use std::fs;

/// The id that processes of one node share: the boot id, the network namespace and the host name.
/// It differs between pods, and between most containers of one machine. It is equal for processes
/// of HPC container tools, although each has its own view of the file system. They share the
/// machine's disks, and most often `/tmp`. If a socket there is not visible, they use TCP.
pub(super) fn node_id() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = fs::read_link("/proc/self/ns/net").map(|link| link.display().to_string());
    format!("{} {} {}", boot.trim(), network.unwrap_or_default(), host_name())
}

/// This host's name.
pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_id_is_stable_and_ends_with_the_host() {
        assert_eq!(node_id(), node_id());
        assert!(node_id().len() > 40 && node_id().ends_with(&host_name()), "{}", node_id());
    }
}
