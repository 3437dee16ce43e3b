//! A dataset: its shape, its type, its layout and its filters, from the messages of its header.

use foreread_types::Decoder;

use super::chunk_layout::{ChunkIndex, ChunkLayout};
use super::cursor::{Cursor, product};
use super::datatype::{self, Datatype};
use super::file::File;
use super::header::{self, Header, kind};
use crate::FormatError;

/// The most dimensions, as in the library.
const MOST_RANK: u8 = 32;

/// Where the elements lie.
#[derive(Clone, Debug)]
pub(super) enum Layout {
    /// In one piece at a place, or nowhere: nothing was written.
    Contiguous(Option<u64>),
    /// In the header, at this place.
    Compact(u64),
    /// In chunks.
    Chunked(ChunkLayout),
    /// Where this parser does not read them. The reason.
    Refused(&'static str),
}

/// A filter that chunks went through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) id: u16,
    /// The filter's parameters.
    pub(super) values: Vec<u32>,
}

impl Filter {
    /// The decoder of the filter, for elements of `element` bytes. `None` if there is none here.
    pub(super) fn decoder(&self, element: u64) -> Option<Decoder> {
        Some(match self.id {
            1 => Decoder::Zlib,
            2 => {
                let element = self.values.first().copied().map_or_else(|| u32::try_from(element), Ok);
                Decoder::Shuffle(element.ok().filter(|element| *element > 0)?)
            }
            3 => Decoder::Fletcher32,
            32_000 => Decoder::Lzf,
            32_004 => Decoder::Lz4,
            32_015 => Decoder::Zstd,
            _ => return None,
        })
    }

    /// The filter's name.
    pub(super) fn name(&self) -> String {
        let name = match self.id {
            1 => "gzip",
            2 => "shuffle",
            3 => "fletcher32",
            4 => "szip",
            5 => "nbit",
            6 => "scaleoffset",
            32_000 => "lzf",
            32_001 => "blosc",
            32_004 => "lz4",
            32_008 => "bitshuffle",
            32_015 => "zstd",
            id => return format!("filter {id}"),
        };
        name.into()
    }
}

/// A dataset.
#[derive(Clone, Debug)]
pub(super) struct Dataset {
    /// The path from the root group, without the first slash.
    pub(super) path: String,
    /// The place of its header.
    pub(super) at: u64,
    /// The lengths of its dimensions. A scalar has none.
    pub(super) shape: Vec<u64>,
    /// The dataspace has no elements at all.
    pub(super) null: bool,
    pub(super) datatype: Datatype,
    pub(super) layout: Layout,
    pub(super) filters: Vec<Filter>,
}

impl Dataset {
    /// Whether the header is that of a dataset.
    pub(super) fn is(header: &Header) -> bool {
        header.find(kind::LAYOUT).is_some()
    }

    /// The dataset of a header.
    pub(super) async fn parse(file: &File<'_>, path: String, header: &Header) -> Result<Self, FormatError> {
        let missing = |what| FormatError::damaged(header.at, format!("HDF5 dataset {path} has no {what}"));
        let message = header.find(kind::DATATYPE).ok_or_else(|| missing("datatype"))?;
        let message = header::resolve(file, message).await?;
        let datatype = datatype::parse(&mut file.cursor("datatype", message.at, &message.data))?;
        let message = header.find(kind::DATASPACE).ok_or_else(|| missing("dataspace"))?;
        let message = header::resolve(file, message).await?;
        let space = dataspace(&mut file.cursor("dataspace", message.at, &message.data))?;
        let filters = match header.find(kind::FILTERS) {
            Some(message) => {
                let message = header::resolve(file, message).await?;
                filters(&mut file.cursor("filters", message.at, &message.data))?
            }
            None => Vec::new(),
        };
        let message = header.find(kind::LAYOUT).ok_or_else(|| missing("layout"))?;
        let message = header::resolve(file, message).await?;
        let mut cursor = file.cursor("layout", message.at, &message.data);
        let layout = match header.find(kind::EXTERNAL_FILES) {
            Some(_) => Layout::Refused("its elements lie in external files"),
            None => layout(&mut cursor, &space, datatype.size)?,
        };
        let dataset =
            Self { path, at: header.at, shape: space.shape, null: space.null, datatype, layout, filters };
        if dataset.bytes().is_none() {
            return Err(cursor.damaged("the dataset is larger than any file"));
        }
        Ok(dataset)
    }

    /// The number of bytes of all elements. `None` beyond 64 bits.
    pub(super) fn bytes(&self) -> Option<u64> {
        if self.null {
            return Some(0);
        }
        product(&self.shape)?.checked_mul(self.datatype.size)
    }

