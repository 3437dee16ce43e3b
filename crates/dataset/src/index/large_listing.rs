//! The catalog of more files than are kept in memory.
//!
//! Their listing is in sorted runs. One pass over them finds the fingerprint, the labels and the
//! columns. Another one writes the rows to a file without a name. The catalog reads that file. So
//! an index takes memory for one run, for the classes and for the numbers that every opened catalog
//! has in memory. The result is the same as that of a short listing. The price: the runs are merged
//! two or three times, and servers of Lustre are not in the catalog.

use std::io::{self, BufWriter};
use std::iter::Peekable;

use arrow_schema::ArrowError;
use foreread_tier::{Object, OriginTier};

use crate::build::files::{CatalogSample, SampleFacts, encode_pieces};
use crate::build::header::CatalogHeader;
use crate::build::{no_randomness, refused};
use crate::catalog_file::listing::{ListedVersions, has_time};
use crate::catalog_file::writer::ROWS;
use crate::index::classes;
use crate::list::choose_format;
use crate::list::found_objects::{LargeListing, unsorted};
use crate::names::SplitName;
use crate::{Catalog, DatasetError, DatasetErrorKind, Format, IndexOptions, IndexProgress};

/// The buffer of the catalog that is written, in bytes.
const BUFFER: usize = 1 << 20;

/// The catalog of the files in a listing.
pub(crate) async fn index(
    origin: &dyn OriginTier,
    base_url: &str,
    options: &IndexOptions,
    mut listing: LargeListing,
    progress: &mut impl FnMut(IndexProgress),
) -> Result<Catalog, DatasetError> {
    choose_format::check(base_url, &options.format_options, Format::Files)?;
    let has_labels = options.classes.as_ref().is_none_or(|classes| !classes.is_empty());
    tracing::info!("{base_url}: {} objects are sorted on disk", listing.runs.len());
    let (facts, versions) = listing.look(base_url, has_labels, progress)?;
    let common = versions.common_time();
    let with_common = match common {
        Some(time) => listing.count(|object| has_time(object, time))?,
        None => 0,
    };
    let listed = versions.listing(with_common).map_err(|error| no_randomness(base_url, error))?;
    let classes = classes::of_files(origin, base_url, options, &facts.labels).await?;
    let head = CatalogHeader { base_url, notes: options.notes(), listing: listed, extra: &[] };
    listing.written(head, facts, classes.as_deref(), has_labels)
}

impl LargeListing {
    fn failed(&self, error: io::Error) -> DatasetError {
        unsorted(&self.directory, error)
    }

    /// All objects that are no markers of directories.
    fn objects(&self) -> impl Iterator<Item = io::Result<Object>> {
        self.runs.merged().filter(|object| !object.as_ref().is_ok_and(|object| self.markers.contain(object)))
    }

    fn count(&self, is_counted: impl Fn(&Object) -> bool) -> Result<u64, DatasetError> {
        let count = |count, object: io::Result<Object>| Ok(count + u64::from(is_counted(&object?)));
        self.objects().try_fold(0, count).map_err(|error| self.failed(error))
    }

    /// Looks at all samples, once they are known.
    fn look(
        &mut self,
        base_url: &str,
        has_labels: bool,
        progress: &mut impl FnMut(IndexProgress),
    ) -> Result<(SampleFacts, ListedVersions), DatasetError> {
        if self.markers.are_possible() {
            self.markers.begin_again();
            for object in self.runs.merged() {
                self.markers.look_again(&object.map_err(|error| unsorted(&self.directory, error))?);
            }
        }
        let (mut facts, mut versions) = (SampleFacts::new(), ListedVersions::default());
        let (mut samples, mut total, mut last) = (0, 0_u64, None);
        for object in self.objects() {
            let sample = sample(object.map_err(|error| self.failed(error))?, has_labels);
            let object = &sample.object;
            if let Some(error) = refused(base_url, object) {
                return Err(error);
            }
            let invalid = |why| Err(crate::build::invalid(base_url, &object.path, why));
            let Some(sum) = total.checked_add(object.size) else { return invalid("it is impossibly long") };
            total = sum;
            if last.as_ref() == Some(&object.path) {
                return invalid("it was listed twice");
            }
            last = Some(object.path.clone());
            versions.add(object);
            facts.add(&sample);
            samples += 1;
        }
        if samples == 0 {
            let message = format!("{base_url}: there are no samples");
            return Err(DatasetError::new(DatasetErrorKind::Empty, message));
        }
        (self.progress.objects, self.progress.samples) = (samples, samples);
        progress(self.progress);
        Ok((facts, versions))
    }

