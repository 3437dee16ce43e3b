//! Which node a process is on, and what it is called there and elsewhere.

use std::fs;

/// What processes of one node have in common: the kernel's start, the view of the network, the host's name. Pods and most
/// containers on one machine differ in it. Processes that HPC's container tools start do not, though each has its own view of
/// the file system: they share the machine's disks, and most often `/tmp` as well; where a socket there is not seen after all,
/// they talk by TCP.
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
    fn a_process_is_on_its_own_node() {
        assert_eq!(node_id(), node_id());
        assert!(node_id().len() > 40 && node_id().ends_with(&host_name()), "{}", node_id());
    }
}
