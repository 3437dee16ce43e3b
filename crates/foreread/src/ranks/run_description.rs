//! The description of a run that rank 0 sends to all ranks: catalogs, position, and figures that a
//! plan needs equal on all ranks.
//!
//! It contains the locations of catalogs. A rank opens the file itself if it finds the same catalog
//! there. Otherwise it receives the catalog's bytes, which are megabytes. They travel once per
//! node, and the catalog shares their memory.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_dataset::Catalog;
use foreread_open::calibration::Calibration;
use foreread_open::error::{Error, ErrorKind, Result};
use foreread_open::origin::OpenDataset;
use foreread_peer::meet::SharedCatalog;
use foreread_types::DatasetIdentity;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::server_speeds;
use crate::state::State;

/// A catalog of rank 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct DescribedCatalog {
    base_url: String,
    fingerprint: String,
    /// The file that rank 0 has opened.
    file: Option<PathBuf>,
}

impl DescribedCatalog {
    fn new(opened: &OpenDataset) -> Self {
        let OpenDataset { catalog, file, .. } = opened;
        let (base_url, fingerprint) = (catalog.base_url().to_owned(), catalog.fingerprint().to_string());
        Self { base_url, fingerprint, file: file.clone() }
    }

    fn is(&self, catalog: &Catalog) -> bool {
        catalog.base_url() == self.base_url && catalog.fingerprint().to_string() == self.fingerprint
    }

    /// The catalog from received bytes. It shares their memory.
    pub(super) fn received(&self, bytes: Option<Bytes>) -> Result<Catalog> {
        let bytes = bytes.ok_or_else(|| unreadable(&"the catalog is missing"))?;
        let catalog = Catalog::from_bytes(bytes, "rank 0's catalog")?;
        // Ports are reused: the listener may be a rank of another run by now.
        if self.is(&catalog) { Ok(catalog) } else { Err(unreadable(&"the catalog differs")) }
    }

    /// The catalog `at_hand`, or the one in rank 0's file, if it is the same on this node. Blocks.
    fn open(&self, at_hand: Option<&Catalog>) -> Option<Catalog> {
        if let Some(catalog) = at_hand.filter(|catalog| self.is(catalog)) {
            return Some(catalog.clone());
        }
        let file = self.file.as_ref()?;
        match Catalog::open(file) {
            Ok(catalog) if self.is(&catalog) => Some(catalog),
            Ok(_) => {
                tracing::warn!(file = %file.display(), "rank 0's catalog is used in place of this file");
                None
            }
            Err(error) => {
                tracing::debug!(%error, "cannot open rank 0's catalog file; its bytes are requested");
                None
            }
        }
    }
}

/// The description that rank 0 sends to all ranks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RunDescription {
    pub(super) catalogs: Vec<DescribedCatalog>,
    /// The identity of each dataset's bytes, as text.
    pub(super) identities: Vec<String>,
    pub(super) state: Option<State>,
    pub(super) calibration: Option<Calibration>,
    pub(super) origin_limit: Option<u64>,
    pub(super) origin_parallelism: Option<usize>,
    pub(super) compute: Duration,
    /// Whether rank 0's kernel caches the data.
    pub(super) kernel_cached: bool,
}

impl RunDescription {
    /// The description of `opened`, with the figures of `config`.
    pub(super) fn new(opened: &[OpenDataset], state: Option<State>, config: &Config) -> Self {
        Self {
            catalogs: opened.iter().map(DescribedCatalog::new).collect(),
            identities: opened.iter().map(|dataset| dataset.identity.to_string()).collect(),
            state,
            // One clock decides which figures are recent enough.
            calibration: server_speeds::recent(config.clone()).calibration.as_deref().cloned(),
            origin_limit: config.origin_limit,
            origin_parallelism: config.origin_parallelism,
            compute: config.compute,
            kernel_cached: opened.iter().all(|dataset| dataset.origin.profile().kernel_cached),
        }
    }

    pub(super) fn encode(&self) -> Result<Bytes> {
        Ok(serde_json::to_vec(self).map_err(|error| unreadable(&error))?.into())
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|error| unreadable(&error))
    }

    /// The bytes of the `catalogs` for ranks that need them. All ranks need a catalog without a
    /// file. An exception is the first one if it is `at_hand`: rank 0's program provided it, so the
    /// other programs probably do, too.
    pub(super) fn bulks<'a>(
        &self,
        catalogs: impl Iterator<Item = &'a Catalog>,
        at_hand: bool,
    ) -> Result<Vec<SharedCatalog>> {
        let bulk =
            |(number, (entry, catalog)): (usize, (&DescribedCatalog, &Catalog))| -> Result<SharedCatalog> {
                if entry.file.is_some() || number == 0 && at_hand {
                    return Ok(on_request(catalog));
                }
                Ok(SharedCatalog::needed(catalog.to_bytes()?))
            };
        self.catalogs.iter().zip(catalogs).enumerate().map(bulk).collect()
    }

    /// The catalogs that this process finds in their files or has `at_hand`. Blocks.
    pub(super) fn open_files(
        catalogs: &[DescribedCatalog],
        at_hand: Option<&Catalog>,
    ) -> Vec<Option<Catalog>> {
        catalogs.iter().map(|catalog| catalog.open(at_hand)).collect()
    }

    /// The identities of the datasets, one per catalog.
    pub(super) fn identities(&self) -> Result<Vec<DatasetIdentity>> {
        if self.identities.len() != self.catalogs.len() {
            return Err(unreadable(&"the identities of datasets are missing"));
        }
        self.identities.iter().map(|text| text.parse().map_err(|error| unreadable(&error))).collect()
    }

    /// The settings with rank 0's figures instead of this rank's: a common plan has one set of
    /// figures.
    pub(super) fn figures(&self, config: &Config) -> Config {
        Config {
            calibration: self.calibration.clone().map(Arc::new),
            origin_limit: self.origin_limit,
            origin_parallelism: self.origin_parallelism,
            compute: self.compute,
            ..config.clone()
        }
    }
}

