//! The growth of a catalog in its file: the metadata `foreread.growth`.

use std::sync::Arc;

use foreread_types::Fingerprint;
use serde::{Deserialize, Serialize};

use crate::catalog::part::{ChosenSamples, parse_numbers};
use crate::catalog_file::CatalogFile;
use crate::catalog_file::fault::{CatalogFault, corrupt};
use crate::catalog_file::keys::GROWTH_KEY;

/// The growth of a catalog, in its metadata.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct GrowthRecord {
    /// The number of samples before each addition.
    pub(super) starts: Vec<u64>,
    /// The numbers of samples that are gone, as text.
    pub(super) gone: String,
    /// Where samples had their numbers first, while versions prove that their bytes are the same.
    pub(super) pieces: Vec<GrowthPiece>,
    /// The identity of the last listing.
    pub(super) listing: String,
}

/// The samples that came with one listing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct GrowthPiece {
    /// The first number.
    pub(super) first: u64,
    /// The fingerprint of the catalog in which they were new.
    pub(super) fingerprint: String,
    /// The identity of its listing.
    pub(super) listing: String,
}

/// The growth of a catalog.
#[derive(Clone, Debug)]
pub(crate) struct CatalogGrowth {
    pub(super) record: GrowthRecord,
    /// The samples that are not gone, if some are.
    pub(crate) existing: Option<Arc<ChosenSamples>>,
}

impl CatalogGrowth {
    /// Of a catalog with this fingerprint, if it has grown.
    pub(crate) fn of(image: &CatalogFile, fingerprint: Fingerprint) -> Result<Option<Self>, CatalogFault> {
        let Some(text) = image.metadata(GROWTH_KEY) else { return Ok(None) };
        let damaged = || corrupt("its growth is damaged");
        let record: GrowthRecord = serde_json::from_str(text).map_err(|_| damaged())?;
        let samples = image.samples();
        if !record.pieces.is_sorted_by_key(|piece| piece.first)
            || !record.starts.is_sorted()
            || record.starts.last().is_some_and(|start| *start > samples)
        {
            return Err(damaged());
        }
        let existing = if record.gone.is_empty() {
            None
        } else {
            let gone = parse_numbers(&record.gone, samples).filter(|gone| gone.is_sorted());
            let gone = gone.ok_or_else(damaged)?;
            let ids: Vec<u64> = (0..samples).filter(|id| gone.binary_search(id).is_err()).collect();
            if ids.is_empty() {
                return Err(damaged());
            }
            Some(Arc::new(ChosenSamples::of(ids, image.sizes(), image.stored_sizes(), fingerprint)))
        };
        Ok(Some(Self { record, existing }))
    }
}
