//! Selects the addresses by which other nodes reach this host: those of the network interfaces that
//! the user names.
//!
//! Without a name, other nodes use the address from which rank 0 saw this rank connect. That is the
//! network of the host name, which is often the slow one on clusters.

use std::net::IpAddr;

pub use foreread_launcher::INTERFACE;
use foreread_launcher::InterfaceFilter;
use if_addrs::{Interface, get_if_addrs};

use super::{MeetError, MeetErrorKind};

/// All addresses of this host: both families, and IPv4 alone.
pub(super) const ANYWHERE: [&str; 2] = ["::", "0.0.0.0"];

/// Whether a host stands for all addresses of this host.
pub(super) fn is_anywhere(host: &str) -> bool {
    ANYWHERE.contains(&host)
}

/// Addresses of this host, each with its interface.
pub(super) type InterfaceAddresses = Vec<(String, IpAddr)>;

/// Addresses that other nodes may reach. `with_loopback` adds those of the loopback
/// interface.
fn reachable(all: &[Interface], with_loopback: bool) -> impl Iterator<Item = (String, IpAddr)> {
    // A link-local address is invalid on another host without that host's name of the link.
    let usable = move |of: &&Interface| !of.is_link_local() && (with_loopback || !of.is_loopback());
    all.iter().filter(usable).map(|of| (of.name.clone(), of.ip()))
}

/// The addresses of `all` that `text` selects.
fn select(all: &[Interface], text: &str) -> Result<InterfaceAddresses, MeetError> {
    let names = InterfaceFilter::of(text);
    let found: InterfaceAddresses = reachable(all, true).filter(|(name, _)| names.matches(name)).collect();
    if !found.is_empty() && !names.is_empty() {
        return Ok(found);
    }
    let known: Vec<_> = reachable(all, true).map(|(name, ip)| format!("{name} ({ip})")).collect();
    let line = format!(
        "invalid {INTERFACE} '{text}': no network interface of this host with an address matches: expected \
         some of {}",
        known.join(", ")
    );
    Err(MeetError::new(MeetErrorKind::Setting, line))
}

fn interfaces() -> Result<Vec<Interface>, MeetError> {
    get_if_addrs().map_err(|error| {
        let line = format!("the network interfaces of this host cannot be listed: {error}");
        MeetError::caused(MeetErrorKind::Network, line, error)
    })
}

/// The addresses of the interfaces that `text` selects.
///
/// # Errors
/// It selects none. The error lists the interfaces of this host.
pub(super) fn selected(text: &str) -> Result<InterfaceAddresses, MeetError> {
    select(&interfaces()?, text)
}

/// All addresses of this host that other hosts may reach.
pub(super) fn all() -> InterfaceAddresses {
    let all = interfaces().unwrap_or_else(|error| {
        tracing::warn!(%error, "other nodes find this host only by its name");
        Vec::new()
    });
    reachable(&all, false).collect()
}

/// The interface that has an address, for messages.
pub(super) fn name_of(ip: IpAddr) -> Option<String> {
    let all = get_if_addrs().ok()?;
    all.into_iter().find(|interface| interface.ip() == ip).map(|interface| interface.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: RANK-26
    fn unknown_interface_is_an_error_that_lists_those_there_are() {
        for text in ["nosuch", "=", "^"] {
            let error = selected(text).unwrap_err();
            assert_eq!(error.kind(), MeetErrorKind::Setting);
            let line = error.to_string();
            assert!(line.starts_with(&format!("invalid FOREREAD_INTERFACE '{text}'")), "{line}");
            assert!(line.contains("lo (127.0.0.1)"), "{line}");
        }
    }

    #[test]
    fn chosen_interfaces_have_their_addresses_and_no_other() {
        let lo = selected("lo").unwrap();
        assert!(lo.iter().all(|(name, ip)| name.starts_with("lo") && ip.is_loopback()), "{lo:?}");
        assert!(all().iter().all(|(_, ip)| !ip.is_loopback()));
        assert_eq!(name_of(lo[0].1).as_deref(), Some("lo"));
    }
}
