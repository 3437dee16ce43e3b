//! The classes of a catalog in the order of their numbers: the user's, or those of the samples.

use std::collections::{HashMap, HashSet};

use foreread_types::setting;

use crate::messages::listed;
use crate::{DatasetError, DatasetErrorKind};

/// Checks the user's classes: each occurs once, and each of `found` occurs. An empty list fits
/// everything, because it means that samples have no labels.
pub(crate) fn check<'a>(
    base_url: &str,
    given: &[String],
    found: impl Iterator<Item = &'a str>,
) -> Result<(), DatasetError> {
    let invalid = |why: String| {
        Err(DatasetError::new(DatasetErrorKind::Invalid, format!("{base_url}: {} {why}", setting("classes"))))
    };
    let mut known = HashSet::new();
    if let Some(twice) = given.iter().find(|name| !known.insert(name.as_str())) {
        return invalid(format!("has {twice:?} twice; name each class once"));
    }
    if known.is_empty() {
        return Ok(());
    }
    let missing: Vec<&str> = found.filter(|name| !known.contains(name)).collect();
    match missing.len() {
        0 => Ok(()),
        count => invalid(format!(
            "lacks {count} of the labels: {}; add them, or exclude their samples",
            listed(missing.into_iter(), count)
        )),
    }
}

/// The classes of a catalog: their names in the order of their numbers.
#[derive(Debug)]
pub(crate) struct ClassNumbers<'a> {
    pub(crate) names: Vec<&'a str>,
    numbers: HashMap<&'a str, i32>,
    /// Whether they are more than the samples' labels in the order of their names.
    pub(crate) are_chosen: bool,
}

impl<'a> ClassNumbers<'a> {
    /// The user's classes, or those of the samples. `found` are the samples' labels in byte order.
    pub(crate) fn of(given: Option<&'a [String]>, found: Vec<&'a str>) -> Self {
        let names: Vec<&str> = match given {
            Some(given) => given.iter().map(String::as_str).collect(),
            None => found.clone(),
        };
        let are_chosen = names != found;
        let numbers = names.iter().zip(0..).map(|(name, number)| (*name, number)).collect();
        Self { names, numbers, are_chosen }
    }

    pub(crate) fn number(&self, name: &str) -> Option<i32> {
        self.numbers.get(name).copied()
    }

    /// Whether the names are in byte order, as catalogs of the first versions have them.
    pub(crate) fn are_sorted(&self) -> bool {
        self.names.is_sorted()
    }
}
