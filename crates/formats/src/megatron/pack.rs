//! The samples of megatron-core's `GPTDataset`, token for token.
//!
//! Megatron shuffles the sequences of all epochs, takes their tokens one after another, and cuts
//! them into samples. A sample ends with the token that the next one begins with. Then it shuffles
//! the samples. All of it follows from the lengths of sequences, the seed and the requested number
//! of samples. Sample `i` here is `GPTDataset[i]` in that final order. So reading in
//! sequence repeats a run of Megatron, and foreread's own orders shuffle the same samples.
//!
//! A sample is pieces of sequences, and each is a part. The price is some 100 bytes of memory per
//! piece while a file is indexed, and some 10 bytes per piece in the catalog.

use std::ops::Range;

use foreread_types::setting;

use super::numpy_shuffle::RandomState;
use super::{HEADER, Tables};
use crate::found::{Extents, FoundSamples, MOST_PARTS, MadeRow, MadeRows};
use crate::{FileSource, FormatError};

/// The most samples.
const MOST_SAMPLES: u64 = 1 << 26;

/// The most sequences in all epochs.
const MOST_SEQUENCES: u64 = 1 << 28;

/// The share of an epoch below which the last one is shuffled on its own.
const WHOLE_EPOCH: f64 = 0.80;

/// The seed of Megatron's arguments.
const SEED: u32 = 1234;

/// The names of the parts of a split, in their order.
const SPLITS: [&str; 3] = ["train", "valid", "test"];

/// The arguments of Megatron that decide its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackOptions {
    /// `--seq-length`: a sample has one token more.
    pub sequence_length: u64,
    /// `--seed`.
    pub seed: u32,
    /// The number of samples that are requested. There may be more, because epochs are whole. One
    /// epoch if it is `None`.
    pub samples: Option<u64>,
    /// `--split`, after the name of the wanted part and a colon: `valid:969,30,1`. The first part
    /// without a name, all sequences if it is `None`.
    pub split: Option<String>,
}

impl PackOptions {
    /// One epoch of samples of this length, in the order of Megatron's own seed.
    pub fn new(sequence_length: u64) -> Self {
        Self { sequence_length, seed: SEED, samples: None, split: None }
    }
}

/// Finds the samples of `GPTDataset` in a `.bin` file of `bin_size` bytes. `idx` is the file next
/// to it.
///
/// # Errors
/// Those of [`documents`](super::documents).
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) for options that Megatron refuses too, and
/// for more samples or parts than a catalog has.
pub async fn packed(
    idx: &dyn FileSource,
    bin_size: u64,
    options: &PackOptions,
) -> Result<FoundSamples, FormatError> {
    let tables = Tables::read(idx, bin_size).await?;
    let sequences = split(options.split.as_deref(), tables.header.sequences)?;
    let element = &tables.header.element;
    let count = sequences.end - sequences.start;
    let tokens = |sequence: u32| tables.sequence(sequence.into()).map_or(0, |(_, tokens)| tokens);
    let per_epoch: u64 = sequences.clone().map(tokens).sum();
    let plan = EpochPlan::new(options, per_epoch, count.into())?;
    let mut random = RandomState::new(options.seed);
    let order = plan.sequence_order(sequences, &mut random);
    let starts = sample_starts(&plan, &order, tokens);
    let shuffled = plan.sample_order(&mut random);

    let mut made = MadeRows::default();
    let mut rows = Vec::with_capacity(shuffled.len());
    for &sample in &shuffled {
        let sample = sample as usize;
        let Some([begin, end]) = starts.get(sample..).and_then(<[_]>::first_chunk) else { break };
        let parts = pieces(*begin, *end, &order, tokens).filter_map(|(sequence, from, count)| {
            let (at, _) = tables.sequence(sequence.into())?;
            let length = count * element.size();
            Some((at + from * element.size(), length, MadeRow::plain(length)))
        });
        rows.push(made.push_parts(parts));
        let parts = made.more(rows.len() - 1).len() + 1;
        if parts > MOST_PARTS {
            let why = format!(
                "sample {} has pieces of {parts} documents, and at most {MOST_PARTS} are read: set a \
                 shorter {}",
                rows.len() - 1,
                setting("pack")
            );
            return Err(FormatError::unsupported(HEADER, why));
        }
    }
    let EpochPlan { length, epochs, .. } = plan;
    let summary = format!(
        "Megatron: {} samples of {length} tokens and the next one, of {count} documents in {epochs} epochs, \
         tokens {}",
        rows.len(),
        element.name()
    );
    Ok(FoundSamples {
        made: Some(made).filter(|made| !made.more.is_empty()),
        array: Some(element.array(vec![Some(length + 1)])),
        ..FoundSamples::at(Extents::Rows(rows), summary)
    })
}

