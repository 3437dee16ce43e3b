//! A catalog that is stored next to the data that it describes.
//!
//! A user with write access lists a bucket once and stores the catalog there, under
//! [`CATALOG_NAME`]. All others then start with two small requests instead of a listing. Such a
//! catalog describes the location where it was found, not the one where it was created. So a bucket
//! may have several names. The price is that objects added later are not seen until the catalog is
//! created again. The version detects a changed object, and its read is then an error.

use std::sync::Arc;

use foreread_tier::{ErrorKind, OriginTier, ReadRequest, Span};
use foreread_types::{SampleKey, Tick};

use crate::catalog_name::CATALOG_NAME;
use crate::{Catalog, DatasetError, DatasetErrorKind};

/// The largest catalog that is read from a store, in bytes: some 60 million samples.
const LONGEST: u64 = 4 << 30;

impl Catalog {
    /// The catalog that is stored in an origin under [`CATALOG_NAME`], if there is one. `base_url`
    /// is the URL that the origin was opened with.
    ///
    /// An origin that cannot report whether there is one (no permission, no such operation) has
    /// none. Listing it then reports the error, if there is one.
    ///
    /// # Errors
    /// [`DatasetErrorKind::Io`] if it exists and cannot be read, and those of [`Catalog::open`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves no work running.
    pub async fn stored(origin: &dyn OriginTier, base_url: &str) -> Result<Option<Self>, DatasetError> {
        let object = match origin.stat(CATALOG_NAME).await {
            Ok(object) => object,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                tracing::debug!(%error, "it is unknown whether a catalog exists");
                return Ok(None);
            }
        };
        let name = format!("{}/{CATALOG_NAME}", base_url.trim_end_matches('/'));
        let failed = |why: &dyn std::fmt::Display| {
            let message = format!(
                "{name}: the catalog cannot be read: {why}; remove it, and the data are listed instead"
            );
            DatasetError::new(DatasetErrorKind::Io, message)
        };
        if object.size > LONGEST {
            return Err(failed(&format!("its {} bytes exceed the maximum of {LONGEST}", object.size)));
        }
        let request = ReadRequest::new(SampleKey::default(), object, Span::Whole, Tick(0));
        let bytes =
            origin.read(Arc::new(request)).await.map_err(|error| failed(&error).with_source(error))?;
        Self::of_bytes(bytes.to_vec().into(), name, base_url).map(Some)
    }
}