    /// Writes the catalog, and opens it.
    fn written(
        &self,
        head: CatalogHeader<'_>,
        facts: SampleFacts,
        classes: Option<&[String]>,
        has_labels: bool,
    ) -> Result<Catalog, DatasetError> {
        let base_url = head.base_url;
        let file = tempfile::tempfile_in(&self.directory).map_err(|error| self.failed(error))?;
        let pieces = Pieces { objects: self.objects().peekable(), has_labels };
        let out = BufWriter::with_capacity(BUFFER, &file);
        let written = encode_pieces(head, Format::Files.name(), facts, pieces, classes, out);
        let written = written.and_then(|mut writer| {
            writer.finish()?;
            writer.into_inner()?.into_inner().map_err(|error| error.into_error())?;
            Ok(())
        });
        written.map_err(|error: RowError| match error {
            RowError::Reading(error) => self.failed(error),
            RowError::Arrow(error) => {
                let message = format!("{base_url}: the catalog cannot be made: {error}");
                DatasetError::new(DatasetErrorKind::Io, message).with_source(error)
            }
        })?;
        Catalog::of_written(file, format!("the catalog of {base_url}"))
    }
}

fn sample(object: Object, has_labels: bool) -> CatalogSample {
    CatalogSample { cut: SplitName::of(&object.path), object, server: None, has_labels }
}

/// The samples in pieces for a catalog's batches.
struct Pieces<I: Iterator> {
    objects: Peekable<I>,
    has_labels: bool,
}

impl<I: Iterator<Item = io::Result<Object>>> Iterator for Pieces<I> {
    type Item = Result<Vec<CatalogSample>, RowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.objects.peek()?;
        let has_labels = self.has_labels;
        let some = self.objects.by_ref().take(ROWS).map(|object| Ok(sample(object?, has_labels)));
        Some(some.collect::<io::Result<_>>().map_err(RowError::Reading))
    }
}

/// Why rows are not written.
enum RowError {
    Reading(io::Error),
    Arrow(ArrowError),
}

impl From<ArrowError> for RowError {
    fn from(error: ArrowError) -> Self {
        Self::Arrow(error)
    }
}

