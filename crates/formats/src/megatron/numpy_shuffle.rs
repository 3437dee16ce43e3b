//! The shuffle of `numpy.random.RandomState(seed).shuffle(array)`, bit for bit.
//!
//! NumPy keeps this order for all versions, because `RandomState` is frozen. The generator is
//! MT19937, initialised from a seed of 32 bits. The shuffle is Fisher-Yates from the end. Numbers
//! below a bound are drawn by rejection: a word is cut to the bits of the bound, and drawn again
//! until it is not above it. Bounds of more than 32 bits take two words, the high one first.

use rand_mt::Mt;

/// `numpy.random.RandomState`.
pub(super) struct RandomState(Mt);

impl RandomState {
    /// The state of a seed.
    pub(super) fn new(seed: u32) -> Self {
        Self(Mt::new(seed))
    }

    /// A number from 0 to `most`.
    fn at_most(&mut self, most: u64) -> u64 {
        let mask = u64::MAX.checked_shr(most.leading_zeros()).unwrap_or(0);
        loop {
            let word = match u32::try_from(most) {
                Ok(_) => u64::from(self.0.next_u32()),
                Err(_) => u64::from(self.0.next_u32()) << 32 | u64::from(self.0.next_u32()),
            };
            if word & mask <= most {
                return word & mask;
            }
        }
    }

    /// Shuffles items as NumPy shuffles an array of one dimension.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.at_most(last as u64) as usize;
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `r = RandomState(seed); a = arange(n); r.shuffle(a)`, by NumPy 2.4.
    #[test]
    fn order_is_that_of_numpy() {
        let shuffled = |seed, count: u32| {
            let mut items: Vec<u32> = (0..count).collect();
            RandomState::new(seed).shuffle(&mut items);
            items
        };
        assert_eq!(shuffled(0, 10), [2, 8, 4, 9, 1, 6, 7, 3, 0, 5]);
        let large = shuffled(u32::MAX, 1000);
        assert_eq!(
            (&large[..5], &large[995..]),
            (&[94, 405, 819, 632, 217][..], &[948, 71, 12, 290, 419][..])
        );
        assert_eq!(shuffled(1, 0), [0; 0]);
        assert_eq!(shuffled(1, 1), [0]);
    }

    #[test]
    fn second_shuffle_continues_the_words_of_the_first() {
        let mut state = RandomState::new(1234);
        let (mut first, mut second) = ((0..5).collect::<Vec<_>>(), (0..6).collect::<Vec<_>>());
        state.shuffle(&mut first);
        state.shuffle(&mut second);
        assert_eq!((first, second), (vec![4, 0, 1, 2, 3], vec![5, 2, 3, 1, 0, 4]));
    }
}
