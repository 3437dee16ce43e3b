//! A sharded map of samples.

use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{PoisonError, RwLock};

use foreread_tier::Sample;
use foreread_types::{KeyMap, SampleKey};

const SHARDS: usize = 64;

type MapShard = RwLock<KeyMap<Sample>>;

/// Samples by their keys.
pub(crate) struct ShardedMap([MapShard; SHARDS]);

impl Default for ShardedMap {
    fn default() -> Self {
        Self(std::array::from_fn(|_| MapShard::default()))
    }
}

impl fmt::Debug for ShardedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardedMap").field("samples", &self.len()).finish()
    }
}

impl ShardedMap {
    /// Uses another hash than the maps themselves. Otherwise the upper bits of all hashes in a
    /// shard would be equal.
    fn shard(&self, key: SampleKey) -> &MapShard {
        let hash = (key.id.0 ^ u64::from(key.dataset.0).rotate_right(16)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        &self.0[(hash >> 58) as usize]
    }

    pub(crate) fn get(&self, key: SampleKey) -> Option<Sample> {
        self.shard(key).read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    /// Adds a handle on `sample` unless the key is present. Returns whether it did.
    pub(crate) fn insert(&self, key: SampleKey, sample: &Sample) -> bool {
        match self.shard(key).write().unwrap_or_else(PoisonError::into_inner).entry(key) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(sample.clone());
                true
            }
        }
    }

    /// Removes a sample, which the caller drops outside the lock.
    pub(crate) fn remove(&self, key: SampleKey) -> Option<Sample> {
        self.shard(key).write().unwrap_or_else(PoisonError::into_inner).remove(&key)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|shard| shard.read().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use foreread_types::{DatasetId, SampleId};

    use super::*;

    #[test]
    fn consecutive_keys_spread_evenly_over_shards() {
        let map = ShardedMap::default();
        for dataset in 0..2 {
            for id in 0..32_000 {
                let key = SampleKey::new(DatasetId(dataset), SampleId(id));
                assert!(map.insert(key, &Sample::uncharged(Bytes::new())));
            }
        }
        for shard in &map.0 {
            let length = shard.read().unwrap().len();
            assert!((800..1200).contains(&length), "{length} of 1000");
        }
        assert_eq!(map.len(), 64_000);
    }
}
