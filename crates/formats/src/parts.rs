//! Samples that are several parts after a table of offsets, as in MDS and LitData.
//!
//! A file begins with `u32 n, u32 offset[n + 1]`. A sample is the sizes of its parts, 4 bytes each,
//! and then the parts. Decision: sizes are read only if they cannot be computed, which is so for
//! two parts of variable size. The price of those files is one small read per sample. Labels that
//! are numbers or short texts cost the same, and are read for every file that has one.

use std::sync::Arc;

use crate::columns::{self, Label, LabelKind, SharedTexts};
use crate::element::ElementType;
use crate::found::{Extents, FieldExtent, FoundSamples, ValueColumn};
use crate::{BlockReader, FormatError, le};

/// The size of a block in bytes. A small read of a large sample costs one.
const BLOCK: u64 = 4096;

/// The most bytes of a request that joins small reads.
const REQUEST: u64 = 1 << 20;

/// Samples whose small reads are in memory at once.
const GROUP: usize = 4096;

/// The longest text in bytes that is a label.
const TEXT: u64 = 64;

/// The names of parts that are labels. The first name that a sample has is read.
const LABELS: [&str; 6] = ["label", "labels", "class", "cls", "target", "y"];

/// A reader for small reads.
pub(crate) fn reader(source: &dyn crate::FileSource) -> BlockReader<'_> {
    BlockReader::new(source, BLOCK)
}

/// A part of all samples.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SamplePart {
    pub(crate) name: Arc<str>,
    /// The size in bytes, at least 1, if all samples have the same.
    pub(crate) size: Option<u64>,
    pub(crate) value: PartValue,
}

/// The kind of a part, as far as labels need it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PartValue {
    Number(ElementType),
    Text,
    Other,
}

impl PartValue {
    /// The number of this NumPy type, or `Other` if the name is none.
    pub(crate) fn number(name: &str) -> Self {
        let element = ElementType::parse(name, 0).ok().filter(ElementType::is_number);
        element.map_or(Self::Other, Self::Number)
    }

    /// The value of these bytes. `None` if it cannot be a label: too large for an integer, or no
    /// UTF-8.
    fn label(&self, bytes: &[u8], texts: &mut SharedTexts) -> Option<Label> {
        match self {
            Self::Number(element) => element.number(bytes),
            Self::Text => std::str::from_utf8(bytes).ok().map(|text| Label::Text(texts.share(text))),
            Self::Other => None,
        }
    }
}

/// The sizes that stand at the beginning of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StoredSizes {
    /// Those of parts with a variable size.
    Variable,
    /// Those of all parts.
    All,
}

/// The parts of the samples of a file.
pub(crate) struct SampleLayout {
    parts: Vec<SamplePart>,
    /// The bytes of the stored sizes.
    head: u64,
    /// The sum of the fixed sizes and `head`: the fewest bytes of a sample.
    fewest: u64,
    stored: StoredSizes,
}

impl SampleLayout {
    /// `None` if the sum of the sizes is too large.
    pub(crate) fn new(parts: Vec<SamplePart>, stored: StoredSizes) -> Option<Self> {
        let stored_sizes =
            parts.iter().filter(|part| part.size.is_none() || stored == StoredSizes::All).count();
        let head = stored_sizes as u64 * 4;
        let fewest = parts.iter().try_fold(head, |sum, part| sum.checked_add(part.size.unwrap_or(0)))?;
        Some(Self { parts, head, fewest, stored })
    }

    /// The samples at `rows` with their fields and labels.
    pub(crate) async fn find(
        &self,
        reader: &BlockReader<'_>,
        rows: Vec<(u64, u64)>,
        label: Option<&str>,
        summary: String,
    ) -> Result<FoundSamples, FormatError> {
        let fields = self.fields(reader, &rows).await?;
        let label = self.label(reader, &rows, &fields, label).await?;
        let mut found = FoundSamples::at(Extents::Rows(rows), summary);
        found.fields = Some(fields);
        found.columns.extend(label);
        Ok(found)
    }

    async fn fields(
        &self,
        reader: &BlockReader<'_>,
        rows: &[(u64, u64)],
    ) -> Result<Vec<Vec<FieldExtent>>, FormatError> {
        // A part takes at least one byte of its sample. So this check bounds the memory of all
        // fields.
        let computed = self.parts.iter().filter(|part| part.size.is_none()).count() < 2;
        let exact = self.parts.iter().all(|part| part.size.is_some());
        for (index, &(start, length)) in rows.iter().enumerate() {
            if length < self.fewest || (exact && length > self.fewest) {
                let why = format!("sample {index} has {length} bytes, its parts {}", self.fewest);
                return Err(FormatError::damaged(start, why));
            }
        }
        let mut fields = Vec::with_capacity(rows.len());
        if computed {
            fields.extend(
                rows.iter()
                    .map(|&(_, length)| self.place(|part, _| part.size.unwrap_or(length - self.fewest))),
            );
            return Ok(fields);
        }
        for group in rows.chunks(GROUP) {
            let heads: Vec<(u64, u64)> = group.iter().map(|&(start, _)| (start, self.head)).collect();
            let heads = reader.read_all(&heads, REQUEST).await?;
            for (&(start, length), head) in group.iter().zip(heads) {
                let placed = self.place(|part, slot| match part.size {
                    Some(size) => size,
                    None => le::u32(&head, slot * 4).map_or(0, u64::from),
                });
                let end = placed.last().map_or(self.head, |last| last.offset + last.length);
                if end != length {
                    let why = format!("sample {} has {length} bytes, its parts {end}", fields.len());
                    return Err(FormatError::damaged(start, why));
                }
                fields.push(placed);
            }
        }
        Ok(fields)
    }

