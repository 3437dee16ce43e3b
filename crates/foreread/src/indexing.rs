//! Catalogs from a builder: an index of its target, of a table, of an inventory, and an update.
//!
//! They share the builder's settings of the storage, its registry and its threads, and plan
//! nothing.

#[cfg(feature = "tables")]
use std::path::PathBuf;

#[cfg(feature = "tables")]
use foreread_dataset::Growth;
use foreread_dataset::{Catalog, IndexOptions, IndexProgress};
use foreread_open::error::Result;
#[cfg(feature = "tables")]
use foreread_open::error::ended;
use foreread_open::origin;
use foreread_open::origin_policy::OriginPolicy;
use foreread_open::registry::Registry;
use foreread_open::target::TargetSpec;
#[cfg(feature = "tables")]
use foreread_open::{tables, update};
use foreread_tier::OpenContext;

use crate::builder::Builder;
use crate::runtime::Workers;
#[cfg(feature = "tables")]
use crate::table::{TableOptions, TableSource};

/// The settings of a builder that an index needs.
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
            let shared = OriginPolicy::new(&self.config.origin_settings(), &context);
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
    /// their files. If it is empty, it is the common part of the table's paths, or the directory of
    /// the table. Blocks the thread.
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

#[cfg(all(test, feature = "tables"))]
mod tests {
    #[test]
    // semantics: SAMPLE-34
    fn inventory_that_is_not_kept_in_memory_is_the_same_catalog() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let mut keys = String::from("key,size\n");
        // Not in the order of names, and with entries that are no samples.
        for number in (0..200).map(|number| number * 77 % 200) {
            std::fs::create_dir_all(data.join(format!("c{}", number % 3))).unwrap();
            std::fs::write(data.join(format!("c{}/{number:03}", number % 3)), [7; 5]).unwrap();
            keys += &format!("c{}/{number:03},5\n", number % 3);
        }
        keys += "c0/,0\n.hidden/x,5\nc1/../x,5\n";
        let table = directory.path().join("keys.csv");
        std::fs::write(&table, &keys).unwrap();
        let index = |in_memory, excluded: &str| {
            let mut options = foreread_dataset::IndexOptions::default().excluding(excluded);
            options.objects_in_memory = in_memory;
            let builder = crate::Builder::new(data.display().to_string(), crate::Config::default());
            let catalog = builder.index_inventory(table.display().to_string(), options, |_| ());
            catalog.map_err(|error| error.to_string())
        };
        for excluded in ["c0/**", "nothing"] {
            let (usual, large) = (index(None, excluded).unwrap(), index(Some(30), excluded).unwrap());
            assert_eq!(usual.len(), if excluded == "nothing" { 200 } else { 133 });
            assert_eq!(usual.fingerprint(), large.fingerprint());
            assert_eq!(usual.labels(), large.labels());
            for id in (0..usual.len()).map(foreread_types::SampleId) {
                assert_eq!(usual.entry(id).unwrap(), large.entry(id).unwrap());
            }
        }
        std::fs::write(&table, keys + "c1/001,5\n").unwrap();
        for in_memory in [None, Some(30)] {
            let error = index(in_memory, "nothing").unwrap_err();
            assert!(error.contains("c1/001") && error.contains("twice"), "{error}");
        }
    }
}
