//! Where the loaders of one process meet: each has addresses of its own, and the place that all ranks know has room for one.
//!
//! The loader that listens at the place tells ranks that come for another where that one is. So later loaders need no
//! ports that a firewall has to let through by name, and the price is one more connection at their start.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::{Address, lock};

/// The loaders of one process, at one place, as rank 0. An [`Arc`](std::sync::Arc) of it is handed to each of them
/// ([`Settings::board`](super::Settings::board)).
#[derive(Debug, Default)]
pub struct Board(Mutex<BTreeMap<u16, Vec<Address>>>);

impl Board {
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