impl From<io::Error> for RowError {
    fn from(error: io::Error) -> Self {
        Self::Reading(error)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foreread_tier::{
        ErrorKind, FileChange, LayoutsFuture, ReadFuture, ReadRequest, Tier, TierError, TierProfile, Version,
    };
    use futures::StreamExt;
    use futures::future::BoxFuture;
    use futures::stream::BoxStream;
    use proptest::prelude::*;

    use super::*;
    use crate::IndexOptions;

    /// An origin that only lists.
    #[derive(Debug)]
    struct Listed(Vec<Object>, TierProfile);

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
            futures::stream::iter(self.0.clone().into_iter().map(Ok)).boxed()
        }
        fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
            Box::pin(std::future::ready(Err(TierError::new(ErrorKind::NotFound, "listed").with_object(path))))
        }
        fn layouts(&self, _: Vec<Arc<str>>) -> Option<LayoutsFuture> {
            None
        }
    }

    /// The catalog of objects of which so many are in memory, and the progress at the end.
    fn indexed(
        objects: &[Object],
        options: &IndexOptions,
        in_memory: Option<usize>,
    ) -> Result<(Catalog, IndexProgress), String> {
        let origin = Listed(objects.to_vec(), TierProfile::new(1));
        let mut options = options.clone();
        options.objects_in_memory = in_memory;
        let mut last = IndexProgress::default();
        let index = Catalog::index(&origin, "/data", &options, |progress| last = progress);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let catalog = runtime.block_on(index).map_err(|error| error.to_string())?;
        Ok((catalog, last))
    }

    fn versions() -> impl Strategy<Value = Vec<Option<Version>>> {
        let time = prop_oneof![3 => 2_000_000_000_000_000_000..2_000_000_000_000_000_050_i64, 1 => Just(5)];
        let written =
            (time.clone(), prop_oneof![Just(0), Just(1), 2..9_u64]).prop_map(|(modified, number)| {
                let changed = match number {
                    0 => FileChange::Elsewhere,
                    1 => FileChange::Claimed(number),
                    _ => FileChange::Kept(number),
                };
                Some(Version::Written { modified, changed, location: 3 })
            });
        let of = |version: BoxedStrategy<Option<Version>>| prop::collection::vec(version, 80);
        prop_oneof![
            of("[a-f]{1,3}".prop_map(|tag| Some(Version::ETag(tag.into()))).boxed()),
            of(time.prop_map(|time| Some(Version::Modified(time))).boxed()),
            of(written.boxed()),
        ]
    }

    proptest! {
        #[test]
        // semantics: SAMPLE-34
        fn catalog_is_that_of_a_listing_in_memory(
            paths in prop::collection::vec("([a-c]{1,2}/){0,2}[a-c]{1,2}(\\.jpg|_\\$folder\\$)?", 1..80),
            sizes in prop::collection::vec(prop_oneof![Just(0), 1..9_u64, Just(9 << 20)], 80),
            versions in versions(),
            in_memory in 1_usize..30,
            chosen in 0..4_u8,
        ) {
            let mut options = IndexOptions::default();
            match chosen {
                1 => options.classes = Some(Vec::new()),
                2 => options = options.excluding("a/**"),
                3 => options.format = Some(Format::Files),
                _ => {}
            }
            let objects: Vec<Object> = paths.iter().zip(sizes).zip(versions)
                .map(|((path, size), version)| Object { path: path.as_str().into(), size, version })
                .collect();
            let usual = indexed(&objects, &options, None);
            let (usual, large) = match (usual, indexed(&objects, &options, Some(in_memory))) {
                (Ok(usual), Ok(large)) => (usual, large),
                (usual, large) => {
                    let (usual, large) = (usual.map(|_| ()), large.map(|_| ()));
                    // Of several duplicates, one or another is named.
                    prop_assert!(usual.is_err() && large.is_err(), "{usual:?} {large:?}");
                    return Ok(());
                }
            };
            prop_assert_eq!(usual.0.fingerprint(), large.0.fingerprint());
            prop_assert_eq!((usual.1.objects, usual.0.len()), (large.1.objects, large.0.len()));
            if usual.0.keeps_identity() {
                let directory = tempfile::tempdir().unwrap();
                let saved = |name: &str, catalog: &Catalog| {
                    catalog.save(directory.path().join(name)).unwrap();
                    std::fs::read(directory.path().join(name)).unwrap()
                };
                prop_assert_eq!(saved("usual", &usual.0), saved("large", &large.0));
                prop_assert_eq!(usual.0.to_bytes().unwrap(), large.0.to_bytes().unwrap());
            } else {
                prop_assert!(!large.0.keeps_identity());
            }
        }
    }

    #[test]
    fn directory_without_room_is_named() {
        let object = |number: u64| Object { path: format!("{number}").into(), size: 1, version: None };
        let partial = Some("/nowhere/at/all/catalog.partial".into());
        let options = IndexOptions { partial, ..IndexOptions::default() };
        let objects: Vec<Object> = (0..9).map(object).collect();
        let error = indexed(&objects, &options, Some(4)).unwrap_err();
        assert!(error.contains("/nowhere/at/all: ") && error.contains("TMPDIR"), "{error}");
    }
}
