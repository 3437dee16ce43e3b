//! Which parser reads a shard, and which files next to it.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use foreread_formats::{
    FormatError, FoundSamples, ReadError, arrow_stream, hdf5, litdata, lmdb, mds, megatron, npy, parquet,
    tokens,
};
use foreread_tier::{ErrorKind, Object, OriginTier};
use foreread_types::setting;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::lock::Mutex;

use super::compressed::{self, decoder_of};
use super::reader::{ShardStore, StoredBytes};
use super::rows::{FormatColumns, IndexedShard, SampleRows};
use super::source::ShardSource;
use super::{recordio, samples, scan, tar, tfrecord, zip};
use crate::catalog_file::column_names::LABEL;
use crate::{DatasetError, DatasetErrorKind, Format, FormatOptions};

/// The name of the file that describes the shards of its directory.
const INDEX: &str = "index.json";

/// The longest such file that is read.
const MAX_INDEX: u64 = 1 << 30;

/// The format of a dataset, and the choices within it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FormatChoice<'a> {
    pub(crate) format: Format,
    pub(crate) options: &'a FormatOptions,
    /// Whether only some objects are to be indexed.
    pub(crate) is_selected: bool,
    /// Whether each object was named by the user.
    pub(crate) is_named: bool,
}

/// The parsers of one dataset's format.
pub(crate) struct Parsers<'a> {
    origin: &'a dyn OriginTier,
    store: &'a ShardStore<'a>,
    format: Format,
    options: &'a FormatOptions,
    is_selected: bool,
    /// The contents of the `index.json` of each directory.
    indexes: Mutex<HashMap<String, Arc<ShardIndex>>>,
    /// Held while a compressed shard is in memory.
    decompressing: Mutex<()>,
}

/// The contents of an `index.json`.
enum ShardIndex {
    Mds(HashMap<String, mds::MdsShard>),
    LitData(litdata::LitIndex),
}

impl<'a> Parsers<'a> {
    pub(crate) fn new(
        origin: &'a dyn OriginTier,
        store: &'a ShardStore<'a>,
        choice: FormatChoice<'a>,
    ) -> Self {
        let FormatChoice { format, options, is_selected, .. } = choice;
        let (indexes, decompressing) = (Mutex::default(), Mutex::default());
        Self { origin, store, format, options, is_selected, indexes, decompressing }
    }

    /// Checks that all shards of each `index.json` are among these, which are sorted by path.
    ///
    /// # Errors
    /// [`DatasetErrorKind::BadShard`] with the first missing one.
    pub(crate) async fn check_complete(
        &self,
        base_url: &str,
        shards: &[IndexedShard],
    ) -> Result<(), DatasetError> {
        if self.is_selected {
            return Ok(());
        }
        for (directory, index) in self.indexes.lock().await.iter() {
            let mut names: Vec<&str> = match &**index {
                ShardIndex::Mds(shards) => shards.keys().map(String::as_str).collect(),
                ShardIndex::LitData(index) => index.chunks.iter().map(|chunk| &*chunk.filename).collect(),
            };
            names.sort_unstable();
            let path = |name: &str| match &**directory {
                "" => name.to_owned(),
                directory => format!("{directory}/{name}"),
            };
            let is_missing = |name: &&&str| {
                let path = path(name);
                shards.binary_search_by(|known| (*known.object.path).cmp(&path)).is_err()
            };
            let missing: Vec<&&str> = names.iter().filter(is_missing).collect();
            if let Some(first) = missing.first() {
                let (path, more) = (path(first), missing.len() - 1);
                let message = format!(
                    "{base_url}: {path} is missing, and {more} more that {INDEX} next to it lists; copy them \
                     again, or choose the rest with {}",
                    setting("include")
                );
                return Err(DatasetError::new(DatasetErrorKind::BadShard, message));
            }
        }
        Ok(())
    }

    /// The samples of a shard, read at most at `places` positions at once, and the number of its
    /// members that are not samples.
    pub(crate) async fn rows(
        &self,
        object: &Object,
        places: usize,
    ) -> Result<(SampleRows, u64), FormatError> {
        let decoder = match self.format {
            Format::Tar | Format::TfRecord => decoder_of(&object.path),
            _ => None,
        };
        let Some(decoder) = decoder else { return self.rows_in(self.store, object, places).await };
        let _place = self.decompressing.lock().await;
        let bytes = compressed::read(self.store, object, decoder).await?;
        let decoded = Object { size: bytes.len() as u64, ..object.clone() };
        let store = ShardStore::new(StoredBytes::Memory(bytes));
        let (rows, skipped) = self.rows_in(&store, &decoded, 1).await?;
        Ok((compressed::made(rows, object, decoder, decoded.size)?, skipped))
    }

