//! The catalog: the samples of a dataset, their order and the position of their bytes.
//!
//! A catalog has one representation, its file. [`Catalog::save`] writes it,
//! [`Catalog::from_objects`] builds it in memory and [`Catalog::open`] reads it. So there is one
//! way to read a sample's entry. Numbers are in memory, some 12 bytes per sample, which processes
//! of a user [share](crate::catalog_file::columns::shared_numbers) if there are many. Names stay in
//! the file and are read on request. One `pread` takes less than a microsecond where the file is
//! cached (`benches/`). The price: a catalog that was just built or received holds its whole file
//! in memory as well, some 63 bytes per sample.

pub(crate) mod growth;
pub(crate) mod growth_record;
pub(crate) mod identity;
pub(crate) mod join;
pub(crate) mod part;
pub(crate) mod same_samples;
pub(crate) mod samples;
pub(crate) mod select;
pub(crate) mod server_shares;
pub(crate) mod split;
pub(crate) mod stored;
pub(crate) mod values;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use foreread_types::{Fingerprint, SampleId, Sizes};

use crate::catalog::growth_record::CatalogGrowth;
use crate::catalog::part::{ChosenSamples, number_text, parse_numbers, rewritten};
use crate::catalog_file::array_types::ArrayTypes;
use crate::catalog_file::fault::{CatalogFault, corrupt, unsupported};
use crate::catalog_file::keys::{
    ARRAYS_KEY, BASE_URL_KEY, FIELD_ARRAYS_KEY, FINGERPRINT_KEY, FORMAT_KEY, LISTING_KEY, LOCATION_KEY,
    NAME_KEY, SAMPLES_KEY,
};
use crate::catalog_file::listing::Listing;
use crate::catalog_file::{CatalogFile, recognise};
use crate::disk::replace::{replace_file, replace_file_with};
use crate::disk::shared_file;
use crate::{DatasetError, DatasetErrorKind, Format};

/// The samples of one dataset, numbered `0..len()`. Cheap to clone.
///
/// Files are sorted by first directory, then containing directory, then file name, each as bytes.
/// That is `ImageFolder`'s order. A list of files keeps its own. The first directory is the label.
/// Packed samples are sorted by
/// their shard's path as bytes, then by their position in the shard. A sequential reader of shards
/// sees the same order. Packed samples have labels if their format has a column of labels. The
/// class of a WebDataset sample is one of its fields.
///
/// A [part](Self::select) of a catalog is a catalog: its samples are numbered `0..len()` as well,
/// and each has a [number in the whole](Self::number). The [whole](Self::whole) is still there.
#[derive(Clone, Debug)]
pub struct Catalog(pub(crate) Arc<CatalogInner>, pub(crate) Option<Arc<ChosenSamples>>);

#[derive(Clone, Debug)]
pub(crate) struct CatalogInner {
    image: CatalogFile,
    /// The file's name, for messages.
    name: String,
    base_url: String,
    /// The user's name for the place of the data.
    pub(crate) place_name: Option<String>,
    pub(crate) listing: Listing,
    /// The directory whose changes it contains.
    location: Option<u32>,
    format: Format,
    pub(crate) fingerprint: Fingerprint,
    arrays: ArrayTypes,
    pub(crate) growth: Option<CatalogGrowth>,
}