/// How many epochs there are, and which are shuffled together.
struct EpochPlan {
    /// The tokens of a sample, without the first token of the next sample.
    length: u64,
    epochs: u64,
    /// All samples.
    samples: u64,
    /// The samples before the last epoch, if it is shuffled on its own.
    before_last: Option<u64>,
}

impl EpochPlan {
    fn new(options: &PackOptions, per_epoch: u64, sequences: u64) -> Result<Self, FormatError> {
        let length = options.sequence_length;
        if length == 0 || length > i32::MAX.unsigned_abs().into() {
            let why = format!("samples of {length} tokens: expected e.g. {}", setting("pack").to("2048"));
            return Err(FormatError::unsupported(0, why));
        }
        let most = || {
            let requested = options.samples.unwrap_or(0);
            let why = format!(
                "{requested} samples of {sequences} documents take too many epochs: at most {MOST_SAMPLES} \
                 samples and {MOST_SEQUENCES} documents are packed"
            );
            FormatError::unsupported(0, why)
        };
        let of = |tokens: u64| tokens.saturating_sub(1) / length;
        let requested = options.samples.map(|samples| samples.checked_mul(length)?.checked_add(1));
        let requested = requested.map_or(Ok(0), |tokens| tokens.ok_or_else(most))?;
        let epochs = if per_epoch == 0 { 1 } else { requested.div_ceil(per_epoch).max(1) };
        let tokens = epochs.checked_mul(per_epoch).ok_or_else(most)?;
        let plan = Self { length, epochs, samples: of(tokens), before_last: None };
        if epochs.checked_mul(sequences).is_none_or(|all| all > MOST_SEQUENCES) || plan.samples > MOST_SAMPLES
        {
            return Err(most());
        }
        if plan.samples == 0 {
            let pack = setting("pack");
            let why = format!("its {sequences} documents have {per_epoch} tokens: set a shorter {pack}");
            return Err(FormatError::unsupported(0, why));
        }
        if epochs == 1 {
            return Ok(plan);
        }
        let before_last = of(tokens - per_epoch);
        let of_last = options.samples.unwrap_or(0).saturating_sub(before_last);
        let is_short = of_last < (WHOLE_EPOCH * of(per_epoch) as f64) as u64;
        Ok(Self { before_last: is_short.then_some(before_last), ..plan })
    }

    /// The sequences of all epochs in their order (`_build_document_index`).
    fn sequence_order(&self, sequences: Range<u32>, random: &mut RandomState) -> Vec<u32> {
        let last = u64::from(self.before_last.is_some());
        let mut order =
            Vec::with_capacity((self.epochs * u64::from(sequences.end - sequences.start)) as usize);
        for epochs in [self.epochs - last, last] {
            let from = order.len();
            (0..epochs).for_each(|_| order.extend(sequences.clone()));
            random.shuffle(&mut order[from..]);
        }
        order
    }

    /// The samples in their order (`_build_shuffle_index`).
    fn sample_order(&self, random: &mut RandomState) -> Vec<u32> {
        // There are fewer than 2^32.
        let mut order: Vec<u32> = (0..self.samples as u32).collect();
        let first = self.before_last.unwrap_or(self.samples).min(self.samples) as usize;
        let (before, last) = order.split_at_mut(first);
        random.shuffle(before);
        random.shuffle(last);
        order
    }
}

/// The first token of a sample: the position of its sequence in the order, and the token in it.
type SampleStart = (u32, u32);

/// Where each sample begins, and where the next one would (`build_sample_idx`).
fn sample_starts(plan: &EpochPlan, order: &[u32], tokens: impl Fn(u32) -> u64) -> Vec<SampleStart> {
    let mut starts = Vec::with_capacity(plan.samples as usize + 1);
    let (mut at, mut offset) = (0, 0);
    starts.push((0, 0));
    for _ in 0..plan.samples {
        let mut left = plan.length + 1;
        while let Some(&sequence) = order.get(at) {
            let here = tokens(sequence) - offset;
            if here >= left {
                offset += left - 1;
                break;
            }
            (left, at, offset) = (left - here, at + 1, 0);
        }
        // Sequences are shorter than 2^31, and the order than 2^28.
        starts.push((at as u32, offset as u32));
    }
    starts
}

