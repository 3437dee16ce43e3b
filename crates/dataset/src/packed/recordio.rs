//! RecordIO of MXNet is a sequence of records: `magic: u32 LE, kind and length: u32 LE, data`,
//! padded to 4 bytes. Data that has the magic at a multiple of 4 bytes is stored in parts without
//! it: kind 1 for the first part, 2 for those between, and 3 for the last one. 0 is a whole record.
//!
//! So the magic always begins a part, and a scan may start anywhere. A record of several parts is a
//! sample of several parts. The magic between them is taken from the head of the next part.
//!
//! Records of images begin with a header (`IRHeader`): `flag: u32, label: f32, id: u64, id2: u64`,
//! then `flag` labels. Nothing in the file tells whether records have it. So it is taken for one if
//! an image follows it in the first record that has more. Then the samples are the images, and the
//! labels are in the catalog. Records with a header alone are left out: InsightFace writes them for
//! its identities. The price is a choice (`record`, `data`) for files where this is wrong.

use std::borrow::Cow;

use foreread_formats::{
    ArrayType, ColumnValues, Extents, FormatError, FoundSamples, MadeRow, MadeRows, ValueColumn,
    found::MOST_PARTS,
};
use foreread_types::setting;

use super::scan::{MemberScan, ParseStep, ShardMember, ShardParser};
use super::shard_error::{compressed, compression};

/// The bytes before each part.
const MAGIC: [u8; 4] = 0xced7_230a_u32.to_le_bytes();

/// The bytes of a part's head: the magic, its kind and its length.
const HEAD: usize = 8;

/// The bytes of an image's header without further labels.
const IMAGE_HEAD: usize = 24;

/// The bytes of an image that show its format.
const IMAGE_START: usize = 12;

/// The most labels of a record.
const MOST_LABELS: usize = 1024;

/// The position of a part in its record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PartKind {
    #[default]
    Whole,
    First,
    Middle,
    Last,
}

impl PartKind {
    const fn begins(self) -> bool {
        matches!(self, Self::Whole | Self::First)
    }

    const fn ends(self) -> bool {
        matches!(self, Self::Whole | Self::Last)
    }
}

/// The kind and the length in a part's head. `None` if it is none.
fn part(head: &[u8]) -> Option<(PartKind, usize)> {
    let word = u32::from_le_bytes(*head.strip_prefix(&MAGIC)?.first_chunk()?);
    let kind = match word >> 29 {
        0 => PartKind::Whole,
        1 => PartKind::First,
        2 => PartKind::Middle,
        3 => PartKind::Last,
        _ => return None,
    };
    Some((kind, (word & 0x1fff_ffff) as usize))
}

/// The first `count` bytes of the record whose head begins `bytes`, or all of them if it is
/// shorter. An error has the number of bytes that are needed.
fn beginning(bytes: &[u8], count: usize) -> Result<Vec<u8>, u64> {
    let (mut found, mut at) = (Vec::with_capacity(count), 0);
    loop {
        let data = at + HEAD;
        let head = bytes.get(at..data).ok_or(data as u64)?;
        // The scan reports a part that is damaged.
        let Some((kind, length)) = part(head) else { return Ok(found) };
        let end = data + length.min(count - found.len());
        found.extend_from_slice(bytes.get(data..end).ok_or(end as u64)?);
        if kind.ends() || found.len() == count {
            return Ok(found);
        }
        found.extend_from_slice(&MAGIC[..MAGIC.len().min(count - found.len())]);
        if found.len() == count {
            return Ok(found);
        }
        at = data + length.next_multiple_of(4);
    }
}

/// The header of a record of an image.
#[derive(Clone, Debug, PartialEq)]
struct ImageHead {
    labels: RecordLabels,
    content: RecordContent,
}

/// The data after a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordContent {
    Nothing,
    Image,
    Other,
}

#[derive(Clone, Debug, PartialEq)]
enum RecordLabels {
    One(f32),
    Several(Box<[f32]>),
}