    /// The fields of one sample. `size` has a part and the number of its stored size.
    fn place(&self, size: impl Fn(&SamplePart, usize) -> u64) -> Vec<FieldExtent> {
        let (mut offset, mut slot) = (self.head, 0);
        let place = |part: &SamplePart| {
            let length = size(part, slot);
            let field = FieldExtent { name: Arc::clone(&part.name), offset, length };
            offset += length;
            slot += usize::from(part.size.is_none() || self.stored == StoredSizes::All);
            field
        };
        self.parts.iter().map(place).collect()
    }

    /// The labels: of the part that was chosen, or of one with a usual name. None if no part is
    /// one.
    async fn label(
        &self,
        reader: &BlockReader<'_>,
        rows: &[(u64, u64)],
        fields: &[Vec<FieldExtent>],
        chosen: Option<&str>,
    ) -> Result<Option<ValueColumn>, FormatError> {
        let named = |name: &&str| self.parts.iter().position(|part| *part.name == **name);
        let index = match chosen {
            Some(name) => {
                let why = || FormatError::unsupported(0, format!("samples have no part {name:?} for labels"));
                Some(named(&name).ok_or_else(why)?)
            }
            None => LABELS.iter().find_map(named),
        };
        let Some(index) = index else { return Ok(None) };
        let part = &self.parts[index];
        let short = |fields: &Vec<FieldExtent>| fields.get(index).is_some_and(|field| field.length <= TEXT);
        let kind = match &part.value {
            PartValue::Number(element) if part.size == Some(element.size()) => match element.is_float() {
                true => LabelKind::Float,
                false => LabelKind::Integer,
            },
            PartValue::Text if fields.iter().all(short) => LabelKind::Text,
            _ => return Ok(None),
        };
        let (mut values, mut texts) = (columns::no_labels(kind), SharedTexts::default());
        for (rows, fields) in rows.chunks(GROUP).zip(fields.chunks(GROUP)) {
            let place = |(row, fields): (&(u64, u64), &Vec<FieldExtent>)| {
                let field = fields.get(index)?;
                Some((row.0 + field.offset, field.length))
            };
            let ranges: Vec<(u64, u64)> = rows.iter().zip(fields).filter_map(place).collect();
            for bytes in reader.read_all(&ranges, REQUEST).await? {
                let Some(label) = part.value.label(&bytes, &mut texts) else { return Ok(None) };
                columns::push_label(&mut values, Some(label));
            }
        }
        Ok((!values.is_empty()).then(|| ValueColumn { name: "label".to_owned(), values }))
    }
}

/// Reads the table of offsets at the beginning of a file. `samples` is the number of the index.
/// Returns where the samples lie, and the offset after the last one.
pub(crate) async fn table(
    reader: &BlockReader<'_>,
    samples: u64,
) -> Result<(Vec<(u64, u64)>, u64), FormatError> {
    let size = reader.size();
    let first = samples.checked_mul(4).and_then(|length| length.checked_add(8));
    let first = first.filter(|&first| first <= size).ok_or_else(|| FormatError::cut_short(0, size))?;
    let bytes = reader.read(0, first).await?;
    let cut = || FormatError::cut_short(0, size);
    let count = le::u32(&bytes, 0).ok_or_else(cut)?;
    if u64::from(count) != samples {
        let why = format!("the file has {count} samples, its index {samples}: they do not belong together");
        return Err(FormatError::damaged(0, why));
    }
    let mut start = u64::from(le::u32(&bytes, 4).ok_or_else(cut)?);
    if start < first || start > size {
        let why = format!("the samples begin at {start}: expected {first} to {size}");
        return Err(FormatError::damaged(4, why));
    }
    let mut rows = Vec::with_capacity(samples as usize);
    for (index, entry) in bytes.get(8..).unwrap_or_default().chunks_exact(4).enumerate() {
        let end = le::u32(entry, 0).map_or(0, u64::from);
        if end < start || end > size {
            let why = format!("sample {index} ends at {end}: expected {start} to {size}");
            return Err(FormatError::damaged(8 + index as u64 * 4, why));
        }
        rows.push((start, end - start));
        start = end;
    }
    Ok((rows, start))
}

/// Checks the name of a file in an index. A name that leads out of its folder is refused.
pub(crate) fn check_name(name: &str) -> Result<(), FormatError> {
    let climbs = name.split(['/', '\\']).any(|part| part == "..");
    if name.is_empty() || name.starts_with(['/', '\\']) || name.contains('\0') || climbs {
        let why = format!("the index names the file '{}': expected a path in its folder", shown(name));
        return Err(FormatError::damaged(0, why));
    }
    Ok(())
}

/// A text of a file for a message: one line of at most 100 characters.
pub(crate) fn shown(text: &str) -> String {
    let mut shown: String = text.escape_debug().take(100).collect();
    if shown.len() >= 100 {
        shown.push_str("...");
    }
    shown
}

/// Names for a summary: one line.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    let mut listed: Vec<String> = names.by_ref().take(10).map(shown).collect();
    let more = names.count();
    if more > 0 {
        listed.push(format!("{more} more"));
    }
    listed.join(", ")
}

/// The error of an index that is no valid JSON, or has other keys.
pub(crate) fn invalid_json(what: &str, json: &[u8], error: &serde_json::Error) -> FormatError {
    let lines = json.split_inclusive(|&byte| byte == b'\n');
    let before: usize = lines.take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
    let why = format!("not an index.json of {what}: {}", shown(&error.to_string()));
    FormatError::damaged((before + error.column()) as u64, why)
}
