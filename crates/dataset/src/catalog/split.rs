//! Random parts of a dataset: for training, validation and test.
//!
//! A seed determines the parts on every machine: samples, or groups of them, are sorted by a hash
//! of the seed and their number or value, and cut. So a sample's part depends on no other sample
//! but by the cuts. Samples that were [added](Catalog::grown) to a dataset are cut by themselves,
//! so earlier ones keep their part, and new members of a group follow it. The price: parts of
//! groups have the wanted sizes only as far as whole groups allow.

use std::collections::BTreeMap;
use std::ops::Range;

use foreread_types::{SampleId, setting};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::catalog_file::column_names::LABEL;
use crate::catalog_file::fingerprint::hash_value;
use crate::{Catalog, DatasetError, DatasetErrorKind, SampleValue};

/// How a dataset is split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SplitOptions {
    /// The seed of the draw.
    pub seed: u64,
    /// Whether each part has each label's share of samples.
    pub stratify: bool,
    /// The name of a value: samples with one value are in one part. Samples without it are alone.
    pub group: Option<String>,
}

/// Samples that stay together.
struct SplitUnit {
    /// The digest of a group's value, or a sample's number.
    key: (u128, u64),
    order: u64,
    ids: Vec<u64>,
}

/// The units of each part, whose samples end at `ends`. A part with a share gets a unit at least,
/// while there are as many and others have not had some before.
fn cut(units: Vec<SplitUnit>, ends: &[usize], shares: &[f64], is_first: bool) -> Vec<Vec<SplitUnit>> {
    let sizes: Vec<usize> = units.iter().map(|unit| unit.ids.len()).collect();
    let (mut taken, mut at, mut places) = (0, 0, Vec::with_capacity(ends.len()));
    for end in ends {
        while at < units.len() && taken < *end {
            taken += sizes[at];
            at += 1;
        }
        places.push(at);
    }
    if let Some(last) = places.last_mut() {
        *last = units.len();
    }
    // Only whole groups make parts empty that have a share. Single samples follow their rounding.
    if is_first
        && sizes.iter().any(|size| *size > 1)
        && units.len() >= shares.iter().filter(|share| **share > 0.0).count()
    {
        let mut least = units.len();
        for part in (0..places.len()).rev() {
            places[part] = places[part].min(least);
            least = places[part].saturating_sub(usize::from(shares[part] > 0.0));
        }
        for part in 0..places.len() {
            let before = if part == 0 { 0 } else { places[part - 1] };
            places[part] = places[part].max(before + usize::from(shares[part] > 0.0));
        }
    }
    let mut units = units.into_iter();
    let mut before = 0;
    let parts = places.into_iter().map(|place| {
        let count = place.saturating_sub(before);
        before = before.max(place);
        units.by_ref().take(count).collect()
    });
    parts.collect()
}

