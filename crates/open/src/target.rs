//! The target that a user names: one dataset, or single shards.
//!
//! `DIR/shard-{000000..000146}.tar`, several names and the name of a single shard have the same
//! result. It is the directory that contains them, as the dataset's location, and the names in it.
//! So a catalog has one base URL, regardless of the spelling. The directory of a file that is one
//! sample is its class. So the location of a list of files is above all of their directories. The
//! size and version of each shard
//! take one request, because the directory may contain a million other objects. The price is one
//! request per shard.

use std::path::Path;

use foreread_dataset::{CATALOG_SUFFIX, Catalog, Format, expand};

use crate::error::{Error, Result};
use crate::storage::StorageOptions;

/// The target of a run: names, or a catalog, which contains the location of its data.
#[derive(Clone, Debug)]
pub struct TargetSpec {
    /// The URL or path of a dataset, of a catalog or of a shard, or several shards.
    pub names: Vec<String>,
    /// The catalog, if it is given in memory.
    pub catalog: Option<Catalog>,
    /// The backend's options.
    pub storage: StorageOptions,
}

impl TargetSpec {
    /// The target with this name: a URL, a directory, a catalog or a shard.
    pub fn by(name: impl Into<String>) -> Self {
        Self { names: vec![name.into()], catalog: None, storage: StorageOptions::default() }
    }
}

/// The location of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The URL or path of its origin.
    pub url: String,
    /// The named objects in it. Empty for all objects.
    pub objects: Vec<String>,
}

impl Target {
    /// The location that `names` have in common. `format` is that of the samples, if it is known.
    ///
    /// # Errors
    /// If braces expand to too many names, or the names are several datasets, shards of several
    /// stores, or a catalog.
    pub fn of(names: &[String], format: Option<Format>) -> Result<Self> {
        let mut urls = Vec::new();
        for name in names {
            match Path::new(name).exists() {
                true => urls.push(absolute(name)), // whatever braces are in it
                false => urls.extend(expand(name)?.iter().map(|name| absolute(name))),
            }
        }
        match &urls[..] {
            [one] if !is_shard(one) => Ok(Self { url: one.clone(), objects: Vec::new() }),
            shards => named(shards, format),
        }
    }
}

/// Whether a single name is that of an object: a file, or a name with a shard's suffix if files
/// cannot be seen.
fn is_shard(url: &str) -> bool {
    match Path::new(url).exists() {
        true => Path::new(url).is_file(),
        false => is_named_as_shard(url),
    }
}

/// Whether a name is that of a shard of any format. Includes compressed shards, which have a
/// separate error.
pub fn is_named_as_shard(url: &str) -> bool {
    Format::of_shard(url).is_some() || Format::is_numbered_shard(url) || Format::is_compressed_shard(url)
}

/// Whether each of these is one sample, and no shard. Several arrays are samples, too.
fn are_samples(names: &[String], format: Option<Format>) -> bool {
    match format {
        Some(format) => !format.is_packed(),
        None => {
            let arrays = names.iter().filter(|name| Format::of_shard(name) == Some(Format::Npy)).count();
            !names.iter().all(|name| is_named_as_shard(name)) || arrays == names.len() && arrays > 1
        }
    }
}

/// The error of a catalog among names of shards. Its content decides. Only names that may be a
/// catalog's are opened.
fn refuse_catalogs(names: &[String]) -> Result<()> {
    let may_be = |name: &str| {
        names.len() == 1 || name.ends_with(CATALOG_SUFFIX) || Format::of_shard(name) == Some(Format::Arrow)
    };
    match names.iter().find(|name| may_be(name) && Catalog::is_catalog_file(name)) {
        Some(catalog) => Err(Error::usage(format!(
            "{catalog} is a catalog and holds no samples; load it alone, or index the data that it describes"
        ))),
        None => Ok(()),
    }
}

/// The directory that contains all of these.
fn named(shards: &[String], format: Option<Format>) -> Result<Target> {
    refuse_catalogs(shards)?;
    if let Some(directory) = shards.iter().find(|shard| shard.ends_with('/') || Path::new(shard).is_dir()) {
        let message = format!("{directory} is not a shard; name one dataset, or the shards of one");
        return Err(Error::usage(message));
    }
    let directory = |url: &str| url.rfind('/').map_or(0, |slash| slash + 1);
    let mut base = shards.first().map_or("", |first| &first[..directory(first)]);
    for shard in shards {
        while !shard.starts_with(base) {
            base = &base[..directory(&base[..base.len() - 1])];
        }
    }
    let root = base.find("://").map_or(0, |scheme| scheme + 3);
    let is_class = are_samples(shards, format) && shards.iter().all(|name| directory(name) == base.len());
    let above = &base[..directory(&base[..base.len().saturating_sub(1)])];
    if is_class && above.len() > root {
        base = above;
    }
    if base[root..].is_empty() {
        let first = shards.first().map_or("", String::as_str);
        return Err(Error::usage(format!(
            "{first} and the others are not in the same storage; index each storage separately"
        )));
    }
    let objects = shards.iter().map(|shard| shard[base.len()..].to_owned()).collect();
    // The root of a file system keeps its slash.
    let url = if base.len() > root + 1 { base.trim_end_matches('/') } else { base };
    Ok(Target { url: url.to_owned(), objects })
}

