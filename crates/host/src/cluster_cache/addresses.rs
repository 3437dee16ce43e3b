//! The addresses at which other nodes reach a port of this host.

use std::io;
use std::net::IpAddr;

use foreread_connection::Address;
use foreread_launcher::{INTERFACE, InterfaceFilter};
use if_addrs::Interface;

/// The most addresses.
const MAX_ADDRESSES: usize = 16;

/// The addresses of this machine that other nodes may reach, on all interfaces or on the interfaces
/// that the user names, as in [`INTERFACE`]. The loopback addresses if there are no others.
///
/// # Errors
/// If no interface has any of the names, or the system does not list them.
pub(super) fn own_addresses(names: Option<&str>, port: u16) -> io::Result<Vec<Address>> {
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
    use super::*;

    #[test]
    // semantics: RANK-26
    fn addresses_are_those_of_named_interfaces() {
        let of = |names| own_addresses(names, 7);
        assert!(of(Some("lo")).unwrap().contains(&Address::tcp("127.0.0.1", 7)));
        assert!(!of(None).unwrap().is_empty());
        let error = of(Some("nosuch")).unwrap_err().to_string();
        assert_eq!(error, "no network interface of this host matches FOREREAD_INTERFACE");
    }
}
