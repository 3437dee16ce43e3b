//! The addresses of a process's loaders, as rank 0.
//!
//! Each loader listens at separate addresses, and only one loader has the rendezvous address that
//! all ranks know. That one redirects ranks that come for another loader. Later loaders therefore
//! need no ports that a firewall has to allow. The price is one more connection at their start.

use std::collections::BTreeMap;
use std::sync::Mutex;

use foreread_connection::Address;

use foreread_tier::lock;

/// The loaders of one process at one rendezvous address, as rank 0. All of them share an
/// [`Arc`](std::sync::Arc) of it ([`RendezvousSettings::board`](super::RendezvousSettings::board)).
#[derive(Debug, Default)]
pub struct LoaderDirectory(Mutex<BTreeMap<u16, Vec<Address>>>);

impl LoaderDirectory {
    /// A loader listens at these addresses.
    pub(super) fn put(&self, loader: u16, addresses: Vec<Address>) {
        lock(&self.0).insert(loader, addresses);
    }

    /// A loader has ended.
    pub(super) fn remove(&self, loader: u16) {
        lock(&self.0).remove(&loader);
    }

    pub(super) fn addresses(&self, loader: u16) -> Option<Vec<Address>> {
        lock(&self.0).get(&loader).cloned()
    }
}
