//! The columns that a catalog file has, by its schema.
//!
//! Their order is fixed, and each has one type. The price: a schema with another order is refused.

use arrow_ipc::{Field, Schema, TimeUnit, Type};

use crate::SampleChecksum;
use crate::catalog_file::column_names;
use crate::catalog_file::fault::{CatalogFault, corrupt};
use crate::catalog_file::layout::values::{ValueField, ValueKind, is_dictionary};

/// The columns that exist, with the numbers of their dictionaries.
#[derive(Clone, Debug)]
pub(crate) struct ColumnSet {
    pub(super) packed: bool,
    /// Whether rows have the size of their object.
    pub(super) sized: bool,
    pub(super) runs: bool,
    pub(crate) label: Option<i64>,
    pub(crate) object: Option<i64>,
    pub(crate) etags: Option<i64>,
    pub(super) key: bool,
    pub(super) modified: bool,
    pub(super) changed: bool,
    pub(super) etag: bool,
    pub(super) fields: bool,
    pub(super) files: bool,
    pub(super) crc32c: bool,
    pub(crate) server: bool,
    pub(super) made: bool,
    pub(super) parts: bool,
    pub(crate) values: Vec<ValueField>,
}

impl ColumnSet {
    /// Checks that the columns are those of a catalog.
    pub(crate) fn of(schema: &Schema<'_>) -> Result<Self, CatalogFault> {
        let mut fields = schema.fields().into_iter().flatten().peekable();
        let mut next = |name: &str, fits: fn(&Field<'_>) -> bool| {
            fields.next_if(|field| field.name() == Some(name) && fits(field))
        };
        let dictionary =
            |field: Option<Field<'_>>| field.and_then(|field| field.dictionary()).map(|it| it.id());
        let text = |field: &Field<'_>| is_plain(field, Type::Utf8);
        let object = dictionary(next("object", is_dictionary));
        let packed = object.is_some();
        let named = next(if packed { "key" } else { "path" }, text).is_some();
        let extent = next("offset", is_length).is_some() && next("length", is_length).is_some();
        let runs = packed && next("stride", is_length).is_some() && next("samples", is_length).is_some();
        let sized = next("object_size", is_length).is_some();
        let label = dictionary(next(column_names::LABEL, is_dictionary));
        let has_place = if packed { sized } else { label.is_some() && named };
        let modified = next("modified", is_time).is_some();
        let changed = modified && next(column_names::CHANGED, is_narrow).is_some();
        let etags = if packed { dictionary(next("etag", is_dictionary)) } else { None };
        let etag = !packed && next("etag", text).is_some();
        let has_fields = next("fields", is_fields).is_some();
        let files = !packed && has_fields && next(column_names::FILES, text).is_some();
        let is_crc32c = packed && next(SampleChecksum::CRC32C, is_narrow).is_some();
        let crc32c = is_crc32c || packed && next(SampleChecksum::CRC32, is_narrow).is_some();
        let server = next(column_names::SERVER, is_narrow).is_some();
        let [stored, decoded, slice, recipe] = column_names::MADE;
        let made = packed && next(stored, is_length).is_some();
        let is_complete = !made
            || [decoded, slice].iter().all(|name| next(name, is_length).is_some())
                && next(recipe, is_narrow).is_some();
        let parts = made && next(column_names::PARTS, |field| is_plain(field, Type::Binary)).is_some();
        let value = |field: Field<'_>| {
            let name = field.name()?.strip_prefix(column_names::VALUE_PREFIX)?.to_owned();
            let dictionary = field.dictionary().map(|it| it.id());
            Some(ValueField { name, kind: ValueKind::of(&field)?, dictionary })
        };
        let values: Option<Vec<ValueField>> = fields.map(value).collect();
        let key = packed && named;
        let has_columns = key || has_fields || crc32c || server || made || label.is_some();
        let fits = |values: &Vec<ValueField>| !runs || (values.is_empty() && !has_columns);
        let Some(values) = values
            .filter(fits)
            .filter(|_| packed || has_fields == files)
            .filter(|_| extent && has_place && is_complete)
        else {
            return Err(corrupt("its columns are not those of a catalog"));
        };
        let fields = has_fields;
        Ok(Self {
            packed,
            sized,
            runs,
            label,
            object,
            etags,
            key,
            modified,
            changed,
            etag,
            fields,
            files,
            crc32c,
            server,
            made,
            parts,
            values,
        })
    }
}

fn is_plain(field: &Field<'_>, kind: Type) -> bool {
    field.type_type() == kind && field.dictionary().is_none()
}

fn is_unsigned(field: &Field<'_>, bits: i32) -> bool {
    is_plain(field, Type::Int)
        && field.type_as_int().is_some_and(|int| int.bitWidth() == bits && !int.is_signed())
}

fn is_length(field: &Field<'_>) -> bool {
    is_unsigned(field, 64)
}

fn is_narrow(field: &Field<'_>) -> bool {
    is_unsigned(field, 32)
}

fn is_time(field: &Field<'_>) -> bool {
    is_plain(field, Type::Timestamp)
        && field.type_as_timestamp().is_some_and(|time| time.unit() == TimeUnit::NANOSECOND)
}

fn children<'a>(field: &Field<'a>) -> Vec<Field<'a>> {
    field.children().into_iter().flatten().collect()
}

/// A list of (name, offset, length).
fn is_fields(field: &Field<'_>) -> bool {
    if !is_plain(field, Type::List) {
        return false;
    }
    let [item] = &children(field)[..] else { return false };
    if !is_plain(item, Type::Struct_) {
        return false;
    }
    let [name, offset, length] = &children(item)[..] else { return false };
    is_plain(name, Type::Utf8) && is_length(offset) && is_length(length)
}
