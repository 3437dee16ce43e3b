//! Tables of samples: which files a dataset has, with their labels and values.
//!
//! A [`SampleTable`] is read from CSV, TSV, JSON lines, Parquet or Arrow, or made of Arrow batches.
//! [`TableOptions`] choose the column of the paths, the label, values and rows.
//! [`Catalog::of_table`](foreread_dataset::Catalog::of_table) makes a catalog of the result,
//! [`TableRows`](foreread_dataset::TableRows).
//!
//! Decision: files are parsed by Arrow's readers, and no parser is ours. Texts of CSV become
//! integers or numbers if the whole column is, as in pandas, unless one has a leading zero. The
//! price: a table is in memory as a whole while its catalog is made.
//!
//! ```
//! use foreread_tables::{SampleTable, TableKind, TableOptions};
//!
//! # fn main() -> Result<(), foreread_dataset::DatasetError> {
//! let text = "file,class,split\na.jpg,cat,train\nb.jpg,dog,test\nc.jpg,dog,train\n";
//! let mut options = TableOptions::default();
//! options.path = Some("file".into());
//! options.label = Some("class".into());
//! options.filters = vec![vec!["split==train".parse()?]];
//! let table = SampleTable::read("train.csv", TableKind::Csv, text.into(), &options)?;
//! assert_eq!(table.rows(&options)?.len(), 2);
//! # Ok(())
//! # }
//! ```

mod column;
mod filter;
mod inventory;
mod kind;
mod options;
mod read;
mod rows;
mod selection;

pub use filter::{Comparison, Filter, FilterValue};
pub use inventory::{InventoryManifest, InventoryObject, InventoryParts, inventory};
pub use kind::TableKind;
pub use options::TableOptions;
pub use read::SampleTable;
pub use selection::matching;
