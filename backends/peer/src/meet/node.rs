//! Which node a process is on, and what it is called there and elsewhere.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

/// This host's addresses that others may reach: as the kernel lists them, because asking for them takes C.
pub(super) fn addresses() -> Vec<IpAddr> {
    let four = fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let six = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let mut all: Vec<_> = four_of(&four).into_iter().map(IpAddr::V4).collect();
    all.extend(six_of(&six).into_iter().map(IpAddr::V6));
    all
}

/// The local addresses in a `fib_trie`: `|-- 10.0.0.7`, and behind it `/32 host LOCAL`.
fn four_of(text: &str) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut last = None;
    for line in text.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL" {
            let new = last.filter(|address: &Ipv4Addr| {
                !address.is_loopback() && !address.is_link_local() && !found.contains(address)
            });
            found.extend(new);
        }
    }
    found
}

/// The global addresses in an `if_inet6`: 32 digits, index, prefix, scope (0 is global), flags, name.
fn six_of(text: &str) -> Vec<Ipv6Addr> {
    let address = |line: &str| {
        let mut words = line.split_whitespace();
        let address = u128::from_str_radix(words.next()?, 16).ok()?;
        (words.nth(2)? == "00").then(|| Ipv6Addr::from_bits(address))
    };
    text.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_on_its_own_node() {
        assert_eq!(node_id(), node_id());
        assert!(node_id().len() > 40 && node_id().ends_with(&host_name()), "{}", node_id());
    }

    #[test]
    fn addresses_are_read_from_the_kernels_lists() {
        let four = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 10.1.2.0\n        \
                    /24 link UNICAST\n     |-- 10.1.2.3\n        /32 host LOCAL\n     |-- 10.1.2.255\n        /32 link \
                    BROADCAST\n     |-- 127.0.0.1\n        /32 host LOCAL\nLocal:\n     |-- 10.1.2.3\n        /32 host LOCAL\n";
        assert_eq!(four_of(four), [Ipv4Addr::new(10, 1, 2, 3)]);
        let six = "00000000000000000000000000000001 01 80 10 80       lo\n\
                   fd000000000000000000000000000002 02 40 00 80     eth0\n\
                   fe800000000000000000000000000002 02 40 20 80     eth0\n";
        assert_eq!(six_of(six), ["fd00::2".parse::<Ipv6Addr>().unwrap()]);
        assert!(four_of("").is_empty() && six_of("x\n\n0 1").is_empty());
    }
}
