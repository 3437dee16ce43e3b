//! Samples of several files: an image, its mask and its description.
//!
//! Files belong together by their stem, WebDataset's rule (`cat/1.jpg`, `cat/1.json`), or lie in
//! parallel directories (`images/cat/1.jpg`, `masks/cat/1.png`). A sample is the bytes of all its
//! files, one after another, and each file is one of its fields. So caches, orders and ranks treat
//! it as one sample. The price: a field alone cannot be read.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use arrow_array::{Int32Array, LargeStringArray};
use foreread_tier::{Object, OriginTier};
use foreread_types::setting;

use crate::build::class_numbers::check;
use crate::index::classes;
use crate::list::choose_format;
use crate::messages::listed;
use crate::names::{SplitName, compare};
use crate::table::{TableFiles, TableLabel, TableRows};
use crate::{Catalog, DatasetError, DatasetErrorKind, Format, Grouping, IndexOptions};

/// The files of one sample, by the numbers of their fields.
type Group = BTreeMap<usize, usize>;

/// The samples of a listing.
struct Groups<'a> {
    objects: &'a [Object],
    /// The names of fields, by their number.
    fields: Vec<Cow<'a, str>>,
    groups: BTreeMap<&'a str, Group>,
    /// Files that belong to no field.
    others: Vec<usize>,
    /// Two files of one field of a sample.
    twice: Option<(usize, usize)>,
}

impl<'a> Groups<'a> {
    fn of(objects: &'a [Object], grouping: &'a Grouping) -> Self {
        let mut groups =
            Self { objects, fields: Vec::new(), groups: BTreeMap::new(), others: Vec::new(), twice: None };
        match grouping {
            Grouping::Directories(directories) => {
                groups.fields = directories.iter().map(|(name, _)| Cow::Borrowed(name.as_str())).collect();
                for (at, object) in objects.iter().enumerate() {
                    let below = |(_, directory): &(String, String)| {
                        let directory = directory.trim_start_matches("./").trim_matches('/');
                        object.path.strip_prefix(directory)?.strip_prefix('/')
                    };
                    // Of directories in one another, the inner one.
                    let found =
                        directories.iter().zip(0..).filter_map(|(one, field)| Some((below(one)?, field)));
                    let found = found.min_by_key(|(path, _)| path.len());
                    match found {
                        Some((path, field)) => groups.add(without_ending(path), field, at),
                        None => groups.others.push(at),
                    }
                }
            }
            _ => {
                let mut numbers: HashMap<Cow<'a, str>, usize> = HashMap::new();
                for (at, object) in objects.iter().enumerate() {
                    let name = object.path.rfind('/').map_or(0, |slash| slash + 1);
                    let Some(dot) = object.path[name..].find('.').filter(|dot| *dot > 0) else {
                        groups.others.push(at);
                        continue;
                    };
                    let (stem, field) = (&object.path[..name + dot], &object.path[name + dot + 1..]);
                    let next = numbers.len();
                    let field = *numbers.entry(lower(field)).or_insert(next);
                    groups.add(stem, field, at);
                }
                groups.fields = vec![Cow::Borrowed(""); numbers.len()];
                numbers.into_iter().for_each(|(name, number)| groups.fields[number] = name);
            }
        }
        groups
    }

    fn add(&mut self, stem: &'a str, field: usize, at: usize) {
        if let Some(before) = self.groups.entry(stem).or_default().insert(field, at) {
            self.twice.get_or_insert((before, at));
        }
    }

    /// The fields that most samples have, in the order of their names, or as the user has named
    /// them.
    fn usual(&self, grouping: &Grouping) -> Vec<usize> {
        if matches!(grouping, Grouping::Directories(_)) {
            return (0..self.fields.len()).collect();
        }
        let mut counts = vec![0; self.fields.len()];
        self.groups.values().flat_map(Group::keys).for_each(|field| counts[*field] += 1);
        let most = counts.iter().copied().max().unwrap_or(0);
        let mut usual: Vec<usize> = (0..counts.len()).filter(|field| counts[*field] * 2 > most).collect();
        usual.sort_unstable_by_key(|field| &self.fields[*field]);
        usual
    }

