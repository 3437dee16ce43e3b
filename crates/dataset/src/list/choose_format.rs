//! Chooses the format of listed objects, by their names and the first bytes of some.

use std::collections::HashSet;
use std::sync::Arc;

use foreread_tier::{Object, OriginTier};
use foreread_types::setting;
use futures::StreamExt;
use futures::stream;

use crate::format::{self, DetectedFormat};
use crate::packed::{self, FirstBytes};
use crate::{DatasetError, DatasetErrorKind, Format, FormatOptions, IndexOptions};

/// A single `.bin` file of more bytes more likely has tokens than one sample.
const LARGE_SAMPLE: u64 = 64 << 20;

/// The size from which the first bytes of a file with an unknown name are looked at.
const LARGE_UNKNOWN: u64 = 8 << 20;

/// The most Arrow files among other files that are looked at.
const MOST_LOOKED_AT: usize = 64;

/// The number of objects that are looked at at once.
const LOOKED_AT_ONCE: usize = 32;

/// The format of the objects: the set format, or the format that their names show.
pub(crate) async fn choose(
    origin: &dyn OriginTier,
    base_url: &str,
    options: &IndexOptions,
    objects: &[Object],
) -> Result<Format, DatasetError> {
    let choices = &options.format_options;
    let paths = || objects.iter().map(|object| &*object.path);
    let detected = match options.format {
        Some(format) => DetectedFormat::Format(format),
        None => format::detect(base_url, paths())?,
    };
    if let ([only], DetectedFormat::Format(Format::Files)) = (objects, detected)
        && only.path.ends_with(".bin")
        && only.size > LARGE_SAMPLE
        && !choices.is_tokens()
    {
        tracing::warn!(
            "{base_url}: {} is taken as one sample; for tokens, set {}",
            only.path,
            setting("window")
        );
    }
    let format = match detected {
        DetectedFormat::Format(Format::Files | Format::Npy)
            if choices.is_tokens() && options.format.is_none() =>
        {
            Format::Tokens
        }
        DetectedFormat::Format(Format::Files) if options.format.is_none() => {
            look_at_unknown(origin, base_url, objects).await
        }
        DetectedFormat::Format(format) => format,
        DetectedFormat::Numbered => packed::sniff(origin, base_url, &data(objects, false)).await?,
        DetectedFormat::Chunks if packed::have_index(origin, objects).await => Format::LitData,
        DetectedFormat::Chunks if choices.is_tokens() => Format::Tokens,
        DetectedFormat::Chunks => Format::Files,
    };
    check(base_url, choices, format).map(|()| format)
}

/// Refuses choices that another format has.
pub(crate) fn check(base_url: &str, choices: &FormatOptions, format: Format) -> Result<(), DatasetError> {
    let why = match choices.misplaced(format) {
        Some(name) => format!("{name} has no effect for the format {}", format.name()),
        None => match choices.conflict() {
            Some(why) => why.to_owned(),
            None => return Ok(()),
        },
    };
    let message = format!("{base_url}: {why}; leave it out, or set the format");
    Err(DatasetError::new(DatasetErrorKind::Invalid, message))
}

/// Whether the format of a dataset with this object is in question: its name may be that of a
/// shard, or shows nothing and its first bytes are to be looked at.
pub(crate) fn may_be_packed(object: &Object) -> bool {
    let path = &*object.path;
    let is_suspicious = object.size >= LARGE_UNKNOWN || format::may_be_a_shard(path);
    format::is_named_as_shard(path) || is_suspicious && !format::is_named_as_sample(path)
}

/// The format of files whose names show none. The first bytes of large ones, and of one alone, are
/// looked at: a shard is not silently one sample.
async fn look_at_unknown(origin: &dyn OriginTier, base_url: &str, objects: &[Object]) -> Format {
    let data = data(objects, true);
    // One file alone is more likely a shard than a dataset of one sample.
    let is_alone = data.len() == 1;
    let is_unknown = |path: &str| !format::is_named_as_sample(path) && Format::of_shard(path).is_none();
    let is_looked_at = |object: &&&Object| {
        let is_suspicious = is_alone || object.size >= LARGE_UNKNOWN || format::may_be_a_shard(&object.path);
        is_suspicious && is_unknown(&object.path)
    };
    let Some(first) = data.iter().filter(is_looked_at).min_by(|a, b| a.path.cmp(&b.path)) else {
        return Format::Files;
    };
    let FirstBytes::Shard(format) = packed::look(origin, first).await else {
        return Format::Files;
    };
    if data.iter().all(|object| is_unknown(&object.path)) {
        return format;
    }
    if !format::may_be_a_shard(&first.path) {
        tracing::warn!(
            "{base_url}: {} is a file of the format {} by its first bytes, and is taken as one sample among \
             others; index such files alone, or exclude them",
            first.path,
            format.name()
        );
    }
    Format::Files
}

/// Whether so many Arrow files among all objects may be catalogs. Among thousands of other files
/// they are samples.
pub(crate) fn are_looked_at(arrow: usize, all: usize) -> bool {
    arrow > 0 && (arrow <= MOST_LOOKED_AT || arrow >= all / 2)
}

/// Removes catalogs with names of Arrow files, and returns their number. Others are removed by
/// their names.
pub(crate) async fn drop_catalogs(origin: &dyn OriginTier, objects: &mut Vec<Object>) -> u64 {
    let named = |object: &&Object| Format::of_shard(&object.path) == Some(Format::Arrow);
    let count = objects.iter().filter(named).count();
    if !are_looked_at(count, objects.len()) {
        return 0;
    }
    let looked = stream::iter(objects.iter().filter(named).cloned())
        .map(|object| async move { (packed::look(origin, &object).await, object.path) })
        .buffered(LOOKED_AT_ONCE);
    let catalogs: HashSet<Arc<str>> =
        looked.filter_map(async |(what, path)| (what == FirstBytes::Catalog).then_some(path)).collect().await;
    objects.retain(|object| !catalogs.contains(&object.path));
    catalogs.len() as u64
}

/// The objects without the files that accompany shards. At millions of objects a set of their names
/// would be large, so their common order is used.
fn data(objects: &[Object], is_packed: bool) -> Vec<&Object> {
    let (names, _) = format::data(objects.iter().map(|object| &*object.path), is_packed);
    let mut names = names.into_iter().peekable();
    objects.iter().filter(|object| names.next_if(|name| *name == &*object.path).is_some()).collect()
}

/// Removes the files that accompany shards.
pub(crate) fn drop_companions(base_url: &str, objects: &mut Vec<Object>) {
    let data: HashSet<Arc<str>> = data(objects, true).iter().map(|object| Arc::clone(&object.path)).collect();
    if let Some(first) = objects.iter().find(|object| !data.contains(&object.path)) {
        let (count, first) = (objects.len() - data.len(), &first.path);
        tracing::info!("{base_url}: {count} files next to the shards have no samples, such as {first}");
    }
    objects.retain(|object| data.contains(&object.path));
}

/// Keeps the token files among files whose format was not set.
pub(crate) fn keep_tokens(base_url: &str, objects: &mut Vec<Object>) {
    let all = objects.len();
    objects.retain(|object| object.path.ends_with(".bin") || object.path.ends_with(".npy"));
    let others = all - objects.len();
    if others > 0 && !objects.is_empty() {
        tracing::warn!(
            "{base_url}: {others} of {all} files are no token files (.bin, .npy) and are left out"
        );
    }
}
