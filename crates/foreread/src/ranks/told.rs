//! What rank 0 tells all: catalogs, where the run stands, and figures that a plan must have alike
//! on all ranks.
//!
//! Of catalogs it tells where they are. A rank opens a file itself where it finds the same catalog
//! there. Otherwise it gets the bytes, which are megabytes: they travel once per node, and the
//! catalog shares them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_dataset::Catalog;
use foreread_peer::meet::SharedCatalog;
use foreread_types::DatasetIdentity;
use serde::{Deserialize, Serialize};

use crate::calibration::Calibration;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::origin::OpenDataset;
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

    /// The catalog that came as these bytes. It shares their memory.
    pub(super) fn received(&self, bytes: Option<Bytes>) -> Result<Catalog> {
        let bytes = bytes.ok_or_else(|| unreadable(&"it has no catalog"))?;
        let catalog = Catalog::from_bytes(bytes, "rank 0's catalog")?;
        // Ports are used again: what listens there may be a rank of another run by now.
        if self.is(&catalog) { Ok(catalog) } else { Err(unreadable(&"it is another catalog")) }
    }

    /// The catalog that is `at_hand`, or that of rank 0's file, where this process finds the same
    /// there. Blocks.
    fn open(&self, at_hand: Option<&Catalog>) -> Option<Catalog> {
        if let Some(catalog) = at_hand.filter(|catalog| self.is(catalog)) {
            return Some(catalog.clone());
        }
        let file = self.file.as_ref()?;
        match Catalog::open(file) {
            Ok(catalog) if self.is(&catalog) => Some(catalog),
            Ok(_) => {
                tracing::warn!(file = %file.display(), "this is another catalog than rank 0's, whose is \
                    used");
                None
            }
            Err(error) => {
                tracing::debug!(%error, "rank 0's catalog is not opened here; its bytes are requested");
                None
            }
        }
    }
}

/// What rank 0 tells all.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RunDescription {
    pub(super) catalogs: Vec<DescribedCatalog>,
    /// What the bytes of each dataset are known by, as text.
    pub(super) identities: Vec<String>,
    pub(super) state: Option<State>,
    pub(super) calibration: Option<Calibration>,
    pub(super) origin_limit: Option<u64>,
    pub(super) origin_parallelism: Option<usize>,
    pub(super) compute: Duration,
}

impl RunDescription {
    /// What rank 0 tells of `opened`, beside what `config` says.
    pub(super) fn new(opened: &[OpenDataset], state: Option<State>, config: &Config) -> Self {
        Self {
            catalogs: opened.iter().map(DescribedCatalog::new).collect(),
            identities: opened.iter().map(|dataset| dataset.identity.to_string()).collect(),
            state,
            calibration: config.calibration.as_deref().cloned(),
            origin_limit: config.origin_limit,
            origin_parallelism: config.origin_parallelism,
            compute: config.compute,
        }
    }

    pub(super) fn encode(&self) -> Result<Bytes> {
        Ok(serde_json::to_vec(self).map_err(|error| unreadable(&error))?.into())
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|error| unreadable(&error))
    }

    /// The bytes of the `catalogs` for ranks that need them. All need one that is in no file,
    /// unless it is the first and `at_hand`: given to rank 0 by its program, and so probably to the
    /// others by theirs.
    pub(super) fn bulks<'a>(
        &self,
        catalogs: impl Iterator<Item = &'a Catalog>,
        at_hand: bool,
    ) -> Result<Vec<SharedCatalog>> {
        let bulk =
            |(number, (told, catalog)): (usize, (&DescribedCatalog, &Catalog))| -> Result<SharedCatalog> {
                if told.file.is_some() || number == 0 && at_hand {
                    return Ok(on_request(catalog));
                }
                Ok(SharedCatalog::needed(catalog.to_bytes()?))
            };
        self.catalogs.iter().zip(catalogs).enumerate().map(bulk).collect()
    }

    /// The catalogs that this process finds in their files, or that are `at_hand`. Blocks.
    pub(super) fn open_files(
        catalogs: &[DescribedCatalog],
        at_hand: Option<&Catalog>,
    ) -> Vec<Option<Catalog>> {
        catalogs.iter().map(|catalog| catalog.open(at_hand)).collect()
    }

    /// The identities of the datasets, as many as there are catalogs.
    pub(super) fn identities(&self) -> Result<Vec<DatasetIdentity>> {
        if self.identities.len() != self.catalogs.len() {
            return Err(unreadable(&"its datasets have no identities"));
        }
        self.identities.iter().map(|text| text.parse().map_err(|error| unreadable(&error))).collect()
    }

    /// The settings with rank 0's figures instead of this rank's: a plan of all has one set of
    /// them.
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
    SharedCatalog::on_request(catalog.encoded_len(), move || catalog.to_bytes().map_err(io::Error::other))
}