impl Catalog {
    /// Opens a catalog file. Each byte of it is read and checked. Its names are read again on
    /// request.
    ///
    /// The file stays open. Replacing it, as [`save`](Self::save) does, or removing it is harmless.
    /// The exception is a file server that forgets removed files. If the file is overwritten or
    /// truncated in place, requests for names fail with [`DatasetErrorKind::Changed`].
    ///
    /// # Errors
    /// [`DatasetErrorKind::Io`] if the file cannot be read. [`DatasetErrorKind::NotACatalog`],
    /// [`DatasetErrorKind::Unsupported`] or [`DatasetErrorKind::Corrupt`] if its content is not
    /// usable.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DatasetError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let failed = |error: std::io::Error| {
            let message = format!("{name}: the catalog cannot be read: {error}");
            DatasetError::new(DatasetErrorKind::Io, message).with_source(error)
        };
        // Checked before opening, because opening a FIFO waits for a writer.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            let message = format!("{name}: no catalog: it is not a file");
            return Err(DatasetError::new(DatasetErrorKind::NotACatalog, message));
        }
        let image = CatalogFile::open(File::open(path).map_err(failed)?);
        image.and_then(|image| Self::of(image, name.clone())).map_err(|fault| named_fault(&name, fault))
    }

    /// The catalog in a file with these bytes. `name` is its name in messages. The data lie at
    /// `base_url`.
    pub(crate) fn of_bytes(bytes: Bytes, name: String, base_url: &str) -> Result<Self, DatasetError> {
        let image = CatalogFile::owned(bytes);
        let made = image.and_then(|image| {
            let inner = CatalogInner::new(image, name.clone())?;
            Self::with_part(CatalogInner { base_url: base_url.to_owned(), ..inner })
        });
        made.map_err(|fault| named_fault(&name, fault))
    }

    fn of(image: CatalogFile, name: String) -> Result<Self, CatalogFault> {
        Self::with_part(CatalogInner::new(image, name)?)
    }

    /// With the part that the file names, if it is of one. Then the whole is in memory.
    fn with_part(inner: CatalogInner) -> Result<Self, CatalogFault> {
        let Some(text) = inner.image.metadata(SAMPLES_KEY) else {
            let existing = inner.existing().cloned();
            return Ok(Self(Arc::new(inner), existing));
        };
        let ids = parse_numbers(text, inner.image.samples())
            .ok_or_else(|| corrupt("the numbers of its samples are damaged"))?;
        let bytes = rewritten(&inner.image.bytes()?, None).map_err(|error| corrupt(error.to_string()))?;
        let image = CatalogFile::owned(bytes.into())?;
        Ok(Self(Arc::new(CatalogInner { image, ..inner }), None).part(ids))
    }

    /// The bytes that [`save`](Self::save) would write, for a catalog that is sent instead of
    /// saved. An opened catalog is read from its file. Others share their bytes.
    ///
    /// # Errors
    /// [`DatasetErrorKind::Io`] or [`DatasetErrorKind::Changed`] if its file is no longer readable
    /// or was overwritten.
    pub fn to_bytes(&self) -> Result<Bytes, DatasetError> {
        let bytes = self.0.image.bytes().map_err(|fault| named_fault(&self.0.name, fault))?;
        let Some(part) = self.1.as_ref().filter(|_| self.is_part()) else { return Ok(bytes) };
        let numbers = number_text(&part.ids, self.0.image.samples());
        rewritten(&bytes, Some(numbers)).map(Bytes::from).map_err(|error| {
            let message = format!("{}: the catalog cannot be encoded: {error}", self.0.name);
            DatasetError::new(DatasetErrorKind::Invalid, message).with_source(error)
        })
    }

    /// The number of bytes that [`to_bytes`](Self::to_bytes) returns for a catalog that is no part.
    pub fn encoded_len(&self) -> u64 {
        self.0.image.length()
    }

    /// The catalog that [`to_bytes`](Self::to_bytes) returned. `name` is its name in messages.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), except those of reading the file.
    pub fn from_bytes(bytes: impl Into<Bytes>, name: impl Into<String>) -> Result<Self, DatasetError> {
        let name = name.into();
        let made = CatalogFile::owned(bytes.into()).and_then(|image| Self::of(image, name.clone()));
        made.map_err(|fault| named_fault(&name, fault))
    }

    /// The catalog in a file that was [written](crate::build::files) with a blank checksum.
    pub(crate) fn of_written(file: File, name: String) -> Result<Self, DatasetError> {
        let made = CatalogFile::sealed(file).and_then(|image| Self::of(image, name.clone()));
        made.map_err(|fault| named_fault(&name, fault))
    }

    /// The same catalog with its bytes in memory that other processes can
    /// [share](Self::sharing).
    ///
    /// # Errors
    /// Those of [`to_bytes`](Self::to_bytes), and [`DatasetErrorKind::Io`] if the system has no
    /// such memory.
    pub fn in_shared_memory(&self) -> Result<Self, DatasetError> {
        let made = shared_file::create(&self.with_gone().to_bytes()?).map_err(|error| {
            let message = format!("{}: the catalog cannot be shared: {error}", self.0.name);
            DatasetError::new(DatasetErrorKind::Io, message).with_source(error)
        })?;
        Ok(self.with_file(made).unwrap_or_else(|| self.clone()))
    }

    /// The path of the memory that other processes can share. It is valid as long as this catalog.
    /// `None` if it was not [put there](Self::in_shared_memory).
    pub fn shared_memory(&self) -> Option<PathBuf> {
        self.0.image.file().and_then(shared_file::path)
    }

    /// The same catalog with its bytes in the memory of another process. `None` if this process
    /// cannot open it, if it has another length, or if this catalog is read from a file already.
    pub fn sharing(&self, memory: &Path) -> Option<Self> {
        let file = if self.0.image.file().is_none() { shared_file::open(memory) } else { None };
        self.with_file(file?)
    }

    /// Writes the catalog to a file that pandas, polars and DuckDB read as a table (Arrow IPC,
    /// "Feather").
    ///
    /// An existing file is replaced in one step. Readers see the old catalog or the new one.
    /// Readers that have the old one open keep it. The directory must be writable.
    ///
    /// # Errors
    /// [`DatasetErrorKind::Io`] if it cannot be written, and those of [`to_bytes`](Self::to_bytes).
    /// An existing file then stays unchanged.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), DatasetError> {
        let (path, mut fault) = (path.as_ref(), None);
        let written = match self.is_part() {
            true => replace_file(path, &self.to_bytes()?),
            // A large one is not in memory.
            false => replace_file_with(path, |file| {
                self.0.image.write_to(file)?.map_err(|why| {
                    fault = Some(why);
                    std::io::Error::other("the catalog changed")
                })
            }),
        };
        if let Some(fault) = fault {
            return Err(named_fault(&self.0.name, fault));
        }
        written.map_err(|error| {
            let message = format!("{}: the catalog cannot be written: {error}", path.display());
            DatasetError::new(DatasetErrorKind::Io, message).with_source(error)
        })
    }

    /// Whether the path is a file that a catalog was saved to. Neither its name nor its version
    /// matters, nor damage at one of its ends. `false` if it cannot be read, and for Arrow files of
    /// other programs. It decides which files may be opened and replaced.
    pub fn is_catalog_file(path: impl AsRef<Path>) -> bool {
        let path = path.as_ref();
        // Opening a pipe would block.
        path.is_file() && File::open(path).is_ok_and(|file| recognise::is_catalog(&file).unwrap_or(false))
    }

    /// The number of samples, at least one.
    pub fn len(&self) -> u64 {
        self.1.as_ref().map_or_else(|| self.0.image.samples(), |part| part.ids.len() as u64)
    }

    /// Always `false`: a catalog has at least one sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The total length of all samples in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.sizes().total()
    }

    /// The length of each sample. Cheap, because the table is shared.
    pub fn sizes(&self) -> Sizes {
        self.1.as_ref().map_or_else(|| self.0.image.sizes(), |part| &part.sizes).clone()
    }

    /// The number of bytes of each sample in its object, if some are decoded when they are read.
    /// Cheap, because the table is shared. `None`: those of [`sizes`](Self::sizes).
    pub fn stored_sizes(&self) -> Option<Sizes> {
        self.1.as_ref().map_or_else(|| self.0.image.stored_sizes(), |part| part.stored.as_ref()).cloned()
    }

    /// The indexed URL, as it was given to the index.
    pub fn base_url(&self) -> &str {
        &self.0.base_url
    }

    /// The format of the samples in objects.
    pub fn format(&self) -> Format {
        self.0.format
    }

    /// The number of objects: the samples, or their shards.
    pub fn objects(&self) -> u64 {
        // Of a part, at most.
        self.0.image.objects().min(self.len())
    }

    /// Whether the catalog names the servers of samples.
    pub fn has_servers(&self) -> bool {
        self.0.image.has_servers()
    }

    /// The catalog's file.
    pub(crate) fn image(&self) -> &CatalogFile {
        &self.0.image
    }

    /// The types of arrays.
    pub(crate) fn array_types(&self) -> &ArrayTypes {
        &self.0.arrays
    }

    /// The same with its bytes in a file. `None` if that has another length.
    fn with_file(&self, file: File) -> Option<Self> {
        Some(Self(Arc::new(self.0.with_file(file)?), self.1.clone()))
    }

    pub(crate) fn out_of_range(&self, id: SampleId) -> DatasetError {
        let message = format!("{}: no sample {id} among {}", self.0.name, self.len());
        DatasetError::new(DatasetErrorKind::OutOfRange, message)
    }

    pub(crate) fn failed(&self, id: SampleId, fault: CatalogFault) -> DatasetError {
        let why = match fault.kind {
            DatasetErrorKind::Corrupt => format!("sample {id}: {}", fault.why),
            _ => fault.why,
        };
        named_fault(&self.0.name, CatalogFault { kind: fault.kind, why })
    }
}