    /// The number of bytes of a row: of all elements with one first index.
    pub(super) fn row_bytes(&self) -> Option<u64> {
        product(self.shape.get(1..)?)?.checked_mul(self.datatype.size)
    }

    /// The shape and the type for people: `50000 x 224 x 224 x 3 |u1`.
    pub(super) fn described(&self) -> String {
        let shape: Vec<String> = self.shape.iter().map(u64::to_string).collect();
        let shape = if shape.is_empty() { "scalar".into() } else { shape.join(" x ") };
        format!("{shape} {}", self.datatype.name())
    }

    /// An error about this dataset, with the remedy that writes it again without filters.
    pub(super) fn to_rewrite(&self, why: &str) -> FormatError {
        self.refused(&format!("{why}: rewrite by `h5repack -f NONE {} in.h5 out.h5`", self.row_chunks()))
    }

    /// An error about this dataset, with the remedy that writes it again in chunks of one row.
    pub(super) fn to_rechunk(&self, why: &str) -> FormatError {
        self.refused(&format!("{why}: rewrite by `h5repack {} in.h5 out.h5`", self.row_chunks()))
    }

    /// The option of `h5repack` for chunks of one row.
    fn row_chunks(&self) -> String {
        let mut chunk = vec!["1".to_owned()];
        chunk.extend(self.shape.iter().skip(1).map(u64::to_string));
        format!("-l {}:CHUNK={}", self.path, chunk.join("x"))
    }

    /// An error about this dataset.
    pub(super) fn refused(&self, why: &str) -> FormatError {
        FormatError::unsupported(self.at, format!("HDF5 dataset {} ({}): {why}", self.path, self.described()))
    }

    /// The file is damaged in this dataset.
    pub(super) fn damaged(&self, why: &str) -> FormatError {
        FormatError::damaged(self.at, format!("HDF5 dataset {}: {why}", self.path))
    }
}

/// The present and the largest lengths of dimensions.
struct Dataspace {
    shape: Vec<u64>,
    /// `None` for an unlimited dimension.
    most: Vec<Option<u64>>,
    null: bool,
}

fn dataspace(cursor: &mut Cursor<'_>) -> Result<Dataspace, FormatError> {
    let version = cursor.u8()?;
    let rank = cursor.u8()?;
    let flags = cursor.u8()?;
    let kind = cursor.u8()?;
    match version {
        1 => cursor.skip(4)?,
        2 => {}
        _ => return Err(cursor.unsupported(&format!("version {version}: expected 1 or 2"))),
    }
    if rank > MOST_RANK {
        return Err(cursor.damaged("it has more than 32 dimensions"));
    }
    let mut shape = Vec::new();
    for _ in 0..rank {
        shape.push(cursor.length()?);
    }
    let mut most: Vec<_> = shape.iter().copied().map(Some).collect();
    if flags & 1 != 0 {
        let unlimited = u64::MAX >> (64 - 8 * cursor.widths.length);
        for most in &mut most {
            *most = Some(cursor.length()?).filter(|&most| most != unlimited);
        }
    }
    if shape.iter().zip(&most).any(|(&now, &most)| most.is_some_and(|most| most < now)) {
        return Err(cursor.damaged("a dimension is longer than its largest length"));
    }
    Ok(Dataspace { shape, most, null: version == 2 && kind == 2 })
}

fn filters(cursor: &mut Cursor<'_>) -> Result<Vec<Filter>, FormatError> {
    let version = cursor.u8()?;
    let count = cursor.u8()?;
    match version {
        1 => cursor.skip(6)?,
        2 => {}
        _ => return Err(cursor.unsupported(&format!("version {version}: expected 1 or 2"))),
    }
    let mut filters = Vec::new();
    for _ in 0..count {
        let id = cursor.u16()?;
        let name = if version == 1 || id >= 256 { cursor.u16()? } else { 0 };
        cursor.skip(2)?;
        let values = usize::from(cursor.u16()?);
        let name = usize::from(name);
        cursor.skip(if version == 1 { name.next_multiple_of(8) } else { name })?;
        let values = (0..values).map(|_| cursor.u32()).collect::<Result<Vec<_>, _>>()?;
        cursor.skip(if version == 1 { values.len() % 2 * 4 } else { 0 })?;
        filters.push(Filter { id, values });
    }
    Ok(filters)
}