/// The bytes of a catalog for ranks that request them.
pub(super) fn on_request(catalog: &Catalog) -> SharedCatalog {
    let catalog = catalog.clone();
    if catalog.numbers().is_some() {
        // The length of a part's bytes is known once they are made.
        if let Ok(bytes) = catalog.to_bytes() {
            return SharedCatalog::on_request(bytes.len() as u64, move || Ok(bytes.clone()));
        }
    }
    SharedCatalog::on_request(catalog.encoded_len(), move || catalog.to_bytes().map_err(io::Error::other))
}

pub(super) fn unreadable(why: &dyn std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Ranks,
        format!("rank 0's message is invalid: {why}; check that all ranks run the same release"),
    )
}

#[cfg(test)]
mod tests {
    use foreread_tier::Object;

    use super::*;

    fn catalog(url: &str, names: &[&str]) -> Catalog {
        let objects = names
            .iter()
            .map(|name| Object { path: (*name).into(), size: 3, version: None })
            .collect::<Vec<_>>();
        Catalog::from_objects(url, objects).unwrap()
    }

    fn described(catalog: &Catalog, file: Option<PathBuf>) -> DescribedCatalog {
        let (base_url, fingerprint) = (catalog.base_url().to_owned(), catalog.fingerprint().to_string());
        DescribedCatalog { base_url, fingerprint, file }
    }

    #[test]
    // semantics: RANK-25
    fn catalog_file_is_opened_only_where_it_is_the_same() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("c.arrow");
        let own = catalog("s3://b/x", &["a", "b"]);
        let opened = |catalog: &Catalog| {
            RunDescription::open_files(&[described(catalog, Some(path.clone()))], None)[0].is_some()
        };
        assert!(!opened(&own), "no file");
        own.save(&path).unwrap();
        assert!(opened(&own));
        assert!(!opened(&catalog("s3://b/x", &["a", "c"])), "other samples");
        assert!(!opened(&catalog("s3://b/y", &["a", "b"])), "another location");
        // A catalog that rank 0 has just listed has no file.
        let found = RunDescription::open_files(&[described(&own, Some(path)), described(&own, None)], None);
        assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    // semantics: RANK-25
    fn catalog_file_next_to_a_listed_catalog_is_not_needed_by_all() {
        let (listed, saved) = (catalog("s3://b/x", &["a"]), catalog("s3://b/y", &["b"]));
        let mut head = RunDescription::new(&[], None, &Config::default());
        head.catalogs = vec![described(&listed, None), described(&saved, Some("c.arrow".into()))];
        let pushed = |at_hand| {
            let bulks = head.bulks([&listed, &saved].into_iter(), at_hand).unwrap();
            bulks.iter().map(SharedCatalog::is_pushed).collect::<Vec<_>>()
        };
        assert_eq!(pushed(false), [true, false]);
        assert_eq!(pushed(true), [false, false]);
    }

    #[test]
    // semantics: RANK-25
    fn catalog_from_the_program_is_not_requested() {
        let (own, other) = (catalog("s3://b/x", &["a", "b"]), catalog("s3://b/x", &["a", "c"]));
        let opened = |at_hand: &Catalog| {
            RunDescription::open_files(&[described(&own, None)], Some(at_hand))[0].is_some()
        };
        assert!(opened(&own) && !opened(&other));
    }

    #[test]
    // semantics: RANK-25
    fn received_catalogs_share_the_memory_of_their_bytes() {
        let own = catalog("s3://b/y", &["b", "c"]);
        let bytes = own.to_bytes().unwrap();
        let described = described(&own, None);
        let other = described.received(Some(bytes.clone())).unwrap();
        assert_eq!(other.fingerprint(), own.fingerprint());
        assert_eq!(other.to_bytes().unwrap().as_ptr(), bytes.as_ptr());
        assert!(described.received(Some(bytes.slice(..bytes.len() - 1))).is_err(), "truncated");
        assert!(described.received(None).is_err());
    }

    #[test]
    // semantics: RANK-25
    fn catalog_of_another_run_is_refused() {
        let (own, other) = (catalog("s3://b/x", &["a", "b"]), catalog("s3://b/x", &["a", "c"]));
        let error = described(&own, None).received(Some(other.to_bytes().unwrap())).unwrap_err().to_string();
        assert!(error.contains("the catalog differs"), "{error}");
    }
}
