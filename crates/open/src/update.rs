//! Repeating an index: how it was requested, as its catalog keeps it.
//!
//! The request is JSON in the catalog: the targets, the options and, for a table, its place and
//! columns. Settings of the storage are left out, because they may contain secrets. An update needs
//! them again. The price is some hundred bytes in each catalog. It is a part of the feature
//! `tables`, so that the program can repeat every request.

use std::path::PathBuf;

use foreread_dataset::{Catalog, DatasetErrorKind, IndexOptions, IndexProgress};
use foreread_tables::TableOptions;
use foreread_tier::OpenContext;
use foreread_types::setting;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::origin;
use crate::origin_policy::OriginPolicy;
use crate::registry::Registry;
use crate::storage::StorageOptions;
use crate::tables::{self, TableSource};
use crate::target::{TargetSpec, absolute};

/// How an index was requested.
#[derive(Debug, Serialize, Deserialize)]
pub struct IndexRequest {
    /// The targets, as absolute paths or URLs.
    names: Vec<String>,
    options: IndexOptions,
    /// The path or URL of the inventory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inventory: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<TableRequest>,
    /// Itself, as in the catalog.
    #[serde(skip)]
    text: String,
}

/// The table of an index.
#[derive(Debug, Serialize, Deserialize)]
struct TableRequest {
    /// Its path or URL. `None` for a table in memory.
    place: Option<String>,
    options: TableOptions,
    #[serde(skip)]
    source: Option<TableSource>,
}

/// `options` with a note of the request, for the catalog.
pub fn noted(
    options: IndexOptions,
    names: &[String],
    inventory: Option<&str>,
    table: Option<(&TableSource, &TableOptions)>,
) -> Result<IndexOptions> {
    let table = table.map(|(source, options)| TableRequest {
        place: match source {
            TableSource::At(place) => Some(absolute(place)),
            TableSource::Read(_) => None,
        },
        options: options.clone(),
        source: None,
    });
    let names = names.iter().map(|name| if name.is_empty() { String::new() } else { absolute(name) });
    let request = IndexRequest {
        names: names.collect(),
        options: options.clone(),
        inventory: inventory.map(absolute),
        table,
        text: String::new(),
    };
    let request = serde_json::to_string(&request).map_err(|error| Error::usage(error.to_string()))?;
    let mut options = options;
    options.request = Some(request);
    Ok(options)
}

/// The columns of the table that a catalog was made of. `None` for a catalog of no table.
///
/// # Errors
/// If the catalog does not say how it was made.
pub fn requested_table(catalog: &Catalog) -> Result<Option<TableOptions>> {
    Ok(IndexRequest::parse(catalog)?.1.table.map(|table| table.options))
}

impl IndexRequest {
    /// The text in a catalog, and its meaning.
    fn parse(catalog: &Catalog) -> Result<(String, Self)> {
        let unknown = |why: &str| {
            let message = format!("{}: the catalog {why}; make it again by an index", catalog.base_url());
            Error::dataset(DatasetErrorKind::Unsupported, message)
        };
        let text = catalog.request().ok_or_else(|| unknown("does not say how it was made"))?;
        let request = serde_json::from_str(text)
            .map_err(|_| unknown("was made in a way that this foreread does not know"))?;
        Ok((text.to_owned(), request))
    }

    /// The request that made `catalog`, with the table that was given now.
    pub fn of(catalog: &Catalog, table: Option<TableSource>, partial: Option<PathBuf>) -> Result<Self> {
        let base = catalog.base_url();
        if catalog.is_part() {
            let message = format!(
                "{base}: new samples are in no part: update the whole catalog, and take parts of that"
            );
            return Err(Error::usage(message));
        }
        let (text, mut request) = Self::parse(catalog)?;
        request.text = text;
        // New classes get the numbers after those of the catalog.
        request.options.classes = request.options.classes.filter(Vec::is_empty);
        if request.table.is_some() && request.names.iter().all(String::is_empty) {
            // Other rows may have another directory in common.
            request.names = vec![base.to_owned()];
        }
        request.options.partial = partial;
        match (&mut request.table, table) {
            (None, Some(_)) => {
                let message = format!("{base}: the catalog is of no table; leave out {}", setting("table"));
                return Err(Error::usage(message));
            }
            (Some(of), Some(given)) => of.source = Some(given),
            (Some(of), None) if of.place.is_none() => {
                let message =
                    format!("{base}: its table was in memory; give the new one ({})", setting("table"));
                return Err(Error::usage(message));
            }
            _ => {}
        }
        Ok(request)
    }

    /// Lists the dataset again.
    pub async fn repeat(
        self,
        storage: StorageOptions,
        registry: &Registry,
        context: &OpenContext,
        shared: &OriginPolicy,
        progress: impl FnMut(IndexProgress) + Send,
    ) -> Result<Catalog> {
        let targets = TargetSpec { names: self.names, catalog: None, storage };
        if let Some(TableRequest { place, options: columns, source }) = self.table {
            let source = source.or_else(|| place.map(TableSource::At));
            let source = source.ok_or_else(|| Error::usage("the table of the catalog is missing"))?;
            let mut options = self.options;
            options.request = Some(self.text);
            return tables::index(&targets, (source, columns), options, registry, context, shared, progress)
                .await;
        }
        let inventory = self.inventory.as_deref();
        let mut options = self.options;
        options.request = Some(self.text);
        origin::index(&targets, inventory, options, registry, context, shared, progress).await
    }
}
