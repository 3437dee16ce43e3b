//! The storage that a sample takes in a cache.

/// The bytes that a store spends on a sample of a given length: `length + overhead`, rounded up to
/// `align`, and a fixed number of bytes elsewhere.
///
/// The planner counts this and not the length, so that a plan that fits on paper fits in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Footprint {
    overhead: u64,
    align: u64,
    fixed: u64,
}

impl Footprint {
    /// Exactly the sample's length.
    pub const EXACT: Self = Self { overhead: 0, align: 1, fixed: 0 };

    /// `overhead` bytes in addition to each sample, the sum rounded up to a multiple of `align`
    /// bytes (0 means 1).
    pub const fn new(overhead: u64, align: u64) -> Self {
        Self { overhead, align: if align == 0 { 1 } else { align }, fixed: 0 }
    }

    /// Adds `fixed` bytes for each sample that are not rounded up, such as an index entry.
    #[must_use]
    pub const fn with_fixed(self, fixed: u64) -> Self {
        Self { fixed, ..self }
    }

    /// An upper bound for `samples` samples with a total length of `bytes`. Saturates at
    /// `u64::MAX`.
    ///
    /// ```
    /// use foreread_types::Footprint;
    /// assert_eq!(Footprint::new(16, 4096).most(2, 4081), 2 * 16 + 4081 + 2 * 4095);
    /// ```
    pub const fn most(self, samples: u64, bytes: u64) -> u64 {
        let each = self.overhead.saturating_add(self.align - 1).saturating_add(self.fixed);
        samples.saturating_mul(each).saturating_add(bytes)
    }

    /// The bytes that a sample of `length` bytes takes. Saturates at `u64::MAX`.
    ///
    /// ```
    /// use foreread_types::Footprint;
    /// assert_eq!(Footprint::new(16, 4096).of(4090), 8192);
    /// assert_eq!(Footprint::new(16, 4096).with_fixed(48).of(4090), 8192 + 48);
    /// assert_eq!(Footprint::EXACT.of(0), 0);
    /// ```
    pub const fn of(&self, length: u64) -> u64 {
        let bytes = length.saturating_add(self.overhead);
        match bytes.checked_next_multiple_of(self.align) {
            Some(rounded) => rounded.saturating_add(self.fixed),
            None => u64::MAX,
        }
    }
}