    fn path(&self, at: usize) -> &'a str {
        &self.objects[at].path
    }
}

fn lower(text: &str) -> Cow<'_, str> {
    match text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(text.to_ascii_lowercase()),
        false => Cow::Borrowed(text),
    }
}

/// A path without the last ending of its name.
fn without_ending(path: &str) -> &str {
    let name = path.rfind('/').map_or(0, |slash| slash + 1);
    path[name..].rfind('.').filter(|dot| *dot > 0).map_or(path, |dot| &path[..name + dot])
}

/// The catalog of the samples that these files make together.
///
/// # Errors
/// [`DatasetErrorKind::Invalid`] if samples lack a file that others have, with their number and the
/// first of them, unless they are left out; and if a sample has two files of one field.
pub(crate) async fn index(
    origin: &dyn OriginTier,
    base_url: &str,
    options: &IndexOptions,
    objects: Vec<Object>,
) -> Result<Catalog, DatasetError> {
    let invalid = |why: String| DatasetError::new(DatasetErrorKind::Invalid, format!("{base_url}: {why}"));
    choose_format::check(base_url, &options.format_options, Format::Files)?;
    let groups = Groups::of(&objects, &options.grouping);
    if let Some((one, other)) = groups.twice {
        let (one, other) = (groups.path(one), groups.path(other));
        return Err(invalid(format!("{one} and {other} are one field of one sample; exclude one of them")));
    }
    let usual = groups.usual(&options.grouping);
    let is_complete = |group: &Group| usual.iter().all(|field| group.contains_key(field));
    let lacks = |(stem, group): (&&str, &Group)| {
        let absent = usual.iter().find(|field| !group.contains_key(field))?;
        Some(format!("{stem} (no {})", groups.fields[*absent]))
    };
    let missing: Vec<String> = groups.groups.iter().filter_map(lacks).collect();
    let names: Vec<&str> = usual.iter().map(|field| &*groups.fields[*field]).collect();
    if !missing.is_empty() {
        let what = format!(
            "{} of {} samples lack one of the files {}",
            missing.len(),
            groups.groups.len(),
            names.join(", ")
        );
        let which = listed(missing.iter().map(String::as_str), missing.len());
        if !options.skip_missing {
            let skip = setting("on-missing").to("skip");
            return Err(invalid(format!(
                "{what}: {which}; add them, or leave these samples out with {skip}"
            )));
        }
        tracing::warn!("{base_url}: {what}, and are left out: {which}");
    }
    check_others(base_url, &groups, &usual, options.skip_missing)?;
    let mut kept: Vec<(&str, &Group)> = groups
        .groups
        .iter()
        .map(|(stem, group)| (*stem, group))
        .filter(|(_, group)| is_complete(group))
        .collect();
    if kept.is_empty() {
        let message = format!("{base_url}: no sample has all of the files {}", names.join(", "));
        return Err(DatasetError::new(DatasetErrorKind::Empty, message));
    }
    kept.sort_unstable_by(|(a, _), (b, _)| compare((a, SplitName::of(a)), (b, SplitName::of(b))));
    let columns = usual.iter().map(|field| {
        let paths = kept.iter().map(|(_, group)| Some(groups.path(group[field])));
        paths.collect::<LargeStringArray>()
    });
    let fields = names.iter().map(|name| (*name).to_owned()).zip(columns.collect::<Vec<_>>());
    let mut rows = TableRows::of_fields(base_url, fields);
    let of_row = kept.iter().flat_map(|(_, group)| usual.iter().map(|field| group[field] as u32)).collect();
    // Stems in place of paths: their first directories are the classes.
    let stems = kept.iter().map(|(stem, _)| Object { path: (*stem).into(), size: 0, version: None });
    let stems: Vec<Object> = stems.collect();
    if let Some(classes) = classes_of(origin, base_url, options, &stems).await? {
        let known: HashMap<&str, i32> = classes.iter().map(String::as_str).zip(0..).collect();
        let number = |object: &Object| known.get(SplitName::of(&object.path).label(&object.path)).copied();
        let numbers: Int32Array = stems.iter().map(number).collect();
        rows = rows.with_label(TableLabel::Classes(classes.clone(), numbers));
    }
    Catalog::of_rows(origin, base_url, &rows, TableFiles { objects, of_row }, options).await
}

