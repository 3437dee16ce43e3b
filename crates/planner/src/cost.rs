//! The time of a read, by where its copy lies.
//!
//! The model of R. Böhringer's thesis (ETH, 2020, chapter 5), with latencies added. To *fetch* a sample of s bytes takes
//!
//! ```text
//! from the origin, g ranks reading     latency + s / min(one read, one client, t(g) / g)
//! from a level of another node         latency + s / min(network, level)
//! from a level of the same node        s / level
//! ```
//!
//! and to *write* it into the staging buffer `max(s / preprocess, s / (staging / staging threads))`. A level's speed is
//! that of all its threads together; it is not divided by their number.

use foreread_types::Rank;

use crate::cluster::{Cluster, LevelIndex, Store};
use crate::curve::transfer_ns;

/// Where a copy of a sample lies, as a rank sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Copy {
    /// In the origin, while so many ranks read from it.
    Origin {
        /// Ranks that read, this one among them; 0 counts as 1.
        clients: u32,
    },
    /// In a store of the cluster: the rank's own or another.
    Stored {
        /// The store's position in [`Cluster::stores`].
        store: usize,
        /// The level of that store.
        level: LevelIndex,
    },
}

impl Cluster {
    /// Nanoseconds until `rank` has fetched `bytes` bytes from a copy; `u64::MAX` where there is no such store or level.
    pub fn fetch_ns(&self, rank: Rank, bytes: u64, copy: Copy) -> u64 {
        match copy {
            Copy::Origin { clients } => self.origin.nanoseconds_among(bytes, clients),
            Copy::Stored { store, level } => {
                let Some(store) = self.stores.get(store) else { return u64::MAX };
                let near = self.store_of(rank).is_some_and(|own| own.node == store.node);
                self.stored_ns(store, level, bytes, near)
            }
        }
    }

    /// Nanoseconds to put `bytes` bytes into the staging buffer, decoded.
    pub fn write_ns(&self, bytes: u64) -> u64 {
        let trainer = &self.trainer;
        let thread = trainer.staging.at(trainer.staging_threads) / u64::from(trainer.staging_threads.max(1));
        transfer_ns(bytes.into(), trainer.preprocess).max(transfer_ns(bytes.into(), thread))
    }

    /// Nanoseconds of a read as a whole: fetched and written.
    pub fn read_ns(&self, rank: Rank, bytes: u64, copy: Copy) -> u64 {
        self.fetch_ns(rank, bytes, copy).saturating_add(self.write_ns(bytes))
    }

    /// The copy that is read soonest, and its nanoseconds; the first of equals, none of none.
    pub fn best_copy(&self, rank: Rank, bytes: u64, copies: &[Copy]) -> Option<(Copy, u64)> {
        copies.iter().map(|&copy| (copy, self.read_ns(rank, bytes, copy))).min_by_key(|&(_, ns)| ns)
    }

    pub(crate) fn stored_ns(&self, store: &Store, level: LevelIndex, bytes: u64, near: bool) -> u64 {
        let Some(level) = store.levels.get(usize::from(level.0)) else { return u64::MAX };
        let rate = level.read.at(level.threads);
        if near {
            return transfer_ns(bytes.into(), rate);
        }
        transfer_ns(bytes.into(), rate.min(self.network.bytes_per_second))
            .saturating_add(self.network.latency_ns)
    }
}

#[cfg(test)]
mod tests {
    use foreread_types::{Footprint, StoreId};

    use super::*;
    use crate::{Curve, Level, Network, Origin, Ranks, Trainer};

    /// The thesis's cluster, one byte for each of its bytes: c = 100, beta = 200, b_c = 10,000, b_fs = 2,000 MB/s.
    fn thesis() -> Cluster {
        const MB: u64 = 1_000_000;
        let level = |name: &str, rate| Level {
            read: Curve::flat(rate * MB),
            threads: 2,
            ..Level::new(name, 1, Footprint::EXACT)
        };
        let stores = (0..4)
            .map(|id| Store::new(StoreId(id), vec![level("memory", 21_164), level("disk", 86)]))
            .collect();
        Cluster {
            stores,
            ranks: Ranks::PerStore(1),
            look_ahead: 1024 * MB,
            origin: Origin {
                latency_ns: 0,
                bytes_per_second: u64::MAX,
                client_bytes_per_second: 2000 * MB,
                clients: Curve::new(vec![(1, 66 * MB), (2, 86 * MB), (3, 129 * MB), (4, 146 * MB)]).unwrap(),
                ..Origin::default()
            },
            network: Network { bytes_per_second: 10_000 * MB, latency_ns: 0, ..Network::default() },
            trainer: Trainer {
                preprocess: 200 * MB,
                compute: 100 * MB,
                staging: Curve::flat(21_164 * MB),
                staging_threads: 2,
            },
            ..Cluster::default()
        }
    }

    #[test]
    fn reads_take_what_the_thesis_says() {
        let cluster = thesis();
        let of = |copy| cluster.read_ns(Rank(1), 1_000_000, copy) as f64 / 1e9;
        let stored = |store, level| Copy::Stored { store, level: LevelIndex(level) };
        let write = 1.0 / 200.0;
        for (copy, fetch) in [
            (Copy::Origin { clients: 4 }, 4.0 / 146.0),
            (Copy::Origin { clients: 1 }, 1.0 / 66.0),
            (stored(1, 0), 1.0 / 21_164.0),
            (stored(1, 1), 1.0 / 86.0),
            (stored(2, 0), 1.0 / 10_000.0),
            (stored(2, 1), 1.0 / 86.0),
        ] {
            assert!((of(copy) - fetch - write).abs() < 1e-8, "{copy:?}: {}", of(copy));
        }
        let copies = [Copy::Origin { clients: 4 }, stored(2, 0), stored(1, 1), stored(9, 0)];
        assert_eq!(cluster.best_copy(Rank(1), 1000, &copies).unwrap().0, stored(2, 0));
        assert_eq!(cluster.best_copy(Rank(1), 1000, &[]), None);
    }
}