impl ImageHead {
    /// The header of the record whose head begins `bytes`, if it can be one. An error has the
    /// number of bytes that are needed.
    fn read(bytes: &[u8]) -> Result<Option<Self>, u64> {
        let head = beginning(bytes, IMAGE_HEAD)?;
        let Some(head) = head.first_chunk::<IMAGE_HEAD>() else { return Ok(None) };
        let [a, b, c, d, e, f, g, h, ..] = *head;
        let labels = u32::from_le_bytes([a, b, c, d]) as usize;
        if labels > MOST_LABELS {
            return Ok(None);
        }
        let all = beginning(bytes, IMAGE_HEAD + 4 * labels + IMAGE_START)?;
        let Some(rest) = all.get(IMAGE_HEAD..).filter(|rest| rest.len() >= 4 * labels) else {
            return Ok(None);
        };
        let (floats, image) = rest.split_at(4 * labels);
        let floats = floats.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float));
        let labels = match labels {
            0 => RecordLabels::One(f32::from_le_bytes([e, f, g, h])),
            _ => RecordLabels::Several(floats.collect()),
        };
        let content = match image {
            [] => RecordContent::Nothing,
            image if is_image(image) => RecordContent::Image,
            _ => RecordContent::Other,
        };
        Ok(Some(Self { labels, content }))
    }

    /// The bytes of the header with its labels.
    fn length(&self) -> u64 {
        let labels = match &self.labels {
            RecordLabels::One(_) => 0,
            RecordLabels::Several(labels) => labels.len(),
        };
        (IMAGE_HEAD + 4 * labels) as u64
    }
}

/// Whether an encoded image begins so: JPEG, PNG, GIF, TIFF, WebP.
fn is_image(bytes: &[u8]) -> bool {
    let begins: [&[u8]; 5] = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"II*\0", b"MM\0*"];
    begins.iter().any(|start| bytes.starts_with(start))
        || bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP")
}

/// The properties of a part in addition to its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordPart {
    kind: PartKind,
    /// The header of an image, if the record begins here and can have one.
    image: Option<ImageHead>,
}

/// The parser of a RecordIO file. Its members are parts.
#[derive(Debug, Default)]
pub(crate) struct RecordIo {
    /// Whether a record has begun and not ended.
    open: bool,
}

impl ShardParser for RecordIo {
    type Note = RecordPart;

    fn step<'a>(
        &mut self,
        at: u64,
        bytes: &'a [u8],
        size: u64,
    ) -> Result<ParseStep<'a, RecordPart>, FormatError> {
        if at == size {
            return if self.open { Err(FormatError::cut_short(at, size)) } else { Ok(ParseStep::End) };
        }
        let Some(head) = bytes.get(..HEAD) else { return Ok(ParseStep::Needs(HEAD as u64)) };
        let Some((kind, length)) = part(head) else {
            return Err(match compression(head) {
                Some(how) if at == 0 => compressed(how),
                _ => FormatError::damaged(at, "no record of RecordIO begins here"),
            });
        };
        if kind.begins() == self.open {
            let why = if self.open { "the record before it has no end" } else { "a record has no beginning" };
            return Err(FormatError::damaged(at, why));
        }
        let start = at + HEAD as u64;
        let next = start.checked_add(length.next_multiple_of(4) as u64).filter(|&next| next <= size);
        let next = next.ok_or_else(|| FormatError::cut_short(at, size))?;
        let image = match kind.begins().then(|| ImageHead::read(bytes)) {
            Some(Err(needs)) => return Ok(ParseStep::Needs(needs)),
            Some(Ok(image)) => image,
            None => None,
        };
        self.open = !kind.ends();
        let note = RecordPart { kind, image };
        let member = ShardMember { name: Cow::Borrowed(""), start, length: length as u64, crc32c: 0, note };
        Ok(ParseStep::ShardMember(member, next))
    }

    fn is_fresh(&self) -> bool {
        !self.open
    }

    fn find(bytes: &[u8]) -> Option<usize> {
        let begins = |at: &usize| {
            let head = bytes.get(*at..*at + HEAD);
            head.and_then(part).is_some_and(|(kind, _)| kind.begins())
        };
        (0..bytes.len()).step_by(4).find(begins)
    }
}