/// The names of the classes, if samples have any. Directories of fields are none.
async fn classes_of(
    origin: &dyn OriginTier,
    base_url: &str,
    options: &IndexOptions,
    stems: &[Object],
) -> Result<Option<Vec<String>>, DatasetError> {
    if matches!(options.grouping, Grouping::Stem) {
        return Ok(classes::of_files(origin, base_url, options, &classes::labels_of(stems))
            .await?
            .filter(|names| !names.is_empty()));
    }
    let labels = stems.iter().map(|stem| SplitName::of(&stem.path).label(&stem.path));
    let found: BTreeSet<&str> = labels.filter(|label| !label.is_empty()).collect();
    if let Some(given) = &options.classes {
        check(base_url, given, found.into_iter())?;
        return Ok(Some(given.clone()).filter(|names| !names.is_empty()));
    }
    Ok((!found.is_empty()).then(|| found.into_iter().map(str::to_owned).collect()))
}

/// Files that belong to no sample: of fields that most samples lack, or without a field.
fn check_others(
    base_url: &str,
    groups: &Groups<'_>,
    usual: &[usize],
    is_skipped: bool,
) -> Result<(), DatasetError> {
    let is_unusual = |(field, _): &(&usize, &usize)| !usual.contains(field);
    let unusual = groups.groups.values().flatten().filter(is_unusual).map(|(_, at)| groups.path(*at));
    let mut unusual: Vec<&str> = unusual.collect();
    unusual.sort_unstable();
    if !unusual.is_empty() && !is_skipped {
        let (count, which) = (unusual.len(), listed(unusual.iter().copied(), unusual.len()));
        let (exclude, skip) = (setting("exclude"), setting("on-missing").to("skip"));
        let message = format!(
            "{base_url}: {count} files are of fields that most samples lack: {which}; leave them out with \
             {exclude} or {skip}"
        );
        return Err(DatasetError::new(DatasetErrorKind::Invalid, message));
    }
    let mut others: Vec<&str> = groups.others.iter().map(|at| groups.path(*at)).chain(unusual).collect();
    others.sort_unstable();
    if !others.is_empty() {
        let (count, which) = (others.len(), listed(others.iter().copied(), others.len()));
        tracing::warn!("{base_url}: {count} files belong to no sample and are left out: {which}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(paths: &[&str]) -> Vec<Object> {
        paths.iter().map(|path| Object { path: (*path).into(), size: 1, version: None }).collect()
    }

    #[test]
    // semantics: SAMPLE-29
    fn files_of_one_stem_are_a_sample() {
        let all = objects(&[
            "a/1.jpg",
            "a/1.seg.PNG",
            "a/2.jpg",
            "a/2.seg.png",
            "b/x.jpg",
            "b/x.seg.png",
            "README",
            ".x.jpg",
            "b/y.txt",
        ]);
        let groups = Groups::of(&all, &Grouping::Stem);
        let usual = groups.usual(&Grouping::Stem);
        let names: Vec<&str> = usual.iter().map(|field| &*groups.fields[*field]).collect();
        assert_eq!(names, ["jpg", "seg.png"]);
        assert_eq!(groups.groups.keys().copied().collect::<Vec<_>>(), ["a/1", "a/2", "b/x", "b/y"]);
        assert_eq!(groups.others, [6, 7]);
    }

    #[test]
    // semantics: SAMPLE-29
    fn files_of_parallel_directories_are_a_sample() {
        let all =
            objects(&["images/c/1.a.jpg", "masks/c/1.a.png", "images/2.jpg", "other/2.jpg", "images2/2.jpg"]);
        let grouping =
            Grouping::Directories(vec![("m".into(), "masks/".into()), ("i".into(), "images".into())]);
        let groups = Groups::of(&all, &grouping);
        assert_eq!(groups.groups["c/1.a"], Group::from([(0, 1), (1, 0)]));
        assert_eq!(groups.groups["2"], Group::from([(1, 2)]));
        assert_eq!(groups.others, [3, 4]);
    }
}