impl Catalog {
    /// The samples of random parts, of each in the order of their numbers. `shares` are the parts'
    /// shares of all samples, which sum to 1.
    ///
    /// # Errors
    /// [`DatasetErrorKind::Invalid`] if shares are negative or do not sum to 1, a value is unknown,
    /// or labels are wanted that are no classes or integers. Those of [`value`](Self::value).
    pub fn random_split(
        &self,
        shares: &[f64],
        options: &SplitOptions,
    ) -> Result<Vec<Vec<u64>>, DatasetError> {
        let sum: f64 = shares.iter().sum();
        if shares.is_empty()
            || shares.iter().any(|share| share.is_nan() || *share < 0.0)
            || (sum - 1.0).abs() > 1e-6
        {
            return Err(self.refused(format!("shares of a split must sum to 1, and {shares:?} do not")));
        }
        // Samples that are gone have had their places, too.
        let all = if self.is_part() { self.clone() } else { self.with_gone() };
        let mut parts = vec![Vec::new(); shares.len()];
        // The parts of groups that have one already.
        let mut places: BTreeMap<u128, usize> = BTreeMap::new();
        // The remainder of earlier strata for each part and the parts before it.
        let mut left = vec![0.0; shares.len()];
        let (mut groups, mut begin) = (0, 0);
        for end in self.segments() {
            for units in all.strata(options, begin..end)?.into_values() {
                groups += units.len();
                let count: usize = units.iter().map(|unit| unit.ids.len()).sum();
                let (known, mut units): (Vec<SplitUnit>, Vec<SplitUnit>) =
                    units.into_iter().partition(|unit| places.contains_key(&unit.key.0));
                units.sort_unstable_by_key(|unit| (unit.order, unit.ids[0]));
                let mut taken = vec![0; shares.len()];
                for unit in known {
                    let part = places[&unit.key.0];
                    taken[part] += unit.ids.len();
                    parts[part].extend(unit.ids);
                }
                let (mut before, mut fixed) = (0.0, 0);
                let ends = shares.iter().zip(&mut left).zip(&taken).map(|((share, left), taken)| {
                    before += share;
                    fixed += taken;
                    *left += before * count as f64;
                    (left.round() as usize).saturating_sub(fixed)
                });
                let ends: Vec<usize> = ends.collect();
                for (part, units) in cut(units, &ends, shares, begin == 0).into_iter().enumerate() {
                    for unit in units {
                        if unit.key.0 != 0 {
                            places.insert(unit.key.0, part);
                        }
                        taken[part] += unit.ids.len();
                        parts[part].extend(unit.ids);
                    }
                }
                let mut sum = 0;
                for (left, taken) in left.iter_mut().zip(&taken) {
                    sum += taken;
                    *left -= sum as f64;
                }
            }
            begin = end;
        }
        parts.iter_mut().for_each(|ids| ids.sort_unstable());
        if let Some(existing) = self.numbers().filter(|_| !self.is_part()) {
            let place = |id: &u64| existing.binary_search(id).ok().map(|at| at as u64);
            parts = parts.iter().map(|ids| ids.iter().filter_map(place).collect()).collect();
        }
        if let Some(part) = parts.iter().position(Vec::is_empty) {
            return Err(self.refused(format!(
                "part {} of the split, with a share of {}, has no sample of {} in {groups} groups; choose \
                 other shares",
                part + 1,
                shares[part],
                self.len()
            )));
        }
        Ok(parts)
    }

    /// The samples that stay together, of those with such numbers, by their label if that matters.
    fn strata(
        &self,
        options: &SplitOptions,
        numbers: Range<u64>,
    ) -> Result<BTreeMap<Option<i64>, Vec<SplitUnit>>, DatasetError> {
        if let Some(name) = &options.group
            && !self.value_names().contains(name)
            && self.label_column() != Some(name)
        {
            let known = self.value_names().join(", ");
            let group = setting("group");
            return Err(self.refused(format!("{group} names the value {name:?}, and samples have: {known}")));
        }
        let has_labels = !self.labels().is_empty()
            || self.label_column().is_some()
            || self.value_names().iter().any(|name| name == LABEL);
        if options.stratify && !has_labels {
            return Err(self.refused(format!("{} needs labels, and samples have none", setting("stratify"))));
        }
        let mut groups: BTreeMap<(u128, u64), SplitUnit> = BTreeMap::new();
        for id in 0..self.len() {
            let number = self.number_or_none(SampleId(id));
            if !numbers.contains(&number) {
                continue;
            }
            let value = match &options.group {
                Some(name) => self.value(SampleId(id), name)?,
                None => None,
            };
            // A sample without a value is a group of its own.
            let key = match value {
                // One of several uses of a sample may be alone.
                None => (0, if self.is_part() { id } else { number }),
                value => {
                    let mut hash = Xxh3::new();
                    hash_value(&mut hash, value);
                    (hash.digest128().max(1), 0)
                }
            };
            let bytes = [key.0.to_le_bytes().as_slice(), &key.1.to_le_bytes()].concat();
            let unit = || SplitUnit { key, order: xxh3_64_with_seed(&bytes, options.seed), ids: Vec::new() };
            groups.entry(key).or_insert_with(unit).ids.push(id);
        }
        let mut strata: BTreeMap<Option<i64>, Vec<SplitUnit>> = BTreeMap::new();
        for unit in groups.into_values() {
            let stratum = if options.stratify { self.common_label(&unit.ids)? } else { None };
            strata.entry(stratum).or_default().push(unit);
        }
        Ok(strata)
    }

