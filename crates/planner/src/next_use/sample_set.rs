//! A set of samples of one dataset, a bit for each.

use crate::demand::table;

/// A set of samples. It takes no memory while it is empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct SampleSet {
    words: Vec<u64>,
}

impl SampleSet {
    pub(crate) fn contains(&self, sample: u32) -> bool {
        self.words.get(sample as usize / 64).is_some_and(|word| word >> (sample % 64) & 1 == 1)
    }

    /// The samples, ascending. Takes a step per 64 samples of the dataset, and one per sample.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let bits = |word: u64| {
            let without_lowest = |left: &u64| Some(left & (left - 1)).filter(|left| *left != 0);
            std::iter::successors(Some(word).filter(|word| *word != 0), without_lowest)
        };
        let of_word = move |(first, word)| bits(word).map(move |left| first + left.trailing_zeros());
        (0..).step_by(64).zip(self.words.iter().copied()).flat_map(of_word)
    }

    /// Adds or removes a sample of a dataset of so many. Without memory for the table, the set
    /// stays empty.
    pub(crate) fn set(&mut self, sample: u32, samples: u64, is_in: bool) {
        if self.words.is_empty() {
            let Some(words) = is_in.then(|| table(samples.div_ceil(64))).flatten() else { return };
            self.words = words;
        }
        let (word, bit) = (&mut self.words[sample as usize / 64], 1 << (sample % 64));
        *word = if is_in { *word | bit } else { *word & !bit };
    }
}