    /// [`rows`](Self::rows) of a shard that is stored as it is.
    async fn rows_in(
        &self,
        store: &ShardStore<'_>,
        object: &Object,
        places: usize,
    ) -> Result<(SampleRows, u64), FormatError> {
        match self.format {
            Format::Files => Err(FormatError::damaged(0, "a plain file is not a shard")),
            Format::Zip => zip::rows(store, object, places).await,
            Format::Tar => samples::group(&scan::members::<tar::Tar>(store, object, places).await?),
            Format::TfRecord => {
                let members = scan::members::<tfrecord::TfRecord>(store, object, places).await?;
                let mut rows = SampleRows::new(FormatColumns::TFRECORD);
                for &(start, length, crc32c) in &members.places {
                    rows.push("", start, length, crc32c);
                }
                Ok((rows, members.skipped))
            }
            _ => {
                // Boxed, so that the future of an index stays small and its type simple.
                let found: BoxFuture<'_, _> = self.found(object, places).boxed();
                let found = found.await?;
                let skipped = found.skipped;
                Ok((SampleRows::found(found), skipped))
            }
        }
    }

    /// The samples that a parser of `foreread-formats` finds, or those of records.
    async fn found(&self, object: &Object, places: usize) -> Result<FoundSamples, FormatError> {
        let found = match self.format {
            Format::RecordIo => {
                let members = scan::members::<recordio::RecordIo>(self.store, object, places).await?;
                recordio::group(&members, self.options.fields.first().map(String::as_str))
            }
            _ => self.parse(object).await,
        };
        let found = found?;
        for note in &found.notes {
            tracing::warn!("{}: {note}", object.path);
        }
        if let Some(label) = &self.options.label
            && found.columns.iter().all(|column| column.name != LABEL)
            && !found.is_empty()
        {
            let (found, option) = (&found.summary, setting("label"));
            let why = format!("{label:?} cannot be read as labels ({found}); leave out {option}");
            return Err(FormatError::unsupported(0, why));
        }
        Ok(found)
    }

    async fn parse(&self, object: &Object) -> Result<FoundSamples, FormatError> {
        let source = &ShardSource { store: self.store, object };
        let (FormatOptions { fields, label, columns, key, whole, .. }, _) = self.options.within(self.format);
        let mut fields = fields.into_iter();
        let field = fields.next();
        Ok(match self.format {
            Format::Lmdb => {
                let mut options = lmdb::LmdbOptions::default();
                (options.database, options.prefix, options.labels) = (key, field, label);
                options.joined = fields.collect();
                lmdb::index(source, &options).await?
            }
            Format::Hdf5 => {
                let mut options = hdf5::Hdf5Options::default();
                (options.dataset, options.labels, options.whole) = (field, label, whole);
                options.joined = fields.collect();
                hdf5::index(source, &options).await?
            }
            Format::Parquet => {
                let mut options = parquet::ParquetOptions::default();
                (options.column, options.label) = (field, label);
                (options.joined, options.columns) = (fields.collect(), columns);
                parquet::index(source, &options).await?
            }
            Format::Arrow => {
                let mut options = arrow_stream::ArrowOptions::default();
                (options.column, options.label) = (field, label);
                (options.joined, options.columns) = (fields.collect(), columns);
                arrow_stream::index(source, &options).await?
            }
            Format::Npy => npy::index(source).await?,
            Format::Tokens => self.tokens(source).await?,
            Format::Mds | Format::LitData => self.listed(source).await?,
            Format::Files | Format::Tar | Format::TfRecord | Format::Zip | Format::RecordIo => {
                return Err(FormatError::damaged(0, "its parser is another"));
            }
        })
    }

    /// The windows or documents of a token file.
    async fn tokens(&self, source: &ShardSource<'_>) -> Result<FoundSamples, FormatError> {
        let path = &*source.object.path;
        let table = match path.strip_suffix(".bin") {
            Some(stem) => self.companion(&format!("{stem}.idx")).await?,
            None => None,
        };
        let table = table.as_ref().map(|object| ShardSource { store: self.store, object });
        if self.options.document || self.options.pack.is_some() {
            let why = "documents are listed in an .idx file next to the .bin file, and there is none";
            let table = table.ok_or_else(|| FormatError::unsupported(0, why))?;
            return Ok(match self.options.pack {
                Some(length) => megatron::packed(&table, source.object.size, &self.pack(length)).await?,
                None => megatron::documents(&table, source.object.size).await?,
            });
        }
        let options = self.windows()?;
        Ok(match table {
            Some(table) => megatron::windows(&table, source, &options).await?,
            None if path.ends_with(".npy") => tokens::npy(source, &options).await?,
            None => tokens::raw(source, &options).await?,
        })
    }