/// The pieces of a sample: a sequence, its first token, and the number of tokens.
fn pieces(
    begin: SampleStart,
    end: SampleStart,
    order: &[u32],
    tokens: impl Fn(u32) -> u64,
) -> impl Iterator<Item = (u32, u64, u64)> {
    let sequences = order.get(begin.0 as usize..=end.0 as usize).unwrap_or_default();
    sequences.iter().zip(begin.0..).map(move |(&sequence, at)| {
        let from = if at == begin.0 { begin.1.into() } else { 0 };
        // With the token that the next sample begins with.
        let to = if at == end.0 { u64::from(end.1) + 1 } else { tokens(sequence) };
        (sequence, from, to.saturating_sub(from))
    })
}

/// The sequences of the wanted part of a split, of `count` sequences.
fn split(text: Option<&str>, count: u64) -> Result<Range<u32>, FormatError> {
    let all = u32::try_from(count).map_err(|_| {
        let why = format!("{count} sequences: Megatron numbers at most {}", i32::MAX);
        FormatError::unsupported(0, why)
    })?;
    let Some(text) = text else { return Ok(0..all) };
    let bad = || {
        let why = format!("invalid split {text:?}: expected e.g. 969,30,1 or valid:969,30,1");
        FormatError::unsupported(0, why)
    };
    let (name, weights) = text.split_once(':').unwrap_or((SPLITS[0], text));
    let part = SPLITS.iter().position(|known| *known == name).ok_or_else(bad)?;
    let weights = weights.split(',').map(|weight| weight.trim().parse::<f64>());
    let mut weights = weights.collect::<Result<Vec<f64>, _>>().map_err(|_| bad())?;
    let sum: f64 = weights.iter().sum();
    let is_valid = weights.len() <= SPLITS.len() && weights.iter().all(|weight| *weight >= 0.0);
    if !is_valid || !sum.is_finite() || sum == 0.0 {
        return Err(bad());
    }
    weights.resize(SPLITS.len(), 0.0);
    let mut bounds = vec![0.0];
    for weight in weights {
        bounds.push(bounds[bounds.len() - 1] + weight / sum);
    }
    let bound = |number: usize| ((bounds[number] * count as f64).round_ties_even() as u32).min(all);
    let range = bound(part)..bound(part + 1);
    if range.is_empty() {
        let why = format!("the split {text:?} leaves no documents of {count} for {name}");
        return Err(FormatError::unsupported(0, why));
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_rounded_as_megatron_rounds_them() {
        let of = |text: &str, count| split(Some(text), count).map_err(|error| error.why().to_owned());
        assert_eq!(split(None, 7).unwrap(), 0..7);
        assert_eq!(of("969,30,1", 1000), Ok(0..969));
        assert_eq!(of("valid:969,30,1", 1000), Ok(969..999));
        assert_eq!(of("test: 969, 30, 1", 1000), Ok(999..1000));
        // Half is rounded to the even number.
        assert_eq!(of("train:1,1", 5), Ok(0..2));
        assert_eq!(of("valid:1,1", 7), Ok(4..7));
        assert_eq!(of("100", 3), Ok(0..3));
        for bad in ["", "a:1", "0,0", "1,1,1,1", "-1,2", "nan", "inf", "valid:", "1;2"] {
            assert!(of(bad, 10).unwrap_err().starts_with("invalid split"), "{bad}");
        }
        assert!(of("test:99,1", 10).unwrap_err().contains("no documents"));
    }

    #[test]
    fn impossible_packs_are_refused() {
        let plan = |length, samples, per_epoch, sequences| {
            let options = PackOptions { samples, ..PackOptions::new(length) };
            EpochPlan::new(&options, per_epoch, sequences)
                .map(|plan| (plan.epochs, plan.samples, plan.before_last))
        };
        assert_eq!(plan(10, None, 101, 5).unwrap(), (1, 10, None));
        assert_eq!(plan(10, Some(10), 101, 5).unwrap(), (1, 10, None));
        assert_eq!(plan(10, Some(11), 101, 5).unwrap(), (2, 20, Some(10)));
        assert_eq!(plan(10, Some(18), 101, 5).unwrap(), (2, 20, None));
        for (length, samples, per_epoch, sequences) in [
            (0, None, 100, 1),
            (u64::MAX, None, 100, 1),
            (10, Some(u64::MAX), 100, 1),
            (10, Some(u64::MAX / 10 - 1), 100, 1),
            (10, Some(1 << 26), 1, 1),
            (10, None, 10, 1),
            (10, None, 0, 0),
            (1, None, 1 << 40, 1),
        ] {
            let error = plan(length, samples, per_epoch, sequences).unwrap_err();
            assert!(error.to_string().len() < 300, "{error}");
        }
    }
}
