//! Which node a process is on, and what it is called there.

use std::fs;

/// What two processes have in common that can use each other's Unix sockets, as far as can be told without trying: the
/// kernel's start, the view of the file system, the host's name. Processes in containers of their own differ, though their
/// node is one; they talk by TCP.
pub(super) fn node_id() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mounts =
        fs::read_link("/proc/self/ns/mnt").map(|link| link.display().to_string()).unwrap_or_default();
    format!("{} {mounts} {}", boot.trim(), host_name())
}

/// This host's name, for messages.
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
