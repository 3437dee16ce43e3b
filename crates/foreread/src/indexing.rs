//! Catalogs from a builder: an index of its target, of a table, of an inventory, and an update.
//!
//! They share the builder's settings of the storage, its registry and its threads, and plan
//! nothing.

#[cfg(feature = "tables")]
use std::path::PathBuf;

#[cfg(feature = "tables")]
use foreread_dataset::Growth;
use foreread_dataset::{Catalog, IndexOptions, IndexProgress};
use foreread_tier::OpenContext;

use crate::builder::Builder;
use crate::error::Result;
use crate::origin::{self, OriginPolicy};
use crate::registry::Registry;
use crate::runtime::Workers;
#[cfg(feature = "tables")]
use crate::runtime::ended;
#[cfg(feature = "tables")]
use crate::table::{TableOptions, TableSource};
use crate::target::TargetSpec;
#[cfg(feature = "tables")]
use crate::{tables, update};

/// What an index needs of a builder.
struct Indexing {
    targets: TargetSpec,
    registry: Registry,
    context: OpenContext,
    shared: OriginPolicy,
}

impl Builder {
    /// Runs an index on the builder's threads.
    fn run_index<T, F>(self, index: impl FnOnce(Indexing) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send,
    {
        let workers = Workers::new(self.runtime.clone())?;
        let context = self.context(workers.handle());
        workers.wait(async move {
            let shared = OriginPolicy::new(&self.config, &context);
            let targets = TargetSpec { storage: self.config.storage_options.clone(), ..self.targets };
            index(Indexing { targets, registry: self.registry, context, shared }).await
        })
    }

    /// Lists the dataset into a catalog, without planning. Of shards it reads only the headers.
    /// Blocks the thread.
    ///
    /// # Errors
    /// If the dataset cannot be opened or listed, or contains no sample. Also if `progress` or a
    /// backend panics, or the thread belongs to the given [runtime](Self::runtime).
    pub fn index(
        self,
        options: IndexOptions,
        progress: impl FnMut(IndexProgress) + Send + 'static,
    ) -> Result<Catalog> {
        self.index_from(None, options, progress)
    }

    /// [`index`](Self::index) with an inventory in place of a listing of the origin. It is the path
    /// or URL of a `manifest.json` of AWS, or of a table with the columns `key`, `size` and `etag`.
    /// Keys are those of the bucket, or paths below a directory. Keys that are not below the target
    /// are left out.
    ///
    /// # Errors
    /// Those of `index`, and for an inventory that cannot be read, or has nothing of the target.
    #[cfg(feature = "tables")]
    pub fn index_inventory(
        self,
        inventory: impl Into<String>,
        options: IndexOptions,
        progress: impl FnMut(IndexProgress) + Send + 'static,
    ) -> Result<Catalog> {
        self.index_from(Some(inventory.into()), options, progress)
    }

    fn index_from(
        self,
        inventory: Option<String>,
        options: IndexOptions,
        progress: impl FnMut(IndexProgress) + Send + 'static,
    ) -> Result<Catalog> {
        self.run_index(async move |parts: Indexing| {
            let Indexing { targets, registry, context, shared } = &parts;
            let inventory = inventory.as_deref();
            #[cfg(feature = "tables")]
            let options = update::noted(options, &targets.names, inventory, None)?;
            origin::index(targets, inventory, options, registry, context, shared, progress).await
        })
    }

    /// Makes the catalog of the rows of a table, one sample each. The target is the location of
    /// their files. If it is empty, it is what the table's paths have in common, or the directory
    /// of the table. Blocks the thread.
    ///
    /// # Errors
    /// If the table cannot be read or lacks a column, for rows without a file, and those of
    /// [`index`](Self::index).
    #[cfg(feature = "tables")]
    pub fn index_table(
        self,
        table: TableSource,
        table_options: TableOptions,
        options: IndexOptions,
        progress: impl FnMut(IndexProgress) + Send + 'static,
    ) -> Result<Catalog> {
        self.run_index(async move |parts: Indexing| {
            let Indexing { targets, registry, context, shared } = &parts;
            let options = update::noted(options, &targets.names, None, Some((&table, &table_options)))?;
            tables::index(targets, (table, table_options), options, registry, context, shared, progress).await
        })
    }

    /// Repeats the index that made `catalog`, and returns a catalog in which samples have the
    /// numbers they have there ([`Catalog::grown`]). Its target and options are in the catalog, and
    /// this builder's target has no effect. A table that was not read from a file, or has moved, is
    /// given anew. `partial` is [`IndexOptions::partial`]. Blocks the thread.
    ///
    /// # Errors
    /// If the catalog does not say how it was made, or is a part of another. Those of
    /// [`index`](Self::index) and [`Catalog::grown`].
    #[cfg(feature = "tables")]
    pub fn update(
        self,
        catalog: &Catalog,
        table: Option<TableSource>,
        partial: Option<PathBuf>,
        progress: impl FnMut(IndexProgress) + Send + 'static,
    ) -> Result<(Catalog, Growth)> {
        let catalog = catalog.clone();
        self.run_index(async move |parts: Indexing| {
            let Indexing { targets, registry, context, shared } = parts;
            let request = update::IndexRequest::of(&catalog, table, partial)?;
            let listing = request.repeat(targets.storage, &registry, &context, &shared, progress).await?;
            let growing = context.runtime.spawn_blocking(move || catalog.grown(&listing));
            Ok(growing.await.map_err(ended)??)
        })
    }
}
