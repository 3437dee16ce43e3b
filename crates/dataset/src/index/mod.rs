//! Builds the catalog of an origin: lists it, chooses the format, and reads the headers in shards.

pub(crate) mod classes;
pub(crate) mod groups;
pub(crate) mod large_listing;
pub(crate) mod partitions;
pub(crate) mod shards;

use foreread_tier::OriginTier;

use crate::build::{SampleOrder, object_layouts};
use crate::list::{self, choose_format};
use crate::{Catalog, DatasetError, DatasetErrorKind, Grouping, IndexOptions, IndexProgress};

impl Catalog {
    /// Lists an origin and builds the catalog of its objects. `progress` is called after each
    /// object that is found. For shards it is called after each read of one.
    ///
    /// A name that cannot be listed and is not excluded is an error. The listing continues, up to
    /// 100 of them, so that the message has their number and the first of them.
    ///
    /// For shards the headers of their members are read, by up to 64 requests at once.
    ///
    /// After the last object the future sorts and encodes without yielding, about 1 us per sample.
    ///
    /// # Errors
    /// [`DatasetErrorKind::Listing`] if a name could not be listed. [`DatasetErrorKind::Empty`]
    /// without samples. [`DatasetErrorKind::Invalid`] for an invalid glob or a named object that is
    /// missing. [`DatasetErrorKind::BadShard`] or [`DatasetErrorKind::Unsupported`] if a shard is
    /// damaged or compressed. [`DatasetErrorKind::Reading`] if a shard cannot be read.
    /// [`DatasetErrorKind::InUse`] if another process writes the file of [`IndexOptions::partial`].
    /// Also those of [`Catalog::from_objects`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the listing. Only the file of [`IndexOptions::partial`] remains.
    pub async fn index(
        origin: &dyn OriginTier,
        base_url: &str,
        options: &IndexOptions,
        mut progress: impl FnMut(IndexProgress),
    ) -> Result<Self, DatasetError> {
        let mut found = list::list(origin, base_url, options, &mut progress).await?;
        if let Some(large) = found.take_large(options, &mut progress)? {
            return large_listing::index(origin, base_url, options, large, &mut progress).await;
        }
        found.catalogs += choose_format::drop_catalogs(origin, &mut found.objects).await;
        if found.objects.is_empty() {
            let why = left_out(options, found.unwanted, found.catalogs);
            let message = format!("{base_url}: there are no samples{why}");
            return Err(DatasetError::new(DatasetErrorKind::Empty, message));
        }
        if options.grouping != Grouping::None {
            return groups::index(origin, base_url, options, found.objects).await;
        }
        let format = choose_format::choose(origin, base_url, options, &found.objects).await?;
        match format.is_packed() {
            false => {
                let layouts = object_layouts::layouts(origin, &found.objects).await;
                let labels = classes::labels_of(&found.objects);
                let classes = classes::of_files(origin, base_url, options, &labels).await?;
                let order = SampleOrder { classes, is_listed: !options.objects.is_empty() };
                Self::of_files(base_url, options.notes(), found.objects, order, &layouts)
            }
            true => shards::index(origin, base_url, format, options, found, progress).await,
        }
    }
}

