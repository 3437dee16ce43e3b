//! The columns of an Arrow schema, and the positions of their buffers in each batch.
//!
//! A batch lists the nodes and buffers of all fields in depth-first order, without names. So the
//! position of a column follows from the types of the fields before it.

use std::collections::{BTreeSet, HashSet};

use arrow_ipc::{Endianness, Field, MetadataVersion, Precision, Schema, Type, UnionMode};

use foreread_types::setting;

use super::ArrowOptions;
use crate::columns::{self, Candidate, LabelKind};
use crate::{FormatError, le};

/// The most bytes of all paths. The tables of a schema may share their names.
const MAX_PATHS: usize = 1 << 24;

/// The depth of nested fields. The check of the flatbuffer has the same limit.
const MAX_DEPTH: usize = 64;

/// How the values of a column are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// Offsets of `width` bytes, then the values.
    Offsets { width: u64, is_text: bool },
    /// `width` bytes per value.
    Fixed { width: u64 },
    /// An integer of `width` bytes.
    Integer { width: usize, is_signed: bool },
    /// A number of 4 or 8 bytes with a fraction.
    Float { width: usize },
    /// One bit per value.
    Bit,
    /// A view of 16 bytes per value, which has the value or its place in one of several buffers.
    Views { is_text: bool },
    /// Bytes that a dictionary has.
    Dictionary,
    /// Values that can be neither samples nor labels.
    Other,
}

impl Storage {
    /// Whether the values are text.
    pub(super) fn is_text(self) -> bool {
        matches!(self, Self::Offsets { is_text: true, .. } | Self::Views { is_text: true })
    }
}

/// The position of a field's node and buffers in a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub(super) node: usize,
    /// The first buffer, without those of preceding views.
    pub(super) buffer: usize,
    /// The number of preceding view fields. Each has as many buffers as the batch lists for it.
    pub(super) views: usize,
}

/// A column outside of lists.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) path: String,
    pub(super) storage: Storage,
    pub(super) slot: Slot,
    /// The structs around it, whose nulls are also its nulls.
    pub(super) parents: Vec<Slot>,
}

impl Column {
    /// The kind of its labels, if it can have any.
    pub(super) fn label_kind(&self) -> Option<LabelKind> {
        match self.storage {
            Storage::Offsets { is_text: true, .. } => Some(LabelKind::Text),
            Storage::Integer { .. } | Storage::Bit => Some(LabelKind::Integer),
            Storage::Float { .. } => Some(LabelKind::Float),
            _ => None,
        }
    }

    /// The integer or number at `row`. `None` if the value does not fit in an `i64`.
    pub(super) fn number(&self, values: &[u8], row: usize) -> Option<columns::Label> {
        use columns::Label::{Float, Integer};
        match self.storage {
            Storage::Integer { width, is_signed } => {
                let value = le::uint(values, row.checked_mul(width)?, width)?;
                if !is_signed {
                    return i64::try_from(value).ok().map(Integer);
                }
                Some(Integer(le::signed(value, width)))
            }
            Storage::Float { width } => {
                le::uint(values, row.checked_mul(width)?, width).map(|bits| Float(le::float(bits, width)))
            }
            Storage::Bit => values.get(row / 8).map(|byte| Integer((byte >> (row % 8) & 1).into())),
            _ => None,
        }
    }
}

/// The columns that are read.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) samples: Column,
    pub(super) label: Option<Column>,
    /// Columns whose values samples have.
    pub(super) columns: Vec<Column>,
    /// The reason for no column of labels, if a column has the name.
    pub(super) note: Option<String>,
}