/// The samples of these parts: whole records, or the images in them.
///
/// # Errors
/// A record without an image's header, if others have one, or of too many parts.
pub(crate) fn group(scan: &MemberScan<RecordPart>, field: Option<&str>) -> Result<FoundSamples, FormatError> {
    let parts: Vec<(u64, u64, &RecordPart)> =
        scan.places.iter().zip(&scan.notes).map(|(place, note)| (place.0, place.1, note)).collect();
    let content = |part: &RecordPart| part.image.as_ref().map(|image| image.content);
    let is_empty = |part: &RecordPart| content(part) == Some(RecordContent::Nothing);
    let mut records = parts.iter().map(|(.., part)| *part).filter(|part| part.kind.begins());
    let first = records.find(|part| !is_empty(part));
    let are_images = match field {
        None => first.and_then(content) == Some(RecordContent::Image),
        Some("data") => true,
        Some("record") => false,
        Some(other) => {
            let why = format!("no field {other:?} of records: expected data or record");
            return Err(FormatError::unsupported(0, why));
        }
    };
    let (mut made, mut extents) = (MadeRows::default(), Vec::new());
    let mut labels = Labels::default();
    let mut without_image = 0;
    for record in parts.chunk_by(|before, _| !before.2.kind.ends()) {
        let (start, _, first) = record[0];
        let at = start - HEAD as u64;
        if record.len() > MOST_PARTS / 2 {
            let why = format!("a record of {} parts: at most {} are read", record.len(), MOST_PARTS / 2);
            return Err(FormatError::unsupported(at, why));
        }
        if are_images && field.is_none() && is_empty(first) {
            without_image += 1;
            continue;
        }
        let mut left_out = 0;
        if are_images {
            let image = first.image.as_ref().ok_or_else(|| {
                let whole = setting("field").to("record");
                let why = format!("the record has no header of an image: set {whole} to take whole records");
                FormatError::unsupported(at, why)
            })?;
            labels.push(&image.labels);
            left_out = image.length();
        }
        // The magic of each head but the first one belongs to the record.
        let pieces = record.iter().enumerate().flat_map(|(number, &(start, length, _))| {
            let magic = (number > 0).then_some((start - HEAD as u64, MAGIC.len() as u64));
            magic.into_iter().chain([(start, length)])
        });
        let pieces = pieces.map(|(start, length)| {
            let skipped = left_out.min(length);
            left_out -= skipped;
            (start + skipped, length - skipped, MadeRow::plain(length - skipped))
        });
        extents.push(made.push_parts(pieces));
    }
    let what = if are_images { "images in records" } else { "records" };
    let mut summary = format!("RecordIO: {} {what}", extents.len());
    let (column, note) = labels.finish();
    let headers = (without_image > 0).then(|| {
        let all = setting("field").to("data");
        format!("{without_image} records have a header and no image, and are left out: {all} keeps them")
    });
    let notes: Vec<String> = note.into_iter().chain(headers).collect();
    summary.extend(notes.iter().flat_map(|note| [", ", note]));
    Ok(FoundSamples {
        made: Some(made).filter(|made| !made.more.is_empty()),
        columns: column.into_iter().collect(),
        notes,
        skipped: scan.skipped + without_image,
        ..FoundSamples::at(Extents::Rows(extents), summary)
    }
    .with_chosen(what, None))
}

/// The labels of records, as long as all have as many.
#[derive(Debug, Default)]
struct Labels {
    /// The number of each record's labels, or `None` for one in the header.
    count: Option<Option<usize>>,
    values: Vec<f32>,
    differ: bool,
}

impl Labels {
    fn push(&mut self, labels: &RecordLabels) {
        let (count, values) = match labels {
            RecordLabels::One(label) => (None, std::slice::from_ref(label)),
            RecordLabels::Several(labels) => (Some(labels.len()), &**labels),
        };
        self.differ |= *self.count.get_or_insert(count) != count;
        if !self.differ {
            self.values.extend_from_slice(values);
        }
    }