impl CatalogInner {
    /// The same with its bytes in a file. `None` if that has another length.
    fn with_file(&self, file: File) -> Option<Self> {
        Some(Self { image: self.image.with_file(file)?, ..self.clone() })
    }

    /// The samples that are not gone, if some are.
    pub(crate) fn existing(&self) -> Option<&Arc<ChosenSamples>> {
        self.growth.as_ref()?.existing.as_ref()
    }

    /// Reads the metadata.
    fn new(image: CatalogFile, name: String) -> Result<Self, CatalogFault> {
        let value = |key| {
            let found = image.metadata(key).map(ToOwned::to_owned);
            found.ok_or_else(|| corrupt(format!("it has no `{key}`")))
        };
        let format = value(FORMAT_KEY)?;
        let format = Format::from_name(&format)
            .ok_or_else(|| unsupported(format!("this foreread does not know its format, {format:?}")))?;
        let fingerprint: Fingerprint =
            value(FINGERPRINT_KEY)?.parse().map_err(|_| corrupt("its fingerprint is damaged"))?;
        let base_url = value(BASE_URL_KEY)?;
        if format.is_packed() != image.is_packed() {
            return Err(corrupt(format!("its columns are not those of {}", format.name())));
        }
        let place_name = image.metadata(NAME_KEY).map(ToOwned::to_owned);
        let listing = match image.metadata(LISTING_KEY) {
            Some(text) => Listing::parse(text).ok_or_else(|| {
                unsupported(format!("this foreread does not know its kind of listing, {text:?}"))
            })?,
            // A catalog of an earlier version. Nothing distinguishes it from another listing.
            None => Listing::unknown().map_err(|error| CatalogFault {
                kind: DatasetErrorKind::Io,
                why: format!("the system has no random numbers: {error}"),
            })?,
        };
        let [values, fields] = [ARRAYS_KEY, FIELD_ARRAYS_KEY].map(|key| image.metadata(key));
        let arrays =
            ArrayTypes::parse(values, fields).ok_or_else(|| corrupt("its types of arrays are damaged"))?;
        let location = image.metadata(LOCATION_KEY).map(|text| u32::from_str_radix(text, 16)).transpose();
        let location = location.map_err(|_| corrupt("its place is damaged"))?;
        let growth = CatalogGrowth::of(&image, fingerprint)?;
        Ok(Self { image, name, base_url, place_name, listing, location, format, fingerprint, arrays, growth })
    }
}

/// The error of a fault, with the file's name and the remedy.
fn named_fault(name: &str, fault: CatalogFault) -> DatasetError {
    let CatalogFault { kind, why } = fault;
    let message = match kind {
        DatasetErrorKind::NotACatalog => format!("{name}: no catalog: {why}; `foreread index` makes one"),
        DatasetErrorKind::Io => format!("{name}: the catalog cannot be read: {why}"),
        DatasetErrorKind::Changed => {
            format!("{name}: the catalog was changed while it was in use: {why}; start again")
        }
        DatasetErrorKind::Unsupported => {
            format!("{name}: {why}; use a newer foreread, or make it again with `foreread index`")
        }
        _ => format!("{name}: the catalog is damaged: {why}; make it again with `foreread index`"),
    };
    DatasetError::new(kind, message)
}
