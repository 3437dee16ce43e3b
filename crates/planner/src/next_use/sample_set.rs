//! A set of samples of one dataset, a bit for each.

use crate::demand::table;

/// A set of samples. It takes no memory while it is empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct SampleSet {
    words: Vec<u64>,
    count: u64,
}

impl SampleSet {
    pub(crate) fn contains(&self, sample: u32) -> bool {
        self.words.get(sample as usize / 64).is_some_and(|word| word >> (sample % 64) & 1 == 1)
    }

    /// The number of samples.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Adds or removes a sample of a dataset of so many. Without memory for the table, the set
    /// stays empty.
    pub(crate) fn set(&mut self, sample: u32, samples: u64, is_in: bool) {
        if self.words.is_empty() {
            let Some(words) = is_in.then(|| table(samples.div_ceil(64))).flatten() else { return };
            self.words = words;
        }
        let (word, bit) = (&mut self.words[sample as usize / 64], 1 << (sample % 64));
        if (*word & bit != 0) != is_in {
            *word ^= bit;
            self.count = if is_in { self.count + 1 } else { self.count - 1 };
        }
    }
}