    /// The column, or why there is none.
    fn finish(self) -> (Option<ValueColumn>, Option<String>) {
        let Some(count) = self.count else { return (None, None) };
        if self.differ {
            let whole = setting("field").to("record");
            let why = format!("no labels: records have different numbers of them; {whole} keeps them");
            return (None, Some(why));
        }
        let values = match count {
            Some(count) => ColumnValues::Arrays {
                array: ArrayType { dtype: "<f4".to_owned(), shape: vec![Some(count as u64)] },
                width: 4 * count,
                bytes: self.values.iter().flat_map(|label| label.to_le_bytes()).collect(),
            },
            // Classes are whole numbers.
            None if self.values.iter().all(|label| label.fract() == 0.0 && label.abs() < 1e9) => {
                ColumnValues::Integers(self.values.iter().map(|label| Some(*label as i64)).collect())
            }
            None => ColumnValues::Floats(self.values.iter().map(|label| Some(f64::from(*label))).collect()),
        };
        (Some(ValueColumn { name: "label".to_owned(), values }), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = [&MAGIC[..], &(kind << 29 | data.len() as u32).to_le_bytes(), data].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn beginning_of_a_record_joins_its_parts() {
        let bytes = [record(1, b"abcd"), record(2, b""), record(3, b"efghi")].concat();
        let expected = [b"abcd", &MAGIC[..], &MAGIC[..], b"efghi"].concat();
        for count in 0..=expected.len() + 3 {
            let found = beginning(&bytes, count).unwrap();
            assert_eq!(found, expected[..count.min(expected.len())], "{count}");
        }
        assert_eq!(beginning(&bytes[..10], 3), Err(11));
        assert_eq!(beginning(&bytes[..12], 9), Err(20));
    }

    #[test]
    fn parts_out_of_order_are_damage() {
        let mut parser = RecordIo::default();
        let step = |parser: &mut RecordIo, kind| {
            let bytes = [record(kind, b"x"), record(3, b"y")].concat();
            parser.step(0, &bytes, 24).map(|step| assert!(!matches!(step, ParseStep::Needs(_))))
        };
        assert!(step(&mut parser, 3).is_err() && step(&mut parser, 2).is_err());
        assert!(step(&mut parser, 4).is_err());
        step(&mut parser, 1).unwrap();
        assert!(!parser.is_fresh() && step(&mut parser, 0).is_err() && step(&mut parser, 1).is_err());
        assert!(parser.step(12, &[], 12).is_err());
        step(&mut parser, 2).unwrap();
        step(&mut parser, 3).unwrap();
        assert!(parser.is_fresh() && matches!(parser.step(12, &[], 12), Ok(ParseStep::End)));
    }

    #[test]
    fn labels_are_integers_if_all_are_whole() {
        let of = |labels: &[RecordLabels]| {
            let mut all = Labels::default();
            labels.iter().for_each(|label| all.push(label));
            all.finish()
        };
        let one = RecordLabels::One;
        let several = |values: &[f32]| RecordLabels::Several(values.into());
        let column = |values| Some(ValueColumn { name: "label".to_owned(), values });
        assert_eq!(of(&[]), (None, None));
        let integers = ColumnValues::Integers(vec![Some(3), Some(-1)]);
        assert_eq!(of(&[one(3.0), one(-1.0)]).0, column(integers));
        assert_eq!(of(&[one(3.5)]).0, column(ColumnValues::Floats(vec![Some(3.5)])));
        assert!(matches!(of(&[one(f32::INFINITY)]).0.unwrap().values, ColumnValues::Floats(_)));
        assert!(of(&[several(&[1.0, 2.0]), several(&[3.0, 4.0])]).0.is_some());
        let (none, note) = of(&[several(&[1.0, 2.0]), several(&[3.0])]);
        assert!(none.is_none() && note.unwrap().contains(&setting("field").to("record").to_string()));
    }
}
