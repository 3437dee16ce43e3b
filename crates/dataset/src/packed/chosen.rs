//! All shards of a dataset have their samples and labels in the same parts.
//!
//! A parser chooses in each shard on its own: the only column of bytes, the only dataset. Shards of
//! several tables in one directory would then be one dataset of images and masks, or of images and
//! labels. So choices are compared in the order of shards, and a difference is an error that names
//! two of them. The price is that such a directory is refused until the user chooses, also by `*`
//! for the choice of the parser.

use std::sync::Arc;

use foreread_formats::ChosenParts;
use foreread_types::setting;

use super::rows::IndexedShard;
use crate::format_options::NamedAlike;
use crate::{DatasetError, DatasetErrorKind, Format};

/// The parts that the shards so far have in common.
#[derive(Debug)]
pub(crate) struct CommonParts {
    /// The names that must be equal.
    alike: NamedAlike,
    /// The first shard with samples, and its parts.
    first: Option<(Arc<str>, ChosenParts)>,
    /// Whether a shard without labels was reported.
    has_warned: bool,
}

impl CommonParts {
    pub(crate) fn new(alike: NamedAlike) -> Self {
        Self { alike, first: None, has_warned: false }
    }

    /// Compares the parts of the next shard. One without samples may have any.
    ///
    /// # Errors
    /// [`DatasetErrorKind::Unsupported`] with both shards, their parts and the option.
    pub(crate) fn add(
        &mut self,
        base_url: &str,
        format: Format,
        shard: &IndexedShard,
    ) -> Result<(), DatasetError> {
        let Some(parts) = shard.rows.extra().chosen.as_ref().filter(|_| shard.rows.len() > 0) else {
            return Ok(());
        };
        let path = &shard.object.path;
        let Some((first, common)) = &self.first else {
            self.first = Some((Arc::clone(path), parts.clone()));
            return Ok(());
        };
        let differ = |what: &str, [one, other]: [&str; 2], option: &str| {
            let message = format!(
                "{base_url}: the {what} of {first} are {one}, and those of {path} are {other}: choose with \
                 {}, take the only candidate of each with {}, or index them apart with {}",
                setting(option),
                setting(option).to("*"),
                setting("include")
            );
            Err(DatasetError::new(DatasetErrorKind::Unsupported, message))
        };
        if self.alike.samples && common.samples != parts.samples {
            let option = if format == Format::Lmdb { "key" } else { "field" };
            return differ("samples", [&common.samples, &parts.samples], option);
        }
        match (&common.label, &parts.label) {
            (Some(one), Some(other)) if self.alike.labels && one != other => {
                differ("labels", [one, other], "label")
            }
            (Some(_), None) | (None, Some(_)) if !self.has_warned => {
                self.has_warned = true;
                let (with, without) = if common.label.is_some() { (first, path) } else { (path, first) };
                tracing::warn!("{base_url}: {without} has no labels, and {with} has some");
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