fn layout(cursor: &mut Cursor<'_>, space: &Dataspace, element: u64) -> Result<Layout, FormatError> {
    let version = cursor.u8()?;
    match version {
        1 | 2 => return old_layout(cursor, space, element),
        3..=5 => {}
        _ => return Ok(Layout::Refused("its layout is of another version of HDF5")),
    }
    Ok(match cursor.u8()? {
        0 => {
            let length = u64::from(cursor.u16()?);
            let needed = product(&space.shape).and_then(|count| count.checked_mul(element));
            if !space.null && needed.is_none_or(|needed| needed > length) {
                return Err(cursor.damaged("it is shorter than the dataset"));
            }
            let place = cursor.place();
            cursor.take(length as usize)?;
            Layout::Compact(place)
        }
        1 => Layout::Contiguous(cursor.address()?),
        2 => Layout::Chunked(chunked(cursor, version, space, element)?),
        3 => Layout::Refused("it is virtual: its elements lie in other datasets"),
        class => return Err(cursor.unsupported(&format!("class {class}: expected 0 to 3"))),
    })
}

/// A layout of files before HDF5 1.6.3. The rank and the class come first.
fn old_layout(cursor: &mut Cursor<'_>, space: &Dataspace, element: u64) -> Result<Layout, FormatError> {
    let (rank, class) = (cursor.u8()?, cursor.u8()?);
    cursor.skip(5)?;
    Ok(match class {
        0 => Layout::Refused("it lies in its header, in the way of HDF5 before 1.6.3"),
        1 => Layout::Contiguous(cursor.address()?),
        2 => {
            let index = ChunkIndex::BTree1(cursor.address()?);
            check_rank(cursor, rank, space)?;
            let (lengths, bytes) = chunk_lengths(cursor, 4, space, element)?;
            let most = space.most.clone();
            Layout::Chunked(ChunkLayout { lengths, bytes, index, most, only: None, edges_unfiltered: false })
        }
        class => return Err(cursor.unsupported(&format!("class {class}: expected 0 to 2"))),
    })
}

/// Checks the rank of chunks, which counts the bytes of an element as a dimension.
fn check_rank(cursor: &Cursor<'_>, rank: u8, space: &Dataspace) -> Result<(), FormatError> {
    if usize::from(rank) != space.shape.len() + 1 || space.shape.is_empty() {
        return Err(cursor.damaged("chunks have another rank than the dataset"));
    }
    Ok(())
}

/// The lengths of a chunk's dimensions, `width` bytes each, and its bytes.
fn chunk_lengths(
    cursor: &mut Cursor<'_>,
    width: usize,
    space: &Dataspace,
    element: u64,
) -> Result<(Vec<u64>, u64), FormatError> {
    let mut lengths = Vec::new();
    for _ in &space.shape {
        lengths.push(cursor.uint(width)?);
    }
    let last = cursor.uint(width)?;
    let bytes = product(&lengths).and_then(|count| count.checked_mul(element));
    match bytes.filter(|&bytes| bytes > 0 && last == element) {
        Some(bytes) => Ok((lengths, bytes)),
        None => Err(cursor.damaged("a chunk's size is not one of its elements")),
    }
}

fn chunked(
    cursor: &mut Cursor<'_>,
    version: u8,
    space: &Dataspace,
    element: u64,
) -> Result<ChunkLayout, FormatError> {
    let flags = if version > 3 { cursor.u8()? } else { 0 };
    let rank = cursor.u8()?;
    check_rank(cursor, rank, space)?;
    let btree = if version == 3 { Some(cursor.address()?) } else { None };
    let width = if version > 3 { cursor.u8()?.into() } else { 4 };
    let (lengths, bytes) = chunk_lengths(cursor, width, space, element)?;
    let index = match btree {
        Some(root) => ChunkIndex::BTree1(root),
        None => match cursor.u8()? {
            1 if flags & 2 != 0 => {
                let (size, mask) = (cursor.length()?, cursor.u32()?);
                ChunkIndex::Single { at: cursor.address()?, size, mask }
            }
            1 => ChunkIndex::Single { at: cursor.address()?, size: bytes, mask: 0 },
            2 => ChunkIndex::Implicit(cursor.address()?),
            3 => {
                cursor.skip(1)?;
                ChunkIndex::FixedArray(cursor.address()?)
            }
            4 => {
                cursor.skip(5)?;
                ChunkIndex::ExtensibleArray(cursor.address()?)
            }
            5 => {
                cursor.skip(6)?;
                ChunkIndex::BTree2(cursor.address()?)
            }
            index => return Err(cursor.unsupported(&format!("chunk index {index}: expected 1 to 5"))),
        },
    };
    let (most, edges_unfiltered) = (space.most.clone(), flags & 1 != 0);
    Ok(ChunkLayout { lengths, bytes, index, most, only: None, edges_unfiltered })
}
