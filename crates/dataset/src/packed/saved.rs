//! Directories that Hugging Face `datasets` has written: which Arrow files are their data.
//!
//! Next to the data lie other tables: results of `map` and `filter` (`cache-*.arrow`), and shards
//! of an earlier save. `state.json` names the data of a directory that `save_to_disk` has written.
//! In its cache, `dataset_info.json` names the splits, and the files of a split have its name at
//! their end. `dataset_dict.json` names the directories of splits. Files that these do not name are
//! not samples. The price is up to three small requests per directory.

use std::collections::{BTreeMap, BTreeSet};

use foreread_formats::{FormatError, ReadError};
use foreread_tier::{ErrorKind, Object, OriginTier};
use foreread_types::setting;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::reader::ShardStore;
use super::shard_error::dataset_error;
use crate::format::numbered;
use crate::{DatasetError, DatasetErrorKind};

/// The file of `save_to_disk`, that of the cache, and that of several splits.
const STATE: &str = "state.json";
const INFO: &str = "dataset_info.json";
const SPLITS: &str = "dataset_dict.json";

/// The longest such file that is read.
const LONGEST: u64 = 64 << 20;

/// The beginning of the names of results in a cache.
const RESULT: &str = "cache-";

/// A named file of a saved directory.
#[derive(Deserialize)]
struct NamedFile {
    filename: String,
}

/// `state.json`. Other programs may write other keys.
#[derive(Deserialize)]
struct SavedState {
    #[serde(rename = "_data_files")]
    data: Option<Vec<NamedFile>>,
    /// The rows that are chosen, in an order.
    #[serde(rename = "_indices_data_files", alias = "_indices_files")]
    indices: Option<Vec<NamedFile>>,
}

/// `dataset_info.json`.
#[derive(Deserialize)]
struct CacheInfo {
    splits: Option<BTreeMap<String, serde_json::Value>>,
}

/// `dataset_dict.json`.
#[derive(Deserialize)]
struct SavedSplits {
    splits: Option<Vec<String>>,
}

/// Keeps the objects that are data of their directory, and all of directories without such files.
///
/// # Errors
/// [`DatasetErrorKind::Unsupported`] for rows in another order than the data,
/// [`DatasetErrorKind::BadShard`] if named data are missing, and those of reads.
pub(super) async fn only_data(
    origin: &dyn OriginTier,
    store: &ShardStore<'_>,
    base_url: &str,
    is_selected: bool,
    objects: Vec<Object>,
) -> Result<Vec<Object>, DatasetError> {
    let directory = SavedDirectory { origin, store, base_url };
    let mut by_directory = BTreeMap::<String, Vec<Object>>::new();
    for object in objects {
        let (path, _) = object.path.rsplit_once('/').unwrap_or(("", &object.path));
        by_directory.entry(path.to_owned()).or_default().push(object);
    }
    let mut splits = BTreeMap::<String, Option<BTreeSet<String>>>::new();
    let (mut kept, mut left_out) = (Vec::new(), Vec::new());
    let mut taken = BTreeMap::<String, Vec<String>>::new();
    for (path, objects) in by_directory {
        if let Some((parent, name)) = split_off(&path) {
            if !splits.contains_key(parent) {
                let found: Option<SavedSplits> = directory.read(parent, SPLITS).await?;
                let names = found.and_then(|found| found.splits);
                splits.insert(parent.to_owned(), names.map(BTreeSet::from_iter));
            }
            if let Some(Some(names)) = splits.get(parent) {
                if !names.contains(name) {
                    left_out.extend(objects);
                    continue;
                }
                taken.entry(parent.to_owned()).or_default().push(name.to_owned());
            }
        }
        let (data, others) = directory.divide(&path, is_selected, objects).await?;
        kept.extend(data);
        left_out.extend(others);
    }
    for (parent, names) in taken.iter().filter(|(_, names)| names.len() > 1) {
        let place = below(base_url, parent);
        tracing::warn!(
            "{place}: the samples of its splits ({}) are one dataset; for one of them, index {place}/{}",
            names.join(", "),
            names[0]
        );
    }
    let stale = left_out.iter().filter(|object| !file_name(&object.path).starts_with(RESULT));
    let (first, count) = (stale.clone().next(), stale.count());
    if let Some(first) = first {
        tracing::warn!(
            "{base_url}: {count} Arrow files are not samples, because {STATE}, {INFO} or {SPLITS} does not \
             name them: {} is the first",
            first.path
        );
    }
    if let (true, Some(first)) = (kept.is_empty(), left_out.first()) {
        let message = format!(
            "{base_url}: there are no samples: {STATE}, {INFO} or {SPLITS} names none of {} Arrow files; \
             name a file itself to read it, such as {}",
            left_out.len(),
            first.path
        );
        return Err(DatasetError::new(DatasetErrorKind::Empty, message));
    }
    tracing::debug!(count = left_out.len(), "Arrow files that are not data of a saved dataset");
    kept.sort_unstable_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
    Ok(kept)
}

