//! Where the loaders of one process meet: each has addresses of its own, and the place that all ranks know has room for one.
//!
//! The loader that listens at the place tells ranks that come for another where that one is. So later loaders need no
//! ports that a firewall has to let through by name, and the price is one more connection at their start.

use std::collections::BTreeMap;

use tokio::sync::watch;

use crate::Address;

/// The loaders of one process, at one place, as rank 0. An [`Arc`](std::sync::Arc) of it is handed to each of them
/// ([`Settings::with_board`](super::Settings::with_board)).
#[derive(Debug, Default)]
pub struct Board(watch::Sender<BTreeMap<u16, Listed>>);

#[derive(Debug)]
struct Listed {
    addresses: Vec<Address>,
    /// Its ranks are still to come.
    meets: bool,
}

impl Board {
    /// A loader waits for its ranks at these addresses.
    pub(super) fn put(&self, loader: u16, addresses: Vec<Address>) {
        self.0.send_modify(|all| _ = all.insert(loader, Listed { addresses, meets: true }));
    }

    /// A loader's ranks have come.
    pub(super) fn started(&self, loader: u16) {
        self.0.send_modify(|all| {
            if let Some(listed) = all.get_mut(&loader) {
                listed.meets = false;
            }
        });
    }

    /// A loader has ended.
    pub(super) fn remove(&self, loader: u16) {
        self.0.send_modify(|all| _ = all.remove(&loader));
    }

    pub(super) fn addresses(&self, loader: u16) -> Option<Vec<Address>> {
        self.0.borrow().get(&loader).map(|listed| listed.addresses.clone())
    }

    /// Waits until no other loader's ranks are still to come, who may look for it here.
    pub(super) async fn settled(&self, loader: u16) {
        let mut changes = self.0.subscribe();
        let settled =
            changes.wait_for(|all| !all.iter().any(|(other, listed)| *other != loader && listed.meets));
        // It ends with the board, which this borrows.
        drop(settled.await);
    }
}