/// Makes a relative path absolute, so that a catalog is valid in every directory. Returns anything
/// else unchanged. The backend of `file` understands `file:/directory`, too.
pub fn absolute(target: &str) -> String {
    let file = target.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("file:/"));
    if file || target.contains("://") {
        return target.to_owned();
    }
    match std::path::absolute(target) {
        Ok(path) => path.to_string_lossy().into_owned(),
        Err(_) => target.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> (String, Vec<String>) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let target = Target::of(&names, None).unwrap();
        (target.url, target.objects)
    }

    #[test]
    fn shards_are_named_relative_to_their_directory() {
        for (names, url, objects) in [
            (&["s3://b/train"][..], "s3://b/train", &[][..]),
            (&["/nowhere/train"], "/nowhere/train", &[]),
            (&["s3://b/s-{08..10}.tar"], "s3://b", &["s-08.tar", "s-09.tar", "s-10.tar"]),
            (&["s3://b/x/a.tar"], "s3://b/x", &["a.tar"]),
            (&["s3://b/x/train-00000-of-01024"], "s3://b/x", &["train-00000-of-01024"]),
            (&["s3://b/t-{00..01}-of-02"], "s3://b", &["t-00-of-02", "t-01-of-02"]),
            (&["s3://b/x/a.tar/"], "s3://b/x/a.tar/", &[]),
            (&["/nowhere/{a/x,b}.tar", "/nowhere/a/y.tar"], "/nowhere", &["a/x.tar", "b.tar", "a/y.tar"]),
            (&["/a.tar", "/b.tar"], "/", &["a.tar", "b.tar"]),
            (&["s3://b/ab/0.tar", "s3://b/ac/0.tar"], "s3://b", &["ab/0.tar", "ac/0.tar"]),
        ] {
            let expected: Vec<String> = objects.iter().map(|object| (*object).to_owned()).collect();
            assert_eq!(of(names), (url.to_owned(), expected), "{names:?}");
        }
    }

    #[test]
    // semantics: SAMPLE-4
    fn list_of_files_keeps_their_class_directories() {
        for (names, url, objects) in [
            (&["/d/cat/1.jpg", "/d/cat/2.jpg"][..], "/d", &["cat/1.jpg", "cat/2.jpg"][..]),
            (&["/d/cat/1.jpg", "/d/dog/1.jpg"], "/d", &["cat/1.jpg", "dog/1.jpg"]),
            (&["/d/cat/1.jpg", "/d/cat/x/2.jpg"], "/d/cat", &["1.jpg", "x/2.jpg"]),
            (&["/d/top.jpg", "/d/cat/1.jpg"], "/d", &["top.jpg", "cat/1.jpg"]),
            (&["/d/cat/1.npy", "/d/cat/2.npy"], "/d", &["cat/1.npy", "cat/2.npy"]),
            (&["s3://b/cat/1.jpg", "s3://b/cat/2.jpg"], "s3://b", &["cat/1.jpg", "cat/2.jpg"]),
            (&["s3://b/1.jpg", "s3://b/2.jpg"], "s3://b", &["1.jpg", "2.jpg"]),
            (&["/1.jpg", "/2.jpg"], "/", &["1.jpg", "2.jpg"]),
        ] {
            let expected: Vec<String> = objects.iter().map(|object| (*object).to_owned()).collect();
            assert_eq!(of(names), (url.to_owned(), expected), "{names:?}");
        }
        let tokens = ["/d/a.bin".to_owned(), "/d/b.bin".to_owned()];
        assert_eq!(Target::of(&tokens, Some(Format::Tokens)).unwrap().url, "/d");
    }

    #[test]
    fn existing_name_with_braces_is_not_expanded() {
        let directory = tempfile::tempdir().unwrap();
        let odd = directory.path().join("a{1,2}");
        std::fs::create_dir(&odd).unwrap();
        let odd = odd.to_str().unwrap();
        assert_eq!(of(&[odd]), (odd.to_owned(), Vec::new()));
    }

    #[test]
    fn several_datasets_and_several_stores_are_refused() {
        for names in
            [["s3://b/x/", "s3://b/y.tar"], ["s3://b/x.tar", "s3://c/x.tar"], ["s3://b/x.tar", "/x.tar"]]
        {
            assert!(Target::of(&names.map(str::to_owned), None).is_err(), "{names:?}");
        }
        assert!(Target::of(&["/x/{0..99999999999}.tar".to_owned()], None).is_err());
    }

    #[test]
    fn urls_stay_and_relative_paths_become_absolute() {
        for target in ["/data", "s3://bucket/x", "file:///data", "file:/data", "FILE:/data"] {
            assert_eq!(absolute(target), target);
        }
        let here = std::env::current_dir().unwrap();
        for target in ["data", "file:data", "ünïcödé"] {
            assert_eq!(Path::new(&absolute(target)), here.join(target));
        }
    }
}
