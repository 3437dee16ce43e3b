//! The samples of a catalog that meet conditions on its values.

use foreread_dataset::{Catalog, DatasetError, DatasetErrorKind};
use foreread_types::SampleId;

use crate::filter::mask;
use crate::{Filter, SampleTable, TableKind, TableOptions};

/// The prefix of the names of values in a catalog's file.
const VALUE: &str = "value.";

/// The numbers of the samples of a catalog that meet all conditions of one of these lists. They
/// are conditions on `path`, `label`, `length` and the names of values.
///
/// # Errors
/// [`DatasetErrorKind::Unsupported`] for a catalog of computed samples, which have no values. Those
/// of [`Catalog::to_bytes`], and of conditions that do not fit a column.
pub fn matching(catalog: &Catalog, any: &[Vec<Filter>]) -> Result<Vec<u64>, DatasetError> {
    let name = format!("the catalog of {}", catalog.base_url());
    let path = if catalog.format().is_packed() { "object" } else { "path" };
    let all = TableOptions { path: Some(path.to_owned()), ..TableOptions::default() };
    let table = SampleTable::read(&name, TableKind::Arrow, catalog.with_gone().to_bytes()?, &all)?;
    if table.len() as u64 != catalog.with_gone().len() {
        let message = format!("{name}: its samples are computed and have no values to choose by");
        return Err(DatasetError::new(DatasetErrorKind::Unsupported, message));
    }
    // The label has its name in the table, too.
    let label =
        catalog.label_column().filter(|column| !catalog.value_names().iter().any(|name| name == column));
    // A value of a name that the catalog has too is the table's.
    let table = table.values_first(VALUE);
    let table = match label {
        Some(column) => table.with_alias(column, "label"),
        None => table,
    };
    let found = mask(&table, any)?;
    let meets = |id: &u64| match (&found, catalog.number(SampleId(*id))) {
        (Some(found), Some(number)) => found.value(number as usize),
        _ => true,
    };
    Ok((0..catalog.len()).filter(meets).collect())
}
