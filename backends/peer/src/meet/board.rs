//! Where the loaders of one process meet: each has addresses of its own, and the place that all ranks know has room for one.
//!
//! The loader that listens at the place tells ranks that come for another where that one is. So later loaders need no
//! ports that a firewall has to let through by name, and the price is one more connection at their start.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::Address;

/// The loaders of one process, at one place, as rank 0. An [`Arc`](std::sync::Arc) of it is handed to each of them
/// ([`Settings::board`](super::Settings::board)).
#[derive(Debug, Default)]
pub struct Board(Mutex<BTreeMap<u16, Vec<Address>>>);

impl Board {
    /// A loader listens at these addresses.
    pub(super) fn put(&self, loader: u16, addresses: Vec<Address>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(loader, addresses);
    }

    /// A loader has ended.
    pub(super) fn remove(&self, loader: u16) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&loader);
    }

    pub(super) fn addresses(&self, loader: u16) -> Option<Vec<Address>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&loader).cloned()
    }
}
