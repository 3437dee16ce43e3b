//! Samples that a table lists: one row a sample.
//!
//! People describe datasets by tables: a CSV with files, labels and captions. Its rows are samples
//! in its order, with their labels and values. A row names a file below the dataset's location, or
//! a part of one. Reading tables is not done here ([`TableRows`] are columns), so that this crate
//! depends on no reader.
//!
//! The price of an order that is not that of names: looking for a sample by its path visits all.

mod encode;
mod files;
mod paths;
mod rows;

use arrow_array::BooleanArray;
use foreread_tier::OriginTier;

use self::encode::TableCatalog;
pub(crate) use self::files::TableFiles;
pub use self::rows::{TableColumn, TableLabel, TableRows};
use crate::build::header::CatalogHeader;
use crate::build::{no_randomness, object_layouts};
use crate::catalog_file::listing::Listing;
use crate::{Catalog, DatasetError, DatasetErrorKind, IndexOptions, IndexProgress};

impl Catalog {
    /// The catalog of a table's rows, whose files lie below `base_url`, the location of `origin`.
    /// Of `options`, it uses [`partial`](IndexOptions::partial), [`name`](IndexOptions::name) and
    /// [`skip_missing`](IndexOptions::skip_missing).
    ///
    /// Sizes come from the table if it has them, and no request is made. Else an object store lists
    /// the files' common directory once. Any other origin gets a request for each file, 32 at once.
    ///
    /// # Errors
    /// [`DatasetErrorKind::Empty`] without rows. [`DatasetErrorKind::Invalid`] for rows without a
    /// path, with a path elsewhere, without their file, or with a part that is not in it: the
    /// message counts and names them. [`DatasetErrorKind::Listing`] if they cannot be requested.
    ///
    /// # Cancel safety
    /// That of [`Catalog::index`].
    pub async fn of_table(
        origin: &dyn OriginTier,
        base_url: &str,
        rows: &TableRows,
        options: &IndexOptions,
        mut progress: impl FnMut(IndexProgress) + Send,
    ) -> Result<Self, DatasetError> {
        if rows.is_empty() {
            return Err(no_rows(rows, "there are no rows"));
        }
        let columns = rows.columns().map(|column| paths::relative(base_url, rows, column));
        let columns: Vec<Vec<&str>> = columns.collect::<Result<_, _>>()?;
        let files = files::find(origin, base_url, rows, &columns, options, &mut progress).await?;
        drop(columns);
        Self::of_rows(origin, base_url, rows, files, options).await
    }

    /// The catalog of rows with these files.
    pub(crate) async fn of_rows(
        origin: &dyn OriginTier,
        base_url: &str,
        rows: &TableRows,
        mut files: TableFiles,
        options: &IndexOptions,
    ) -> Result<Self, DatasetError> {
        let width = rows.columns().count();
        let keep: BooleanArray = files.complete(width).map(Some).collect();
        let kept = (keep.true_count() < keep.len()).then(|| rows.filtered(&keep)).transpose()?;
        if kept.is_some() {
            let mut row = 0;
            files.of_row.retain(|_| {
                row += 1;
                keep.value((row - 1) / width)
            });
        }
        let rows = kept.as_ref().unwrap_or(rows);
        if rows.is_empty() {
            return Err(no_rows(rows, "no row has its files"));
        }
        let layouts = object_layouts::layouts(origin, &files.objects).await;
        let listing = Listing::of(files.objects.iter()).map_err(|error| no_randomness(base_url, error))?;
        let catalog = TableCatalog { rows, files: &files, layouts: &layouts };
        let outside = catalog.outside();
        if !outside.is_empty() {
            let which = rows.named(&outside);
            return Err(rows.invalid(format!(
                "{} rows end beyond their file, or have no bytes: {which}",
                outside.len()
            )));
        }
        if catalog.bytes().is_none() {
            return Err(rows.invalid("its samples are impossibly long together"));
        }
        let head = CatalogHeader { base_url, notes: options.notes(), listing, extra: &[] };
        Self::of_encoded(base_url, catalog.encode(head))
    }
}

fn no_rows(rows: &TableRows, why: &str) -> DatasetError {
    let message = format!("{}: {why}; correct the table, or choose other rows", rows.name);
    DatasetError::new(DatasetErrorKind::Empty, message)
}
