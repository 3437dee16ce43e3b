//! What rank 0 tells all: catalogs, where the run stands, and figures that a plan must have alike on all ranks.
//!
//! A line of JSON, then the catalogs as they lie in files: they are megabytes, and are not to be held twice.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_dataset::Catalog;
use foreread_types::DatasetIdentity;
use serde::{Deserialize, Serialize};

use crate::calibration::Calibration;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::state::State;

/// What rank 0 tells all.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Told {
    /// How long each catalog is that follows.
    pub(super) catalogs: Vec<u64>,
    /// What the bytes of each dataset are known by, as text.
    pub(super) identities: Vec<String>,
    pub(super) state: Option<State>,
    pub(super) calibration: Option<Calibration>,
    pub(super) origin_limit: Option<u64>,
    pub(super) origin_parallelism: Option<usize>,
    pub(super) compute: Duration,
}

impl Told {
    pub(super) fn encode(&self, catalogs: &[Cow<'_, [u8]>]) -> Result<Bytes> {
        let mut bytes = serde_json::to_vec(self).map_err(|error| unreadable(&error))?;
        bytes.push(b'\n');
        catalogs.iter().for_each(|catalog| bytes.extend_from_slice(catalog));
        Ok(bytes.into())
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<(Self, Vec<Catalog>)> {
        let end = bytes.iter().position(|&byte| byte == b'\n').ok_or_else(|| unreadable(&"it has no end"))?;
        let (head, mut rest) = (&bytes[..end], &bytes[end + 1..]);
        let told: Self = serde_json::from_slice(head).map_err(|error| unreadable(&error))?;
        let mut catalogs = Vec::new();
        for &length in &told.catalogs {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let (catalog, later) =
                rest.split_at_checked(length).ok_or_else(|| unreadable(&"it is cut short"))?;
            catalogs.push(Catalog::from_bytes(catalog.to_vec(), "rank 0's catalog")?);
            rest = later;
        }
        Ok((told, catalogs))
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
