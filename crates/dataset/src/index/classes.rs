//! The classes of a dataset of files, in the order of their numbers.
//!
//! A class is a directory directly below the base URL, and its number is its position among all of
//! these. Which files are selected does not matter. So a class has one number in every subset, in
//! training and in validation. A directory without samples keeps its number. The price is one
//! request for the names of the directories. Where they cannot be listed, the user names them
//! ([`IndexOptions::classes`](crate::IndexOptions::classes)).

use std::collections::BTreeSet;

use foreread_tier::{Object, OriginTier};
use foreread_types::{Interface, setting};

use crate::build::class_numbers::check;
use crate::messages::listed;
use crate::names::SplitName;
use crate::{DatasetError, DatasetErrorKind, IndexOptions};

/// Directories that tools make and that are no classes.
const NO_CLASSES: [&str; 3] = ["__MACOSX", "lost+found", "@eaDir"];

/// The classes of objects with the labels `found`. `None` if they have none, and empty if the user
/// wants none.
///
/// # Errors
/// [`DatasetErrorKind::Listing`] if a part of the dataset was selected and the directories cannot
/// be listed. [`DatasetErrorKind::Invalid`] if the user's classes do not fit.
pub(crate) async fn of_files(
    origin: &dyn OriginTier,
    base_url: &str,
    options: &IndexOptions,
    found: &BTreeSet<String>,
) -> Result<Option<Vec<String>>, DatasetError> {
    if let Some(given) = &options.classes {
        check(base_url, given, found.iter().map(String::as_str))?;
        return Ok(Some(given.clone()));
    }
    if found.is_empty() {
        return Ok(None);
    }
    let mut all = found.clone();
    match origin.directories().await {
        Ok(directories) => {
            let known = all.len();
            all.extend(directories.into_iter().filter(|name| !NO_CLASSES.contains(&name.as_str())));
            if all.len() > known && !options.is_selected() {
                let empty: Vec<&str> =
                    all.iter().map(String::as_str).filter(|name| !found.contains(*name)).collect();
                tracing::warn!(
                    "{base_url}: {} directories have no samples, and are classes by their number: {}; {} \
                     names the classes if they are none",
                    empty.len(),
                    listed(empty.iter().copied(), empty.len()),
                    setting("classes")
                );
            }
        }
        // A listing of everything has found all classes that have samples.
        Err(error) if !options.is_selected() => {
            tracing::debug!(%error, "classes without samples are unknown");
        }
        Err(error) => {
            // Only an index has this setting, and the error may be that of a run.
            let classes = setting("classes");
            let (index, none) = match Interface::current() {
                Interface::Command => ("`foreread index`", classes.to("").to_string()),
                Interface::Python => ("foreread.index()", format!("{classes}[]")),
                _ => ("an index", "an empty list".to_owned()),
            };
            let message = format!(
                "{base_url}: the classes of a part of the files have unknown numbers, because the \
                 directories cannot be listed: {error}; make a catalog by {index} with {classes}, the names \
                 of all classes in their order, or with {none} for samples without labels, and load it"
            );
            return Err(DatasetError::new(DatasetErrorKind::Listing, message).with_source(error));
        }
    }
    Ok(Some(all.into_iter().collect()))
}

/// The labels of these objects.
pub(crate) fn labels_of(objects: &[Object]) -> BTreeSet<String> {
    let mut last = "";
    let labels = objects.iter().filter_map(move |object| {
        let label = SplitName::of(&object.path).label(&object.path);
        // Neighbours mostly have the same one.
        let is_new = label != last && !label.is_empty();
        last = label;
        is_new.then_some(label)
    });
    let labels: BTreeSet<&str> = labels.collect();
    labels.into_iter().map(str::to_owned).collect()
}