/// Chooses the column of samples and the one of labels.
///
/// # Errors
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) with the candidates or a remedy.
/// [`Damaged`](crate::FormatErrorKind::Damaged) for schemas that Arrow does not permit.
pub(super) fn choose(
    schema: &Schema<'_>,
    version: MetadataVersion,
    at: u64,
    options: &ArrowOptions,
) -> Result<Chosen, FormatError> {
    if schema.endianness() != Endianness::Little {
        return Err(FormatError::unsupported(
            at,
            "the values are big endian: write the file again on a little-endian machine",
        ));
    }
    if version != MetadataVersion::V4 && version != MetadataVersion::V5 {
        return Err(FormatError::unsupported(
            at,
            "the file is older than Arrow 0.8: write it again with a recent pyarrow",
        ));
    }
    let mut walk = Walk { next: Slot::default(), version, paths: 0, columns: Vec::new() };
    for field in schema.fields().into_iter().flatten() {
        walk.field(field, "", Some(&[]), MAX_DEPTH).map_err(|why| FormatError::damaged(at, why))?;
    }
    let mut columns = walk.columns;
    let is_usable = |column: &Column| {
        use Storage::{Dictionary, Fixed, Offsets, Views};
        matches!(column.storage, Offsets { .. } | Fixed { .. } | Views { .. } | Dictionary)
    };
    let usable: Vec<usize> = (0..columns.len()).filter(|&at| is_usable(&columns[at])).collect();
    let candidate =
        |&at: &usize| Candidate { path: &columns[at].path, is_bytes: !columns[at].storage.is_text() };
    let candidates: Vec<_> = usable.iter().map(candidate).collect();
    let chosen = if options.only {
        only(&columns, options.label.as_deref())
    } else {
        columns::choose(&candidates, options.column.as_deref()).map(|index| usable[index])
    };
    let chosen = chosen.map_err(|why| FormatError::unsupported(at, why))?;
    let asked = options.label.as_deref();
    let (label, note) = label(&columns, chosen, asked);
    if let (None, Some(name)) = (&label, asked) {
        return Err(FormatError::unsupported(
            at,
            columns::no_label(name, columns.iter().map(|column| &*column.path)),
        ));
    }
    // Labels have that name already.
    let names: BTreeSet<&String> =
        options.columns.iter().filter(|name| label.is_none() || *name != "label").collect();
    let named = names.into_iter().map(|name| {
        let mut found = columns.iter().filter(|column| column.path == *name);
        let found = found.find(|column| column.label_kind().is_some());
        found.cloned().ok_or_else(|| {
            FormatError::unsupported(at, columns::no_label(name, columns.iter().map(|column| &*column.path)))
        })
    });
    let named = named.collect::<Result<Vec<Column>, _>>()?;
    let samples = columns.swap_remove(chosen);
    match samples.storage {
        Storage::Dictionary => {
            let path = &samples.path;
            let why = format!(
                "column {path} is encoded by a dictionary, so samples share their bytes: write the \
                 file again with the column's dictionary_decode()"
            );
            Err(FormatError::unsupported(at, why))
        }
        Storage::Fixed { width: 0 } => {
            Err(FormatError::damaged(at, format!("the values of column {} have no bytes", samples.path)))
        }
        _ => Ok(Chosen { samples, label, columns: named, note }),
    }
}

/// The only column next to the labels, for samples of LitData.
///
/// # Errors
/// A line with the remedy if there are several or none, or if its values are not bytes or text.
/// Also if the chosen labels are missing. LitData writes no table for tuples.
fn only(columns: &[Column], asked: Option<&str>) -> Result<usize, String> {
    let structs: HashSet<usize> =
        columns.iter().flat_map(|column| &column.parents).map(|slot| slot.node).collect();
    let label = label(columns, columns.len(), asked).0.map(|label| label.slot.node);
    if let (None, Some(name)) = (label, asked) {
        return Err(columns::no_label(name, columns.iter().map(|column| &*column.path)));
    }
    let is_value = |column: &Column| !structs.contains(&column.slot.node) && Some(column.slot.node) != label;
    let values: Vec<usize> = (0..columns.len()).filter(|&at| is_value(&columns[at])).collect();
    let remedy = "write the samples again as tuples";
    match values[..] {
        [only] if matches!(columns[only].storage, Storage::Offsets { .. }) => Ok(only),
        [_] => Err(format!("the values of the samples are not bytes or text: {remedy}")),
        _ => {
            let label = match label {
                Some(_) => "next to its label".to_owned(),
                None => format!("({} chooses its label)", setting("label")),
            };
            Err(format!("a sample has {} values in separate places {label}: {remedy}", values.len()))
        }
    }
}

/// The column of labels, or the reason for none although a column has the name.
fn label(columns: &[Column], samples: usize, asked: Option<&str>) -> (Option<Column>, Option<String>) {
    // Fields of structs are labels only if they are named.
    let is_usable = |column: &Column| asked.is_some() || column.parents.is_empty();
    let top = columns.iter().enumerate().filter(|(at, column)| *at != samples && is_usable(column));
    let ranked = top.filter_map(|(_, column)| {
        Some(((column.label_kind().is_none(), columns::label_rank(&column.path, asked)?), column))
    });
    match ranked.min_by_key(|(rank, _)| *rank) {
        Some(((false, _), column)) => (Some(column.clone()), None),
        Some((_, column)) => (None, Some(columns::no_label_type(&column.path))),
        None => (None, None),
    }
}

