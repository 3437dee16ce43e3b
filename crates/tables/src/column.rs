//! The columns of tables as the few types that catalogs have.

use arrow_array::{
    Array, ArrayRef, FixedSizeBinaryArray, Float64Array, Int64Array, LargeStringArray, UInt64Array,
    make_array,
};
use arrow_array::{FixedSizeListArray, LargeListArray};
use arrow_cast::{CastOptions, can_cast_types, cast_with_options};
use arrow_schema::{ArrowError, DataType};
use foreread_dataset::{ArrayType, TableColumn};

/// The values of one column.
#[derive(Clone, Debug)]
pub(crate) enum Column {
    Integers(Int64Array),
    Floats(Float64Array),
    Texts(LargeStringArray),
    /// Numbers of one count and type: NumPy's name of the type, the shape, and each value's bytes.
    Arrays(ArrayType, FixedSizeBinaryArray),
}

impl Column {
    pub(crate) fn array(&self) -> &dyn Array {
        match self {
            Self::Integers(array) => array,
            Self::Floats(array) => array,
            Self::Texts(array) => array,
            Self::Arrays(_, array) => array,
        }
    }

    /// The type of the values, for a message.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Integers(_) => "integers",
            Self::Floats(_) => "numbers",
            Self::Texts(_) => "texts",
            Self::Arrays(..) => "lists",
        }
    }

    pub(crate) fn into_table(self) -> TableColumn {
        match self {
            Self::Integers(array) => TableColumn::Integers(array),
            Self::Floats(array) => TableColumn::Floats(array),
            Self::Texts(array) => TableColumn::Texts(array),
            Self::Arrays(kind, array) => TableColumn::Arrays(kind, array),
        }
    }

    /// The column with these values. Texts of a file without types become numbers if all of them
    /// are (`is_untyped`).
    ///
    /// # Errors
    /// Why catalogs cannot have them.
    pub(crate) fn of(array: &ArrayRef, is_untyped: bool) -> Result<Self, String> {
        let to = |kind: &DataType| cast(array, kind).map_err(|error| error.to_string());
        match array.data_type() {
            DataType::Boolean
            | DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::UInt8
            | DataType::UInt16
            | DataType::UInt32
            | DataType::UInt64 => Ok(Self::Integers(to(&DataType::Int64)?.to_data().into())),
            DataType::Float16 | DataType::Float32 | DataType::Float64 => {
                Ok(Self::Floats(to(&DataType::Float64)?.to_data().into()))
            }
            DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) => {
                Ok(Self::Floats(to(&DataType::Float64)?.to_data().into()))
            }
            DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => lists(array),
            DataType::Dictionary(_, values) => Self::of(&to(values)?, is_untyped),
            // A column of nothing.
            DataType::Null => Ok(Self::Floats(Float64Array::new_null(array.len()))),
            kind if can_cast_types(kind, &DataType::LargeUtf8) && !kind.is_nested() => {
                let texts: LargeStringArray = to(&DataType::LargeUtf8)?.to_data().into();
                Ok(if is_untyped { numbers(texts) } else { Self::Texts(texts) })
            }
            kind if kind.is_nested() => {
                Err("it has structs or lists of lists; name columns of its parts instead".to_owned())
            }
            kind => Err(format!("its type {kind} has no place in a catalog")),
        }
    }
}

fn cast(array: &dyn Array, kind: &DataType) -> Result<ArrayRef, ArrowError> {
    // Without `safe`, a value that does not fit is an error and not a missing value.
    cast_with_options(array, kind, &CastOptions { safe: false, ..CastOptions::default() })
}

/// Texts as texts, whatever type they have.
pub(crate) fn texts(array: &ArrayRef) -> Result<LargeStringArray, String> {
    let texts = cast(array, &DataType::LargeUtf8).map_err(|error| error.to_string())?;
    Ok(texts.to_data().into())
}