pub(super) fn unreadable(why: &dyn std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Ranks,
        format!("what rank 0 sent cannot be read: {why}; do all ranks run the same release?"),
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

    fn told(catalog: &Catalog, file: Option<PathBuf>) -> DescribedCatalog {
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
            RunDescription::open_files(&[told(catalog, Some(path.clone()))], None)[0].is_some()
        };
        assert!(!opened(&own), "there is none");
        own.save(&path).unwrap();
        assert!(opened(&own));
        assert!(!opened(&catalog("s3://b/x", &["a", "c"])), "of other samples");
        assert!(!opened(&catalog("s3://b/y", &["a", "b"])), "of another place");
        // One that rank 0 has listed has no file.
        let found = RunDescription::open_files(&[told(&own, Some(path)), told(&own, None)], None);
        assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    // semantics: RANK-25
    fn catalog_file_next_to_a_listed_catalog_is_not_needed_by_all() {
        let (listed, saved) = (catalog("s3://b/x", &["a"]), catalog("s3://b/y", &["b"]));
        let mut head = RunDescription::new(&[], None, &Config::default());
        head.catalogs = vec![told(&listed, None), told(&saved, Some("c.arrow".into()))];
        let pushed = |at_hand| {
            let bulks = head.bulks([&listed, &saved].into_iter(), at_hand).unwrap();
            bulks.iter().map(SharedCatalog::is_pushed).collect::<Vec<_>>()
        };
        assert_eq!(pushed(false), [true, false]);
        assert_eq!(pushed(true), [false, false]);
    }

    #[test]
    // semantics: RANK-25
    fn catalog_that_the_program_has_given_is_not_requested() {
        let (own, other) = (catalog("s3://b/x", &["a", "b"]), catalog("s3://b/x", &["a", "c"]));
        let opened =
            |at_hand: &Catalog| RunDescription::open_files(&[told(&own, None)], Some(at_hand))[0].is_some();
        assert!(opened(&own) && !opened(&other));
    }

    #[test]
    // semantics: RANK-25
    fn received_catalogs_share_the_memory_in_which_they_came() {
        let own = catalog("s3://b/y", &["b", "c"]);
        let bytes = own.to_bytes().unwrap();
        let told = told(&own, None);
        let other = told.received(Some(bytes.clone())).unwrap();
        assert_eq!(other.fingerprint(), own.fingerprint());
        assert_eq!(other.to_bytes().unwrap().as_ptr(), bytes.as_ptr());
        assert!(told.received(Some(bytes.slice(..bytes.len() - 1))).is_err(), "it is cut short");
        assert!(told.received(None).is_err());
    }

    #[test]
    // semantics: RANK-25
    fn catalog_of_another_run_is_not_taken() {
        let (own, other) = (catalog("s3://b/x", &["a", "b"]), catalog("s3://b/x", &["a", "c"]));
        let error = told(&own, None).received(Some(other.to_bytes().unwrap())).unwrap_err().to_string();
        assert!(error.contains("it is another catalog"), "{error}");
    }
}
