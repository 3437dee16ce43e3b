//! Rank 0's [`Leader`] in a lock. Shared by the tasks that serve the other ranks
//! ([`super::sessions`]) and by rank 0's own steps ([`super::rank0`]), which wait for its changes.
//! The lock is held for short times only.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use super::leader::Leader;
use super::link::LinkTraffic;
use foreread_tier::lock;

#[derive(Debug)]
pub(super) struct Hub {
    leader: Mutex<Leader>,
    /// Transfers on the connections of all ranks.
    pub(super) traffic: Arc<LinkTraffic>,
    arrived: watch::Sender<()>,
    published: watch::Sender<()>,
    lowest: watch::Sender<u64>,
}

impl Hub {
    pub(super) fn new(leader: Leader, traffic: Arc<LinkTraffic>) -> Self {
        let (arrived, published, lowest) = Default::default();
        Self { leader: Mutex::new(leader), traffic, arrived, published, lowest }
    }

    /// Calls the leader and wakes the tasks that wait for its changes.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Leader) -> T) -> T {
        let mut leader = lock(&self.leader);
        let done = act(&mut leader);
        let (changes, lowest) = (leader.take_changes(), leader.lowest());
        // Under the lock. Otherwise an older position could be published after a newer one.
        self.lowest.send_if_modified(|known| std::mem::replace(known, lowest) != lowest);
        drop(leader);
        if changes.arrived {
            self.arrived.send_replace(());
        }
        if changes.published {
            self.published.send_replace(());
        }
        done
    }

    /// Changes that rank 0 may wait for.
    pub(super) fn arrivals(&self) -> watch::Receiver<()> {
        self.arrived.subscribe()
    }

    /// Changes that may have to be sent to other ranks.
    pub(super) fn published(&self) -> watch::Receiver<()> {
        self.published.subscribe()
    }

    pub(super) fn lowest(&self) -> watch::Receiver<u64> {
        self.lowest.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::RankInfo;
    use super::*;
    use crate::Nonce;

    #[test]
    fn lowest_position_follows_ranks_that_step_at_once() {
        let leader = Leader::new(RankInfo::example(0), 2, "1".into(), 7, Nonce::default());
        let hub = Hub::new(leader, LinkTraffic::new(0, Arc::default()));
        let (lowest, step) = (hub.lowest(), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let (hub, step) = (&hub, &step);
                scope.spawn(move || {
                    for at in 1..=20_000 {
                        step.wait();
                        hub.with(|leader| leader.progress(rank, at));
                    }
                });
            }
        });
        assert_eq!(*lowest.borrow(), 20_000);
    }
}
