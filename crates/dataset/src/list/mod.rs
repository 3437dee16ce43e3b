//! Listing an origin: the objects that are selected, and their format.
//!
//! Objects are found by a listing, or by a request for each named object. Names that
//! cannot be listed are counted, so that one message reports all of them. The price: a listing that
//! cannot succeed continues for up to 100 of them.

pub(crate) mod choose_format;
pub(crate) mod directory_markers;
pub(crate) mod found_objects;
pub(crate) mod grouping;
pub(crate) mod listing_journal;
pub(crate) mod object_runs;
pub(crate) mod options;
pub(crate) mod progress;
pub(crate) mod selection;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

use foreread_tier::{ErrorKind, Object, OriginTier, TierError};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

use crate::catalog_name::is_catalogs;
use crate::list::directory_markers::DirectoryMarkers;
use crate::list::found_objects::FoundObjects;
use crate::list::listing_journal::ListingJournal;
use crate::list::options::IndexOptions;
use crate::list::progress::IndexProgress;
use crate::list::selection::{GlobFilter, Selection};
use crate::messages::listed;
use crate::{DatasetError, DatasetErrorKind, Format};

/// The number of names that cannot be listed at which the index is aborted.
const MOST_ERRORS: u64 = 100;

/// The number of named objects that are requested at once.
pub(crate) const REQUESTED: usize = 32;

/// Lists the objects that the options select.
pub(crate) async fn list(
    origin: &dyn OriginTier,
    base_url: &str,
    options: &IndexOptions,
    progress: &mut impl FnMut(IndexProgress),
) -> Result<FoundObjects, DatasetError> {
    let mut filter = GlobFilter::new(options)?;
    if !options.objects.is_empty() {
        return named(origin, base_url, options, &mut filter, progress).await;
    }
    let (found, selection) = (FoundObjects::with_disk(options), &mut Selection::Globs(Box::new(filter)));
    list_into(found, origin, base_url, selection, options.partial.as_deref(), progress).await
}

/// Lists the selected objects. `partial` is the file of an unfinished listing.
pub(crate) async fn list_selected(
    origin: &dyn OriginTier,
    base_url: &str,
    selection: &mut Selection<'_>,
    partial: Option<&Path>,
    progress: &mut impl FnMut(IndexProgress),
) -> Result<FoundObjects, DatasetError> {
    list_into(FoundObjects::default(), origin, base_url, selection, partial, progress).await
}

async fn list_into(
    mut found: FoundObjects,
    origin: &dyn OriginTier,
    base_url: &str,
    selection: &mut Selection<'_>,
    partial: Option<&Path>,
    progress: &mut impl FnMut(IndexProgress),
) -> Result<FoundObjects, DatasetError> {
    let path = partial.filter(|_| origin.profile().lists_in_order);
    let (mut holders, mut first, mut errors) = (DirectoryMarkers::default(), None, 0u64);
    let mut partial = None;
    if let Some(path) = path {
        let mut last = None;
        let kept = ListingJournal::open(path, base_url, selection, |objects| {
            last = objects.last().cloned().or(last.take());
            objects.iter().for_each(|object| holders.note(object));
            objects.into_iter().try_for_each(|object| found.add(object))
        })?;
        if kept.is_some() && is_of(origin, last).await {
            found.progress.resumed = found.progress.objects;
            partial = kept;
        } else {
            found.cleared();
            holders = DirectoryMarkers::default();
        }
    }
    let mut listing = origin.list(selection.directory(), partial.as_ref().and_then(ListingJournal::after));
    while let Some(object) = listing.next().await {
        match object {
            Ok(object) => {
                holders.note(&object);
                let wanted = selection.wants(&object.path);
                let is_kept = wanted && !is_catalogs(&object.path);
                partial = partial.and_then(|partial| partial.note(&object, is_kept));
                found.choose(object, wanted, progress)?;
            }
            // The objects found so far are discarded, because the restarted listing returns all of
            // them again.
            Err(error) if error.kind() == ErrorKind::Unordered => {
                tracing::warn!("{base_url}: {error}");
                found.cleared();
                (holders, first, errors) = Default::default();
                partial = None;
                path.into_iter().for_each(listing_journal::forget);
                progress(found.progress);
            }
            Err(error) if selection.excludes(&error) => {
                tracing::debug!(%error, "not listed, and excluded");
            }
            Err(error) => {
                errors += 1;
                // Later objects are not stored, so that the next index meets this error again.
                if let Some(mut unfinished) = partial.take() {
                    unfinished.keep();
                }
                first.get_or_insert(error);
                if errors == MOST_ERRORS {
                    break;
                }
            }
        }
    }
    if let Some(mut finished) = partial {
        finished.keep();
    }
    found.complete(holders, progress)?;
    match first {
        Some(first) => Err(incomplete(base_url, errors, first)),
        None if found.is_empty() => Ok(found),
        None => selection.check_matched(base_url, found.progress.resumed > 0).map(|()| found),
    }
}

