//! The room of datasets in memory, within the memory of the store.
//!
//! Pins and floors by pattern hold for any number of datasets, so together they may be more than
//! the memory. Then each gets a part of it, in proportion. Datasets with samples that share
//! compressed units get the bytes for their units first.

use foreread_planner::CacheBounds;

/// The room that a dataset is promised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatasetRoom {
    pub(crate) is_used: bool,
    /// The bytes that its units need while it has jobs.
    pub(crate) needs: u64,
    /// The bytes that all of it takes.
    pub(crate) most: u64,
    /// By the policy.
    pub(crate) bounds: CacheBounds,
}

impl DatasetRoom {
    /// The bytes that it gets before others: samples of units that left would each cost a unit
    /// again.
    fn first(&self) -> u64 {
        if self.is_used { self.needs.min(self.bounds.cap) } else { 0 }
    }

    /// The bytes that it is promised, and can use.
    fn promised(&self) -> u64 {
        self.bounds.floor.min(self.bounds.cap).min(self.most).max(self.first())
    }
}

/// The bounds in force, in the order of the datasets. The sum of their floors is at most the
/// memory.
pub(crate) fn bounds_within(rooms: &[DatasetRoom], memory: u64) -> Vec<CacheBounds> {
    let sum = |bytes: fn(&DatasetRoom) -> u64| rooms.iter().map(|room| u128::from(bytes(room))).sum::<u128>();
    let (promised, first) = (sum(DatasetRoom::promised), sum(DatasetRoom::first));
    let left = u128::from(memory).saturating_sub(first);
    let bounds = |room: &DatasetRoom| {
        let CacheBounds { floor, cap } = room.bounds;
        if promised <= u128::from(memory) {
            return CacheBounds { floor: floor.max(room.first()).min(cap), cap };
        }
        let more = u128::from(room.promised() - room.first()) * left / (promised - first).max(1);
        CacheBounds { floor: room.first() + u64::try_from(more).unwrap_or(u64::MAX), cap }
    };
    rooms.iter().map(bounds).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(floor: u64, most: u64) -> DatasetRoom {
        DatasetRoom { is_used: false, needs: 0, most, bounds: CacheBounds { floor, cap: u64::MAX } }
    }

    fn floors(rooms: &[DatasetRoom], memory: u64) -> Vec<u64> {
        bounds_within(rooms, memory).iter().map(|bounds| bounds.floor).collect()
    }

    #[test]
    // semantics: AGENT-11
    fn floors_of_many_datasets_are_at_most_the_memory() {
        assert_eq!(floors(&[room(60, 100), room(30, 100)], 100), [60, 30]);
        assert_eq!(floors(&[room(60, 100), room(60, 100), room(60, 20)], 70), [30, 30, 10]);
        let pinned = [room(u64::MAX, 100), room(u64::MAX, 300)];
        assert_eq!(floors(&pinned, 400), [u64::MAX, u64::MAX]);
        assert_eq!(floors(&pinned, 200), [50, 150]);
        assert_eq!(floors(&[room(u64::MAX, u64::MAX), room(u64::MAX, u64::MAX)], 10), [5, 5]);
        assert!(floors(&[], 10).is_empty());
    }

    #[test]
    fn units_come_before_floors() {
        let units = DatasetRoom { is_used: true, needs: 80, ..room(0, 100) };
        assert_eq!(floors(&[units, room(50, 100)], 100), [80, 20]);
        assert_eq!(floors(&[DatasetRoom { is_used: false, ..units }, room(50, 100)], 100), [0, 50]);
        let capped = DatasetRoom { bounds: CacheBounds { floor: 0, cap: 10 }, ..units };
        assert_eq!(floors(&[capped], 100), [10]);
    }
}