/// Describes the objects that were found and are not samples.
fn left_out(options: &IndexOptions, unwanted: u64, catalogs: u64) -> String {
    let mut parts = Vec::new();
    if unwanted > 0 {
        let how = match (options.include.is_empty(), options.exclude.is_empty()) {
            (true, _) => "excluded",
            (_, true) => "not included",
            _ => "excluded or not included",
        };
        parts.push(format!("{unwanted} {how} by the globs"));
    }
    if catalogs > 0 {
        parts.push(format!("{catalogs} left out as catalogs"));
    }
    match parts.is_empty() {
        true => " in it (hidden files do not count)".to_owned(),
        false => format!(": {}", parts.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foreread_tier::{ErrorKind, Object, ReadFuture, ReadRequest, Tier, TierError, TierProfile};
    use foreread_types::SampleId;
    use futures::StreamExt;
    use futures::future::BoxFuture;
    use futures::stream::BoxStream;

    use super::*;

    /// An origin that only lists. A name is a path, the path of an empty object (`path=`), or an
    /// error about one (`!path`).
    #[derive(Debug)]
    struct Listed(Vec<&'static str>, TierProfile);

    impl Tier for Listed {
        fn name(&self) -> &str {
            "listed"
        }
        fn profile(&self) -> &TierProfile {
            &self.1
        }
        fn read(&self, _: Arc<ReadRequest>) -> ReadFuture {
            Box::pin(std::future::ready(Err(TierError::new(ErrorKind::Denied, "listed"))))
        }
        fn submit(&self) {}
    }

    impl OriginTier for Listed {
        fn place(&self) -> &str {
            "listed"
        }

        fn list(&self, _: &str, _: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
            let listed = self.0.clone().into_iter().map(|path| match path.strip_prefix('!') {
                Some(path) => Err(TierError::new(ErrorKind::Denied, "listed").with_object(path)),
                None => match path.strip_suffix('=') {
                    Some(path) => Ok(Object { path: path.into(), size: 0, version: None }),
                    None => Ok(Object { path: path.into(), size: 10, version: None }),
                },
            });
            futures::stream::iter(listed.collect::<Vec<_>>()).boxed()
        }

        fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
            let found = match self.0.contains(&path) {
                true => Ok(Object { path: path.into(), size: 10, version: None }),
                false => Err(TierError::new(ErrorKind::NotFound, "listed").with_object(path)),
            };
            Box::pin(std::future::ready(found))
        }

        fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
            None
        }
    }

    async fn index(paths: &[&'static str], options: IndexOptions) -> Result<Vec<String>, DatasetError> {
        let origin = Listed(paths.to_vec(), TierProfile::new(1));
        let mut last = IndexProgress::default();
        let catalog = Catalog::index(&origin, "/data", &options, |progress| {
            // Directory markers are detected at the end of the listing.
            assert!(progress.objects == last.objects + 1 || progress.objects < last.objects);
            last = progress;
        })
        .await?;
        assert_eq!((last.objects, last.bytes), (catalog.len(), catalog.total_bytes()));
        (0..catalog.len()).map(|id| catalog.path(SampleId(id)).map(std::borrow::Cow::into_owned)).collect()
    }

    /// The labels of a part of a dataset, and all classes.
    async fn labels(
        paths: &[&'static str],
        options: IndexOptions,
    ) -> Result<(Vec<Option<u32>>, Vec<String>), DatasetError> {
        let catalog =
            Catalog::index(&Listed(paths.to_vec(), TierProfile::new(1)), "/data", &options, |_| ()).await?;
        let catalog = Catalog::from_bytes(catalog.to_bytes()?, "saved")?;
        let labels = (0..catalog.len()).map(|id| catalog.label_index(SampleId(id))).collect();
        Ok((labels, catalog.labels().iter().map(ToString::to_string).collect()))
    }

    #[tokio::test]
    // semantics: SAMPLE-4
    async fn class_keeps_its_number_in_every_subset() {
        let paths = ["cat/1", "dog/1", "dog/2", "eel/1", "top"];
        let any = IndexOptions::default;
        let all: Vec<String> = ["cat", "dog", "eel"].map(str::to_owned).to_vec();
        for (options, numbers) in [
            (any(), vec![None, Some(0), Some(1), Some(1), Some(2)]),
            (any().including("dog/*").including("eel/*"), vec![Some(1), Some(1), Some(2)]),
            (any().excluding("cat/*").excluding("dog/1"), vec![None, Some(1), Some(2)]),
            (any().naming(["eel/1", "dog/2"]), vec![Some(2), Some(1)]),
        ] {
            assert_eq!(labels(&paths, options.clone()).await.unwrap(), (numbers, all.clone()), "{options:?}");
        }
    }

    #[tokio::test]
    // semantics: SAMPLE-4
    async fn named_classes_have_the_order_of_their_names() {
        let paths = ["cat/1", "dog/1"];
        let with = |names: &[&str]| IndexOptions::default().with_classes(names.iter().copied());
        let (numbers, names) = labels(&paths, with(&["eel", "dog", "cat"])).await.unwrap();
        assert_eq!(
            (numbers, names),
            (vec![Some(2), Some(1)], ["eel", "dog", "cat"].map(str::to_owned).to_vec())
        );
        assert_eq!(labels(&paths, with(&[])).await.unwrap(), (vec![None, None], Vec::new()));
        for (names, why) in [(&["dog"][..], "lacks 1 of the labels: cat"), (&["cat", "dog", "cat"], "twice")]
        {
            let error = labels(&paths, with(names)).await.unwrap_err();
            assert_eq!(error.kind(), DatasetErrorKind::Invalid);
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[tokio::test]
    // semantics: SAMPLE-4
    async fn classes_that_cannot_be_listed_must_be_named() {
        let paths = ["cat/1", "dog/1", "!private"];
        let named = IndexOptions::default().naming(["dog/1"]);
        let error = labels(&paths, named.clone()).await.unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::Listing);
        assert!(error.to_string().contains("by an index with `classes`"), "{error}");
        let (numbers, _) = labels(&paths, named.with_classes(["cat", "dog"])).await.unwrap();
        assert_eq!(numbers, [Some(1)]);
    }

    #[tokio::test]
    // semantics: SAMPLE-24
    async fn names_that_match_nothing_are_counted_and_named() {
        let paths = ["a/1.jpg", "b[1].jpg"];
        let including =
            |globs: &[&str]| globs.iter().fold(IndexOptions::default(), |all, glob| all.including(*glob));
        let given = including(&["a/*", "a/2.jpg", "c/*", "c/1.jpg", "a/1.jpg"]);
        let error = index(&paths, given).await.unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::Invalid);
        assert!(
            error.to_string().contains("2 of 5 names in `include` match nothing: a/2.jpg, c/1.jpg;"),
            "{error}"
        );
        // Endings may be absent.
        assert_eq!(index(&paths, including(&["a/*", "**/*.png"])).await.unwrap(), ["a/1.jpg"]);
        // A name is a name, whatever characters are in it.
        assert_eq!(index(&paths, including(&["b[1].jpg"])).await.unwrap(), ["b[1].jpg"]);
    }

    #[tokio::test]
    // semantics: SAMPLE-3
    async fn list_keeps_its_order() {
        let paths = ["a/1", "a/2", "b/1", "b/2"];
        let listed = |names: &[&str]| IndexOptions::default().naming(names.iter().copied());
        let origin = Listed(paths.to_vec(), TierProfile::new(1));
        let catalog = async |names: &[&str]| Catalog::index(&origin, "/data", &listed(names), |_| ()).await;
        let (sorted, other) = (["a/1", "a/2", "b/1"], ["b/1", "a/2", "a/1"]);
        let made = catalog(&other).await.unwrap();
        let made = Catalog::from_bytes(made.to_bytes().unwrap(), "saved").unwrap();
        for (id, path) in (0..).zip(other) {
            assert_eq!(made.path(SampleId(id)).unwrap(), path);
            assert_eq!(made.find(path), Some(SampleId(id)));
        }
        assert_eq!(made.find("b/2"), None);
        let first = catalog(&sorted).await.unwrap();
        assert_ne!(first.fingerprint(), made.fingerprint());
        // A list in the order of names makes the same catalog as in earlier versions.
        let objects = sorted.map(|path| Object { path: path.into(), size: 10, version: None });
        let before = Catalog::from_objects("/data", objects).unwrap();
        assert_eq!(first.fingerprint(), before.fingerprint());
        let error = catalog(&["a/1", "b/1", "a/1"]).await.unwrap_err();
        assert!(error.to_string().contains("1 of the 3 names occur more than once: a/1"), "{error}");
    }

    #[tokio::test]
    async fn globs_match_the_whole_path_and_stars_stop_at_slashes() {
        let paths = ["a.jpg", "x/b.jpg", "x/c.txt", "x/y/d.jpg", "catalog.foreread", "c.foreread.partial"];
        let any = IndexOptions::default;
        assert_eq!(index(&paths, any()).await.unwrap(), ["a.jpg", "x/b.jpg", "x/c.txt", "x/y/d.jpg"]);
        assert_eq!(index(&paths, any().including("*.jpg")).await.unwrap(), ["a.jpg"]);
        let all = any().including("**/*.jpg");
        assert_eq!(index(&paths, all.clone()).await.unwrap(), ["a.jpg", "x/b.jpg", "x/y/d.jpg"]);
        assert_eq!(index(&paths, all.excluding("x/y/**")).await.unwrap(), ["a.jpg", "x/b.jpg"]);
        assert_eq!(index(&paths, any().including("x/*.{txt,jpg}")).await.unwrap(), ["x/b.jpg", "x/c.txt"]);
        let error = index(&paths, any().including("[a")).await.unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::Invalid);
        assert!(error.to_string().contains("[a"), "{error}");
    }

    #[tokio::test]
    async fn empty_result_names_what_was_excluded() {
        let error = index(&[], IndexOptions::default()).await.unwrap_err();
        assert_eq!(error.to_string(), "/data: there are no samples in it (hidden files do not count)");
        let paths = ["a", "b", "old.foreread"];
        let error = index(&paths, IndexOptions::default().excluding("*")).await.unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::Empty);
        let counted = "2 excluded by the globs and 1 left out as catalogs";
        assert_eq!(error.to_string(), format!("/data: there are no samples: {counted}"));
    }

    #[tokio::test]
    // semantics: SAMPLE-7
    async fn directory_markers_are_not_samples() {
        let paths = ["shards=", "shards/a.tar=", "shards/a=", "shards/a/1", "empty="];
        let any = IndexOptions::default;
        assert_eq!(index(&paths, any()).await.unwrap(), ["empty", "shards/a.tar", "shards/a/1"]);
        // Also if the objects below them are excluded.
        let without = any().excluding("shards/**");
        assert_eq!(index(&paths, without).await.unwrap(), ["empty"]);
        let error = index(&["a=", "a/b.jpg"], any().excluding("**/*.jpg")).await.unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::Empty);
    }

    #[tokio::test]
    async fn unlistable_file_is_an_error_unless_excluded() {
        let paths = ["a", "!private", "b", "!other/link"];
        let error = index(&paths, IndexOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::Listing);
        let text = error.to_string();
        assert!(text.contains("listed: private: ") && text.ends_with("(and 1 more)"), "{text}");
        assert!(std::error::Error::source(&error).is_some());
        let options = IndexOptions::default().excluding("private/**").excluding("**/link");
        assert_eq!(index(&paths, options).await.unwrap(), ["a", "b"]);
        // A pattern for files does not exclude a directory that may contain included files.
        assert!(index(&paths, IndexOptions::default().excluding("private/*.txt")).await.is_err());
    }
}