/// The parent of a directory and its name. `None` at the top.
fn split_off(path: &str) -> Option<(&str, &str)> {
    match path.rsplit_once('/') {
        Some(parts) => Some(parts),
        None => (!path.is_empty()).then_some(("", path)),
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn below(base: &str, path: &str) -> String {
    match path {
        "" => base.trim_end_matches('/').to_owned(),
        path => format!("{}/{path}", base.trim_end_matches('/')),
    }
}

/// Reads the files that describe a directory.
struct SavedDirectory<'a> {
    origin: &'a dyn OriginTier,
    store: &'a ShardStore<'a>,
    base_url: &'a str,
}

impl SavedDirectory<'_> {
    /// The objects of a directory that are its data, and the others.
    async fn divide(
        &self,
        path: &str,
        is_selected: bool,
        objects: Vec<Object>,
    ) -> Result<(Vec<Object>, Vec<Object>), DatasetError> {
        let state: Option<SavedState> = self.read(path, STATE).await?;
        if let Some(SavedState { data: Some(data), indices }) = state {
            if indices.is_some_and(|indices| !indices.is_empty()) {
                let message = format!(
                    "{}/{STATE}: the rows are chosen by indices (after filter, sort or shuffle): save them \
                     again with dataset.flatten_indices().save_to_disk(PATH)",
                    below(self.base_url, path)
                );
                return Err(DatasetError::new(DatasetErrorKind::Unsupported, message));
            }
            let names: BTreeSet<&str> = data.iter().map(|file| file.filename.as_str()).collect();
            let there: BTreeSet<&str> = objects.iter().map(|object| file_name(&object.path)).collect();
            if let Some(missing) = names.difference(&there).next().filter(|_| !is_selected) {
                let message = format!(
                    "{}: {} is missing, which {STATE} next to it lists; copy it again, or choose the rest \
                     with {}",
                    below(self.base_url, path),
                    missing.escape_debug(),
                    setting("include")
                );
                return Err(DatasetError::new(DatasetErrorKind::BadShard, message));
            }
            return Ok(objects.into_iter().partition(|object| names.contains(file_name(&object.path))));
        }
        if !objects.iter().any(|object| file_name(&object.path).starts_with(RESULT)) {
            return Ok((objects, Vec::new()));
        }
        let info: Option<CacheInfo> = self.read(path, INFO).await?;
        let Some(info) = info else { return Ok((objects, Vec::new())) };
        let splits: Vec<String> = info.splits.unwrap_or_default().into_keys().collect();
        let is_data = |object: &Object| {
            let name = file_name(&object.path);
            let stem = name.strip_suffix(".arrow").unwrap_or(name);
            let stem = numbered(stem).unwrap_or(stem);
            let is_split = |split: &String| stem.strip_suffix(split.as_str()).is_some_and(ends_a_word);
            !name.starts_with(RESULT) && (splits.is_empty() || splits.iter().any(is_split))
        };
        Ok(objects.into_iter().partition(is_data))
    }

    /// A JSON file of a directory. `None` if it is missing, or if it is no table of these keys.
    async fn read<T: DeserializeOwned>(&self, path: &str, name: &str) -> Result<Option<T>, DatasetError> {
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        let failed = |error| dataset_error(error, self.base_url, &path);
        let object = match self.origin.stat(&path).await {
            Ok(object) => object,
            // Without permission to list, a bucket does not say whether an object exists.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Denied) => return Ok(None),
            Err(error) => return Err(failed(ReadError::from(error).into())),
        };
        let damaged = |why: String| failed(FormatError::damaged(0, why));
        if object.size == 0 || object.size > LONGEST {
            return Err(damaged(format!("it has {} bytes: expected 1 to {LONGEST}", object.size)));
        }
        let json = self.store.read(&object, 0, object.size).await;
        let json = json.map_err(failed)?;
        let value: serde_json::Value = serde_json::from_slice(&json)
            .map_err(|error| damaged(format!("it is not valid JSON ({error})")))?;
        Ok(T::deserialize(value).ok())
    }
}

/// Whether a split's name may follow this text: `squad-train`, and `train` itself.
fn ends_a_word(before: &str) -> bool {
    before.is_empty() || before.ends_with('-')
}
