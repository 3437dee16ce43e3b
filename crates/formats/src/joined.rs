//! Samples with a value of each of several columns: an image and its mask.
//!
//! A sample is the value of the first column in a row, then those of the next ones, each a named
//! field. The values stay where they are, and are parts of the sample. A row that lacks one of them
//! is no sample. The price: places that could be computed are stored one by one.

use std::sync::Arc;

use foreread_types::Decoder;

use crate::{Extents, FieldExtent, FormatError, FoundSamples, MadeRow, MadeRows};

/// The most columns of a sample.
const MOST_COLUMNS: usize = 64;

/// The most rows. Each takes some 100 bytes per column while a file is indexed.
const MOST_SAMPLES: u64 = 1 << 26;

/// The values of one column.
pub(crate) struct JoinedColumn {
    pub(crate) name: Arc<str>,
    pub(crate) extents: Extents,
    pub(crate) made: Option<MadeRows>,
    /// Runs of rows, and whether they have a value.
    pub(crate) present: Vec<(u64, bool)>,
}

/// The names of columns as fields: the user's names for them, without the `bytes` of a struct.
///
/// # Errors
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) for too many columns, a column named twice,
/// or a column that is a value, too.
pub(crate) fn names<'a>(
    columns: impl Iterator<Item = &'a str>,
    values: &[String],
) -> Result<Vec<Arc<str>>, FormatError> {
    let names: Vec<Arc<str>> =
        columns.map(|column| Arc::from(column.strip_suffix(".bytes").unwrap_or(column))).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    if names.len() > MOST_COLUMNS || sorted.array_windows().any(|[a, b]| a == b) {
        let why = format!("a sample has at most {MOST_COLUMNS} columns, each once");
        return Err(FormatError::unsupported(0, why));
    }
    if let Some(both) =
        names.iter().find(|name| names.len() > 1 && values.iter().any(|value| **value == ***name))
    {
        let why = format!("the column {both:?} is a field and a value: leave out one of them");
        return Err(FormatError::unsupported(0, why));
    }
    Ok(names)
}

/// A value: offset, length, how it is made.
type ValuePlace = (u64, u64, MadeRow);

/// The values of a column, and the lists of decoders that they name.
fn places(extents: Extents, made: Option<MadeRows>) -> (Vec<ValuePlace>, Vec<Vec<Decoder>>) {
    let places: Vec<(u64, u64)> = match extents {
        Extents::Rows(rows) => rows,
        Extents::Runs(runs) => {
            let of_run =
                |run: crate::Run| (0..run.count).map(move |at| (run.start + at * run.stride, run.length));
            runs.into_iter().flat_map(of_run).collect()
        }
    };
    let MadeRows { recipes, rows, .. } = made.unwrap_or_default();
    let value = |(row, (offset, length)): (usize, (u64, u64))| {
        (offset, length, rows.get(row).copied().unwrap_or_else(|| MadeRow::plain(length)))
    };
    (places.into_iter().enumerate().map(value).collect(), recipes)
}

/// Joins columns with as many rows. Also returns the runs of rows with and without a sample.
///
/// # Errors
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) for more samples than can be joined.
pub(crate) fn join(columns: Vec<JoinedColumn>) -> Result<(FoundSamples, Vec<(u64, bool)>), FormatError> {
    let rows = |column: &JoinedColumn| column.present.iter().map(|run| run.0).fold(0, u64::saturating_add);
    if columns.iter().any(|column| rows(column) > MOST_SAMPLES) {
        let why = format!("a column has more than {MOST_SAMPLES} rows: index the columns separately");
        return Err(FormatError::unsupported(0, why));
    }
    let (mut made, mut extents, mut fields) = (MadeRows::default(), Vec::new(), Vec::new());
    let (mut present, mut skipped): (Vec<(u64, bool)>, u64) = (Vec::new(), 0);
    let mut lists: Vec<_> = columns
        .into_iter()
        .map(|JoinedColumn { name, extents, made, present }| {
            let (values, recipes) = places(extents, made);
            let is_there =
                present.into_iter().flat_map(|(count, is_there)| (0..count).map(move |_| is_there));
            (name, values.into_iter(), recipes, is_there)
        })
        .collect();
    loop {
        let of_row: Option<Vec<bool>> = lists.iter_mut().map(|list| list.3.next()).collect();
        let Some(of_row) = of_row else { break };
        // A column's values are only of rows that have one.
        let mut parts = Vec::with_capacity(lists.len());
        for ((_, values, recipes, _), is_there) in lists.iter_mut().zip(&of_row) {
            if let Some((offset, length, row)) = is_there.then(|| values.next()).flatten() {
                let recipe = row.recipe.and_then(|recipe| recipes.get(recipe as usize));
                parts.push((
                    offset,
                    length,
                    MadeRow { recipe: recipe.map(|steps| made.recipe(steps)), ..row },
                ));
            }
        }
        let is_whole = parts.len() == lists.len();
        match present.last_mut() {
            Some((count, last)) if *last == is_whole => *count += 1,
            _ => present.push((1, is_whole)),
        }
        if !is_whole {
            skipped += 1;
            continue;
        }
        let mut offset = 0_u64;
        let mut field = |(name, length): (&Arc<str>, u64)| {
            let extent = FieldExtent { name: Arc::clone(name), offset, length };
            offset = offset.saturating_add(length);
            extent
        };
        fields.push(
            lists.iter().map(|list| &list.0).zip(parts.iter().map(|part| part.1)).map(&mut field).collect(),
        );
        extents.push(made.push_parts(parts));
    }
    let found = FoundSamples::at(Extents::Rows(extents), "");
    Ok((FoundSamples { made: Some(made), fields: Some(fields), skipped, ..found }, present))
}
