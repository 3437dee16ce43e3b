//! Buffers that were dropped last, for the next ones of about their length.
//!
//! Their memory is still in the processor's caches. A read into other parts of the arena costs a
//! fifth more. They are not joined with free neighbours. So they are few, and extents that stay
//! unused go back into the tables.

/// The most buffers.
const MOST: usize = 64;

/// Their most bytes: about a processor's cache.
const MOST_BYTES: usize = 4 << 20;

/// Addresses and lengths, the last one dropped at the end.
#[derive(Debug, Default)]
pub(super) struct RecentBuffers {
    buffers: Vec<(usize, usize)>,
    bytes: usize,
    /// Whether one was added or taken since the last [`tick`](Self::tick).
    is_used: bool,
}

impl RecentBuffers {
    pub(super) fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the last extent with `length` bytes, and at most an eighth more, at a multiple of
    /// `align`.
    pub(super) fn take(&mut self, length: usize, align: usize) -> Option<(usize, usize)> {
        let fits = |&(address, found): &(usize, usize)| {
            found >= length && found - length <= length / 8 && address.is_multiple_of(align)
        };
        let at = self.buffers.iter().rposition(fits)?;
        let (address, length) = self.buffers.remove(at);
        self.bytes -= length;
        self.is_used = true;
        Some((address, length))
    }

    /// Adds an extent. `oldest` gets extents without a place.
    pub(super) fn add(&mut self, address: usize, length: usize, mut oldest: impl FnMut(usize, usize)) {
        self.buffers.push((address, length));
        self.bytes += length;
        self.is_used = true;
        while self.buffers.len() > MOST || self.bytes > MOST_BYTES {
            let (address, length) = self.buffers.remove(0);
            self.bytes -= length;
            oldest(address, length);
        }
    }

    /// Returns all of them if none was used since the last call.
    pub(super) fn tick(&mut self) -> Vec<(usize, usize)> {
        if std::mem::take(&mut self.is_used) {
            return Vec::new();
        }
        self.bytes = 0;
        std::mem::take(&mut self.buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_one_that_fits_is_reused() {
        let mut recent = RecentBuffers::default();
        for (address, length) in [(4096, 1000), (8192, 1000), (64, 1100), (128, 5000)] {
            recent.add(address, length, |_, _| panic!("there is room"));
        }
        assert_eq!(recent.take(1000, 4096), Some((8192, 1000)), "aligned");
        assert_eq!(recent.take(1000, 64), Some((64, 1100)));
        assert_eq!(recent.take(2000, 64), None, "too much would be lost");
        assert_eq!((recent.bytes(), recent.tick(), recent.tick().len()), (6000, vec![], 2));
        assert!(recent.is_empty() && recent.bytes() == 0);
    }

    #[test]
    fn there_are_few() {
        let (mut recent, mut oldest) = (RecentBuffers::default(), Vec::new());
        for address in 0..100 {
            recent.add(address, 64, |address, _| oldest.push(address));
        }
        assert_eq!(oldest, (0..36).collect::<Vec<_>>());
        recent.add(1000, MOST_BYTES - 64, |address, _| oldest.push(address));
        assert_eq!(recent.bytes(), MOST_BYTES);
        recent.add(2000, MOST_BYTES + 64, |address, _| oldest.push(address));
        assert!(recent.is_empty() && oldest.last() == Some(&2000));
    }
}