/// A depth-first walk over the fields.
struct Walk {
    next: Slot,
    version: MetadataVersion,
    /// The number of bytes of all paths.
    paths: usize,
    columns: Vec<Column>,
}

impl Walk {
    /// Counts the nodes and buffers of a field and its children. `parents` is `None` in lists.
    fn field(
        &mut self,
        field: Field<'_>,
        prefix: &str,
        parents: Option<&[Slot]>,
        depth: usize,
    ) -> Result<(), String> {
        let depth = depth.checked_sub(1).ok_or("its fields are nested too deep")?;
        let slot = self.next;
        self.next.node += 1;
        let name = field.name().unwrap_or_default();
        if let Some(parents) = parents {
            let storage = storage(&field)?;
            let path = joined(prefix, name);
            self.paths += path.len();
            if self.paths > MAX_PATHS {
                return Err("the names of its columns are too long".to_owned());
            }
            self.columns.push(Column { path, storage, slot, parents: parents.to_vec() });
        }
        if field.dictionary().is_some() {
            // Indices, and no children.
            self.next.buffer += 2;
            return Ok(());
        }
        self.next.buffer += self.buffers(&field);
        let kind = field.type_type();
        self.next.views += usize::from(kind == Type::BinaryView || kind == Type::Utf8View);
        let around = parents.filter(|_| kind == Type::Struct_).map(|parents| [parents, &[slot]].concat());
        // Only paths below structs are used.
        let path = if around.is_some() { joined(prefix, name) } else { String::new() };
        self.paths += path.len();
        if self.paths > MAX_PATHS {
            return Err("the names of its columns are too long".to_owned());
        }
        for child in field.children().into_iter().flatten() {
            self.field(child, &path, around.as_deref(), depth)?;
        }
        Ok(())
    }

    /// The number of buffers of a field without those of its children.
    fn buffers(&self, field: &Field<'_>) -> usize {
        match field.type_type() {
            Type::Null | Type::RunEndEncoded => 0,
            Type::Struct_ | Type::FixedSizeList => 1,
            Type::Union => {
                let is_dense = field.type_as_union().is_some_and(|union| union.mode() == UnionMode::Dense);
                // Before version 5 a union had validity bits.
                1 + usize::from(is_dense) + usize::from(self.version == MetadataVersion::V4)
            }
            Type::Binary | Type::Utf8 | Type::LargeBinary | Type::LargeUtf8 => 3,
            Type::ListView | Type::LargeListView => 3,
            _ => 2,
        }
    }
}

fn joined(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

/// How a field's values are stored.
fn storage(field: &Field<'_>) -> Result<Storage, String> {
    let kind = field.type_type();
    if field.dictionary().is_some() {
        let bytes = [Type::Binary, Type::LargeBinary, Type::FixedSizeBinary, Type::BinaryView];
        return Ok(if bytes.contains(&kind) { Storage::Dictionary } else { Storage::Other });
    }
    Ok(match kind {
        Type::Binary => Storage::Offsets { width: 4, is_text: false },
        Type::Utf8 => Storage::Offsets { width: 4, is_text: true },
        Type::LargeBinary => Storage::Offsets { width: 8, is_text: false },
        Type::LargeUtf8 => Storage::Offsets { width: 8, is_text: true },
        Type::BinaryView => Storage::Views { is_text: false },
        Type::Utf8View => Storage::Views { is_text: true },
        Type::FixedSizeBinary => {
            let width = field.type_as_fixed_size_binary().map_or(-1, |fixed| fixed.byteWidth());
            Storage::Fixed { width: u64::try_from(width).map_err(|_| "a width is negative")? }
        }
        Type::Int => {
            let (bits, is_signed) =
                field.type_as_int().map_or((0, true), |int| (int.bitWidth(), int.is_signed()));
            let width = match bits {
                8 => 1,
                16 => 2,
                32 => 4,
                64 => 8,
                other => return Err(format!("it has an integer of {other} bits")),
            };
            Storage::Integer { width, is_signed }
        }
        Type::FloatingPoint => match field.type_as_floating_point().map(|float| float.precision()) {
            Some(Precision::SINGLE) => Storage::Float { width: 4 },
            Some(Precision::DOUBLE) => Storage::Float { width: 8 },
            _ => Storage::Other,
        },
        Type::Bool => Storage::Bit,
        _ => Storage::Other,
    })
}
