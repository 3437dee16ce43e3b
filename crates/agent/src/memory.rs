//! Holds the agent's memory to the given size.
//!
//! The store counts the bytes of samples. Memory also has gaps between samples of different
//! lengths. So the store's capacity is the agent's memory, less the gaps. They change slowly, and
//! are averaged. The price: gaps reduce the number of kept samples. They never increase the memory
//! in use. Free memory is not a gap: it is reused first, and goes back to the kernel after a
//! second.

/// The weight of the average: about this many looks.
const LOOKS: u64 = 8;

/// The capacity of a store, by the memory that is in use.
#[derive(Debug, Default)]
pub(crate) struct MemoryBound {
    /// The gaps on average, in bytes.
    gaps: u64,
}

/// The memory of samples at one time, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryUse {
    /// Pages that hold memory.
    pub(crate) resident: u64,
    /// Pages that hold memory and no sample.
    pub(crate) idle: u64,
    /// Samples.
    pub(crate) samples: u64,
}

impl MemoryBound {
    /// The capacity from now on, of an agent that was given `given` bytes.
    pub(crate) fn capacity(&mut self, given: u64, now: MemoryUse) -> u64 {
        let gaps = now.resident.saturating_sub(now.idle).saturating_sub(now.samples);
        self.gaps = (self.gaps * (LOOKS - 1) + gaps).div_ceil(LOOKS);
        given - self.gaps.min(given / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: AGENT-4
    fn gaps_lower_the_capacity_until_memory_is_within_the_bound() {
        const GIVEN: u64 = 1_000_000;
        let mut bound = MemoryBound::default();
        let mut capacity = 1_000_000;
        // An eighth of the memory is gaps, and some is free.
        let look = |bound: &mut MemoryBound, capacity: u64| {
            let idle = 50_000;
            let now = MemoryUse { resident: capacity + capacity / 8 + idle, idle, samples: capacity };
            bound.capacity(GIVEN, now)
        };
        for _ in 0..100 {
            capacity = look(&mut bound, capacity);
        }
        assert!(capacity + capacity / 8 <= 1_000_000 && capacity > 880_000, "{capacity}");
        for _ in 0..200 {
            capacity = bound.capacity(GIVEN, MemoryUse { resident: 0, idle: 0, samples: 0 });
        }
        assert!(capacity > 999_000, "{capacity}");
        // However large gaps are, half stays.
        for _ in 0..100 {
            capacity = bound.capacity(GIVEN, MemoryUse { resident: 1 << 40, idle: 0, samples: 0 });
        }
        assert_eq!(capacity, 500_000);
    }
}