/// Requests each object by its name, because the directory may contain a million others. The
/// objects are in the order of their names.
async fn named(
    origin: &dyn OriginTier,
    base_url: &str,
    options: &IndexOptions,
    filter: &mut GlobFilter,
    progress: &mut impl FnMut(IndexProgress),
) -> Result<FoundObjects, DatasetError> {
    let names = &options.objects;
    let positions: HashMap<&str, usize> = names.iter().map(String::as_str).zip(0..).collect();
    if positions.len() < names.len() {
        return Err(repeated(base_url, names));
    }
    let mut found = FoundObjects::default();
    let (mut first, mut errors, mut gone) = (None, 0u64, BTreeSet::new());
    let (mut waiting, mut requested) = (names.iter(), FuturesUnordered::new());
    loop {
        while requested.len() < REQUESTED
            && let Some(name) = waiting.next()
        {
            let owned = name.clone();
            requested.push(origin.stat(name).map(move |object| (owned, object)));
        }
        let Some((name, object)) = requested.next().await else { break };
        match object {
            Ok(object) => {
                let wanted = filter.wants(&object.path);
                found.choose(object, wanted, progress)?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                gone.insert(name);
            }
            Err(error) => {
                errors += 1;
                first.get_or_insert(error);
            }
        }
    }
    match first {
        Some(first) => Err(incomplete(base_url, errors, first)),
        None if !gone.is_empty() => Err(missing(base_url, &gone)),
        None => {
            found.objects.sort_by_key(|object| positions.get(&*object.path));
            filter.check_matched(base_url, false).map(|()| found)
        }
    }
}

/// The error for names that occur twice in a list.
fn repeated(base_url: &str, names: &[String]) -> DatasetError {
    let mut seen = HashSet::new();
    let twice: BTreeSet<&str> = names.iter().map(String::as_str).filter(|name| !seen.insert(*name)).collect();
    let count = twice.len();
    let message = format!(
        "{base_url}: {count} of the {} names occur more than once: {}; name each once",
        names.len(),
        listed(twice.into_iter(), count)
    );
    DatasetError::new(DatasetErrorKind::Invalid, message)
}

/// Whether the last object of the earlier listing is unchanged in this origin. The same URL may
/// lead to another store.
async fn is_of(origin: &dyn OriginTier, last: Option<Object>) -> bool {
    match last {
        None => true,
        Some(last) => origin.stat(&last.path).await.is_ok_and(|found| found == last),
    }
}

/// The error for named objects that are missing.
fn missing(base_url: &str, named: &BTreeSet<String>) -> DatasetError {
    let names = listed(named.iter().map(String::as_str), named.len());
    let is_shard = |name: &String| Format::of_shard(name).is_some() || Format::is_numbered_shard(name);
    let remedy = match named.iter().all(is_shard) {
        true => "name what is, or wait until it is".to_owned(),
        false => format!(
            "these are no objects; of several directories, name one, or {base_url} for all of its samples"
        ),
    };
    let message = format!("{base_url}: not there: {names}; {remedy}");
    DatasetError::new(DatasetErrorKind::Invalid, message)
}

pub(crate) fn incomplete(base_url: &str, errors: u64, first: TierError) -> DatasetError {
    let more = match errors {
        1 => String::new(),
        MOST_ERRORS => format!(" (and {} more at least)", errors - 1),
        _ => format!(" (and {} more)", errors - 1),
    };
    let message = format!("{base_url}: not all of it could be listed: {first}{more}");
    DatasetError::new(DatasetErrorKind::Listing, message).with_source(first)
}
