//! The position and type of columns of values in a batch of a catalog file.

use arrow_ipc::{Field, FloatingPoint, Precision, Type};

use crate::catalog_file::layout::column::{NumberColumn, TextColumn};

/// The type of a column of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    Integer,
    Float,
    Text,
    /// A text that stays in the catalog's file.
    LongText,
    /// Values of this many bytes.
    Bytes(usize),
}

impl ValueKind {
    /// The bytes of a row. `None` for texts, which have many lengths.
    pub(crate) fn width(self) -> Option<usize> {
        match self {
            Self::Integer | Self::Float => Some(8),
            Self::Text => Some(4),
            Self::LongText => None,
            Self::Bytes(width) => Some(width),
        }
    }

    pub(crate) fn of(field: &Field<'_>) -> Option<Self> {
        match field.type_type() {
            Type::Utf8 if is_dictionary(field) => Some(Self::Text),
            _ if field.dictionary().is_some() => None,
            Type::Utf8 => Some(Self::LongText),
            Type::Int => field
                .type_as_int()
                .filter(|int| int.bitWidth() == 64 && int.is_signed())
                .map(|_| Self::Integer),
            Type::FloatingPoint => {
                let is_double = |float: &FloatingPoint<'_>| float.precision() == Precision::DOUBLE;
                field.type_as_floating_point().filter(is_double).map(|_| Self::Float)
            }
            Type::FixedSizeBinary => {
                let width = field.type_as_fixed_size_binary()?.byteWidth();
                usize::try_from(width).ok().filter(|width| *width > 0).map(Self::Bytes)
            }
            _ => None,
        }
    }
}

/// A column of values in the schema.
#[derive(Clone, Debug)]
pub(crate) struct ValueField {
    pub(crate) name: String,
    pub(crate) kind: ValueKind,
    pub(crate) dictionary: Option<i64>,
}

/// A column of values in a batch.
#[derive(Debug)]
pub(crate) struct ValueLayout {
    pub(crate) kind: ValueKind,
    pub(crate) column: ValuesLayout,
}

/// The position of a column of values.
#[derive(Debug)]
pub(crate) enum ValuesLayout {
    Numbers(NumberColumn),
    Texts(TextColumn),
}

/// Whether a column has numbers of texts.
pub(crate) fn is_dictionary(field: &Field<'_>) -> bool {
    let index = field.dictionary().and_then(|dictionary| dictionary.indexType());
    field.type_type() == Type::Utf8 && index.is_some_and(|int| int.bitWidth() == 32 && int.is_signed())
}
