//! What rank 0 tells all: catalogs, where the run stands, and figures that a plan must have alike on all ranks.
//!
//! Of catalogs it tells where they are. A rank opens their files itself where it finds the same there. Otherwise it gets their
//! bytes, which are megabytes: they travel once per node, and catalogs share them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_dataset::Catalog;
use foreread_peer::meet::Bulk;
use foreread_types::DatasetIdentity;
use serde::{Deserialize, Serialize};

use crate::calibration::Calibration;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::origin::Opened;
use crate::state::State;

/// A catalog of rank 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ToldCatalog {
    base_url: String,
    fingerprint: String,
    /// How many bytes it has.
    length: u64,
    /// The file that rank 0 has opened.
    file: Option<PathBuf>,
}

impl ToldCatalog {
    fn new(opened: &Opened) -> Self {
        let Opened { catalog, file, .. } = opened;
        let (base_url, fingerprint) = (catalog.base_url().to_owned(), catalog.fingerprint().to_string());
        Self { base_url, fingerprint, length: catalog.encoded_len(), file: file.clone() }
    }

    /// The catalog that is `at_hand`, or that of rank 0's file, where this process finds the same there. Blocks.
    fn open(&self, at_hand: Option<&Catalog>) -> Option<Catalog> {
        let same = |catalog: &Catalog| {
            catalog.base_url() == self.base_url && catalog.fingerprint().to_string() == self.fingerprint
        };
        if let Some(catalog) = at_hand.filter(|catalog| same(catalog)) {
            return Some(catalog.clone());
        }
        let file = self.file.as_ref()?;
        match Catalog::open(file) {
            Ok(catalog) if same(&catalog) => Some(catalog),
            Ok(_) => {
                tracing::warn!(file = %file.display(), "this is another catalog than rank 0's, whose is used");
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
pub(super) struct Told {
    pub(super) catalogs: Vec<ToldCatalog>,
    /// What the bytes of each dataset are known by, as text.
    pub(super) identities: Vec<String>,
    pub(super) state: Option<State>,
    pub(super) calibration: Option<Calibration>,
    pub(super) origin_limit: Option<u64>,
    pub(super) origin_parallelism: Option<usize>,
    pub(super) compute: Duration,
}

impl Told {
    /// What rank 0 tells of `opened`, beside what `config` says.
    pub(super) fn new(opened: &[Opened], state: Option<State>, config: &Config) -> Self {
        Self {
            catalogs: opened.iter().map(ToldCatalog::new).collect(),
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

    /// The catalogs' bytes for ranks that need them: all, unless each is in a file, or the first is `at_hand`: given to rank 0
    /// by its program, and so probably to the others by theirs.
    pub(super) fn bulk(&self, opened: &[Opened], at_hand: bool) -> Result<Bulk> {
        let catalogs: Vec<Catalog> = opened.iter().map(|dataset| dataset.catalog.clone()).collect();
        if self.catalogs.iter().skip(usize::from(at_hand)).all(|catalog| catalog.file.is_some()) {
            let length = self.catalogs.iter().map(|catalog| catalog.length).sum();
            let read = move || catalogs.iter().map(Catalog::to_bytes).collect::<Result<_, _>>();
            return Ok(Bulk::on_request(length, move || read().map_err(io::Error::other)));
        }
        Ok(Bulk::needed(catalogs.iter().map(Catalog::to_bytes).collect::<Result<_, _>>()?))
    }

    /// The catalogs from their files, or the one that is `at_hand`, where all of them are the same here. Blocks.
    pub(super) fn open_files(catalogs: &[ToldCatalog], at_hand: Option<&Catalog>) -> Option<Vec<Catalog>> {
        catalogs.iter().map(|catalog| catalog.open(at_hand)).collect()
    }

    /// The catalogs that `bulk` holds. They share its memory.
    pub(super) fn split(&self, mut bulk: Bytes) -> Result<Vec<Catalog>> {
        let split = |catalog: &ToldCatalog| {
            let length = usize::try_from(catalog.length).unwrap_or(usize::MAX);
            if length > bulk.len() {
                return Err(unreadable(&"it is cut short"));
            }
            Ok(Catalog::from_bytes(bulk.split_to(length), "rank 0's catalog")?)
        };
        self.catalogs.iter().map(split).collect()
    }

    /// The identities of the datasets, as many as there are catalogs.
    pub(super) fn identities(&self) -> Result<Vec<DatasetIdentity>> {
        if self.identities.len() != self.catalogs.len() {
            return Err(unreadable(&"its datasets have no identities"));
        }
        self.identities.iter().map(|text| text.parse().map_err(|error| unreadable(&error))).collect()
    }

    /// The settings with rank 0's figures instead of this rank's: a plan of all has one set of them.
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

    fn told(catalog: &Catalog, file: Option<PathBuf>) -> ToldCatalog {
        let (base_url, fingerprint) = (catalog.base_url().to_owned(), catalog.fingerprint().to_string());
        ToldCatalog { base_url, fingerprint, length: catalog.encoded_len(), file }
    }

    #[test]
    fn catalog_file_is_opened_only_where_it_is_the_same() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("c.arrow");
        let own = catalog("s3://b/x", &["a", "b"]);
        let opened =
            |catalog: &Catalog| Told::open_files(&[told(catalog, Some(path.clone()))], None).is_some();
        assert!(!opened(&own), "there is none");
        own.save(&path).unwrap();
        assert!(opened(&own));
        assert!(!opened(&catalog("s3://b/x", &["a", "c"])), "of other samples");
        assert!(!opened(&catalog("s3://b/y", &["a", "b"])), "of another place");
        // One that rank 0 has listed has no file.
        assert!(Told::open_files(&[told(&own, Some(path)), told(&own, None)], None).is_none());
    }

    #[test]
    fn catalog_that_the_program_has_given_is_not_requested() {
        let (own, other) = (catalog("s3://b/x", &["a", "b"]), catalog("s3://b/x", &["a", "c"]));
        let opened = |at_hand: &Catalog| Told::open_files(&[told(&own, None)], Some(at_hand)).is_some();
        assert!(opened(&own) && !opened(&other));
    }

    #[test]
    fn received_catalogs_share_the_memory_in_which_they_came() {
        let (one, other) = (catalog("s3://b/x", &["a"]), catalog("s3://b/y", &["b", "c"]));
        let all: Bytes = [one.to_bytes().unwrap(), other.to_bytes().unwrap()].concat().into();
        let config = Config::default();
        let mut head = Told::new(&[], None, &config);
        head.catalogs = vec![told(&one, None), told(&other, None)];
        let received = head.split(all.clone()).unwrap();
        assert_eq!(received[1].fingerprint(), other.fingerprint());
        let at = received[1].to_bytes().unwrap().as_ptr();
        assert_eq!(at, all[one.encoded_len() as usize..].as_ptr());
        assert!(head.split(all.slice(..all.len() - 1)).is_err(), "it is cut short");
    }
}