    /// The most frequent label of samples, and of several the lowest.
    fn common_label(&self, ids: &[u64]) -> Result<Option<i64>, DatasetError> {
        let mut counts: BTreeMap<Option<i64>, usize> = BTreeMap::new();
        for id in ids {
            *counts.entry(self.integer_label(SampleId(*id))?).or_default() += 1;
        }
        Ok(counts.into_iter().rev().max_by_key(|(_, count)| *count).and_then(|(label, _)| label))
    }

    /// A sample's label as a number: its class, or an integer. `None` without a label.
    fn integer_label(&self, id: SampleId) -> Result<Option<i64>, DatasetError> {
        if let Some(class) = self.label_index(id) {
            return Ok(Some(class.into()));
        }
        match self.value(id, LABEL)? {
            None => Ok(None),
            Some(SampleValue::Integer(label)) => Ok(Some(label)),
            Some(_) => {
                let stratify = setting("stratify");
                Err(self.refused(format!("{stratify} needs labels that are classes or integers")))
            }
        }
    }

    fn refused(&self, why: String) -> DatasetError {
        DatasetError::new(DatasetErrorKind::Invalid, format!("{}: {why}", self.base_url()))
    }
}

#[cfg(test)]
mod tests {
    use foreread_tier::Object;
    use proptest::prelude::*;

    use super::*;

    /// A catalog of `count` files in three classes.
    fn catalog(count: u64) -> Catalog {
        let object = |id| Object { path: format!("{}/{id:05}", id % 3).into(), size: 1, version: None };
        Catalog::from_objects("/data", (0..count).map(object)).unwrap()
    }

    proptest! {
        #[test]
        // semantics: SAMPLE-28
        fn parts_are_disjoint_and_have_their_shares(
            count in 1..300_u64,
            cut in 0.0..1.0_f64,
            seed: u64,
            stratify: bool,
        ) {
            let catalog = catalog(count);
            let options = SplitOptions { seed, stratify, group: None };
            let Ok(parts) = catalog.random_split(&[cut, 1.0 - cut], &options) else {
                // A part would be empty.
                prop_assert!((count as f64 * cut).min(count as f64 * (1.0 - cut)) <= 0.5 + 1e-9);
                return Ok(());
            };
            let mut all = parts.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..count).collect::<Vec<_>>());
            prop_assert_eq!(&catalog.random_split(&[cut, 1.0 - cut], &options).unwrap(), &parts);
            let share = |ids: &[u64]| ids.len() as f64 - count as f64 * cut;
            prop_assert!(share(&parts[0]).abs() <= 0.5 + 1e-9, "{:?}", parts[0]);
            for class in 0..if stratify { 3 } else { 0 } {
                let is_of = |id: &&u64| catalog.label_index(SampleId(**id)) == Some(class);
                let of = |ids: &[u64]| ids.iter().filter(is_of).count();
                let all = of(&(0..count).collect::<Vec<_>>()) as f64;
                prop_assert!((of(&parts[0]) as f64 - all * cut).abs() <= 1.0 + 1e-9);
            }
        }
    }

    #[test]
    // semantics: SAMPLE-28
    fn another_seed_draws_other_parts() {
        let catalog = catalog(1000);
        let with = |seed| {
            let options = SplitOptions { seed, ..SplitOptions::default() };
            catalog.random_split(&[0.9, 0.1], &options).unwrap().swap_remove(1)
        };
        assert_eq!((with(0).len(), with(0) == with(0)), (100, true));
        let both = with(0).into_iter().filter(|id| with(1).contains(id)).count();
        assert!(both < 40, "{both}");
        assert!(catalog.random_split(&[0.9, 0.2], &SplitOptions::default()).is_err());
    }
}