    /// How documents are packed into samples of `length` tokens.
    fn pack(&self, length: u64) -> megatron::PackOptions {
        let FormatOptions { pack_seed, pack_samples, pack_split, .. } = &self.options;
        let mut options = megatron::PackOptions::new(length);
        options.seed = pack_seed.unwrap_or(options.seed);
        (options.samples, options.split) = (*pack_samples, pack_split.clone());
        options
    }

    /// The windows that were chosen.
    fn windows(&self) -> Result<tokens::WindowOptions, FormatError> {
        let [window, document, pack] = ["window", "document", "pack"].map(setting);
        let why = || {
            format!(
                "the samples of token files are windows: set {window}, or for Megatron's {document} or {pack}"
            )
        };
        let window = self.options.window.ok_or_else(|| FormatError::unsupported(0, why()))?;
        let stride = self.options.stride.unwrap_or(window);
        let dtype = self.options.dtype.clone().unwrap_or_default();
        Ok(tokens::WindowOptions { window, stride, dtype })
    }

    /// The samples of a shard that an `index.json` describes.
    async fn listed(&self, source: &ShardSource<'_>) -> Result<FoundSamples, FormatError> {
        let path = &*source.object.path;
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let index = self.index(directory).await?;
        let unknown = || {
            let why = format!("{INDEX} next to it does not name it; exclude it, or write the dataset again");
            FormatError::unsupported(0, why)
        };
        let label = self.options.label.as_deref();
        match &*index {
            ShardIndex::Mds(shards) => {
                Ok(mds::index(source, shards.get(name).ok_or_else(unknown)?, label).await?)
            }
            ShardIndex::LitData(index) => {
                let chunk = index.chunks.iter().find(|chunk| chunk.filename == name);
                let chunk = chunk.ok_or_else(unknown)?;
                match self.options.window {
                    Some(_) => Ok(litdata::windows(source, index, chunk, &self.windows()?).await?),
                    None => Ok(litdata::index(source, index, chunk, label).await?),
                }
            }
        }
    }

    /// The `index.json` of a directory, read once.
    async fn index(&self, directory: &str) -> Result<Arc<ShardIndex>, FormatError> {
        let mut indexes = self.indexes.lock().await;
        if let Some(index) = indexes.get(directory) {
            return Ok(Arc::clone(index));
        }
        let path = index_path(&format!("{directory}/"));
        let why = format!("there is no {INDEX} next to it, which describes its samples");
        let object = self.companion(&path).await?.ok_or_else(|| FormatError::unsupported(0, why))?;
        if object.size == 0 || object.size > MAX_INDEX {
            let why = format!("{INDEX} next to it has {} bytes: expected 1 to {MAX_INDEX}", object.size);
            return Err(FormatError::damaged(0, why));
        }
        let json: Bytes = self.store.read(&object, 0, object.size).await?;
        let index = match self.format {
            Format::LitData => ShardIndex::LitData(litdata::parse_index(&json)?),
            _ => {
                let shards = mds::parse_index(&json)?.into_iter();
                ShardIndex::Mds(shards.map(|shard| (shard.raw_data.basename.clone(), shard)).collect())
            }
        };
        let index = Arc::new(index);
        indexes.insert(directory.to_owned(), Arc::clone(&index));
        Ok(index)
    }

    /// A file next to a shard. `None` if there is none.
    async fn companion(&self, path: &str) -> Result<Option<Object>, FormatError> {
        match self.origin.stat(path).await {
            Ok(object) => Ok(Some(object)),
            // Without permission to list, a bucket does not say whether an object exists.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Denied) => Ok(None),
            Err(error) => Err(ReadError::from(error).into()),
        }
    }
}

/// The path of the `index.json` next to the object at `path`.
pub(crate) fn index_path(path: &str) -> String {
    match path.rsplit_once('/') {
        None | Some(("", _)) => INDEX.to_owned(),
        Some((directory, _)) => format!("{directory}/{INDEX}"),
    }
}