/// Texts as integers or numbers, if all of them are. Texts with leading zeros are texts, because
/// `007` is a name.
fn numbers(texts: LargeStringArray) -> Column {
    let is_name = |text: &str| {
        let digits = text.trim_start_matches('-');
        digits.len() > 1 && digits.starts_with('0') && digits.as_bytes()[1].is_ascii_digit()
    };
    if texts.iter().flatten().any(is_name) || texts.null_count() == texts.len() {
        return Column::Texts(texts);
    }
    // Texts among numbers that pandas takes for missing values.
    let is_missing = |text: &str| ["NA", "N/A", "NaN", "nan", "null", "NULL", "None"].contains(&text);
    let present: LargeStringArray = texts.iter().map(|text| text.filter(|text| !is_missing(text))).collect();
    if let Ok(integers) = cast(&present, &DataType::Int64) {
        return Column::Integers(integers.to_data().into());
    }
    // Integers that are too long are names.
    let is_integer = |text: &str| {
        let digits = text.trim_start_matches(['-', '+']);
        digits.len() > 18 && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    if present.iter().flatten().any(is_integer) {
        return Column::Texts(texts);
    }
    match cast(&present, &DataType::Float64) {
        Ok(floats) => Column::Floats(floats.to_data().into()),
        Err(_) => Column::Texts(texts),
    }
}

/// Counts that no file exceeds.
pub(crate) fn counts(array: &ArrayRef) -> Result<UInt64Array, String> {
    let counts = match Column::of(array, true)? {
        Column::Integers(integers) => cast(&integers, &DataType::UInt64),
        // pandas has numbers with fractions where a value is missing.
        Column::Floats(floats) if floats.iter().flatten().all(|value| value.fract() == 0.0) => {
            cast(&floats, &DataType::UInt64)
        }
        column => return Err(format!("it has {} instead of counts of bytes", column.kind())),
    };
    let counts = counts.map_err(|_| "some counts of bytes are negative".to_owned())?;
    Ok(counts.to_data().into())
}

/// Lists of numbers as arrays, if all have one length.
fn lists(array: &ArrayRef) -> Result<Column, String> {
    let (inner, ends): (ArrayRef, Vec<usize>) = match array.data_type() {
        DataType::FixedSizeList(_, length) => {
            let list: FixedSizeListArray = array.to_data().into();
            let length = usize::try_from(*length).unwrap_or(0);
            (list.values().clone(), (0..=list.len()).map(|row| row * length).collect())
        }
        DataType::List(inner) | DataType::LargeList(inner) => {
            let list = cast(array, &DataType::LargeList(inner.clone())).map_err(|error| error.to_string())?;
            let list: LargeListArray = list.to_data().into();
            (list.values().clone(), list.offsets().iter().map(|end| *end as usize).collect())
        }
        _ => return Err("it has no lists".to_owned()),
    };
    if array.null_count() > 0 {
        return Err("some rows have no list".to_owned());
    }
    let count = ends.get(1).map_or(0, |end| end - ends[0]);
    if let Some(row) = ends.windows(2).position(|of| of[1] - of[0] != count) {
        let other = ends[row + 1] - ends[row];
        return Err(format!(
            "its lists have several lengths (row 1 has {count} values, row {} has {other}); a catalog has \
             arrays of one shape: put others into files, and put batches of them together with `collate_fn`",
            row + 1
        ));
    }
    let (first, last) = (ends.first().copied().unwrap_or(0), ends.last().copied().unwrap_or(0));
    let inner = inner.slice(first, last - first);
    let (dtype, width, kind) = match inner.data_type() {
        DataType::Int8 => ("|i1", 1, DataType::Int8),
        DataType::UInt8 => ("|u1", 1, DataType::UInt8),
        DataType::Int16 => ("<i2", 2, DataType::Int16),
        DataType::Int32 => ("<i4", 4, DataType::Int32),
        DataType::Int64 => ("<i8", 8, DataType::Int64),
        DataType::Float16 => ("<f2", 2, DataType::Float16),
        DataType::Float32 => ("<f4", 4, DataType::Float32),
        DataType::Float64 => ("<f8", 8, DataType::Float64),
        DataType::Boolean => ("|u1", 1, DataType::UInt8),
        other => return Err(format!("its lists have values of the type {other}, which are no numbers")),
    };
    if inner.null_count() > 0 {
        return Err("some lists have missing values".to_owned());
    }
    if count == 0 {
        return Err("its lists are empty".to_owned());
    }
    let plain = cast(&inner, &kind).map_err(|error| error.to_string())?;
    let data = plain.to_data();
    let start = data.offset() * width;
    let bytes = data.buffers()[0].slice_with_length(start, plain.len() * width);
    let size = i32::try_from(count * width).map_err(|_| "its lists are too long".to_owned())?;
    let array = FixedSizeBinaryArray::try_new(size, bytes, None).map_err(|error| error.to_string())?;
    let shape = vec![Some(count as u64)];
    Ok(Column::Arrays(ArrayType { dtype: dtype.to_owned(), shape }, array))
}

/// An empty array of a type, for columns without batches.
pub(crate) fn empty(kind: &DataType) -> ArrayRef {
    make_array(arrow_array::new_empty_array(kind).to_data())
}
