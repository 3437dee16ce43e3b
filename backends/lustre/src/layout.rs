//! The layout of a file: the bytes of `lustre.lov`, parsed.
//!
//! A layout is one stripe map (v1, or v3 with the name of a pool), or a composite of several for
//! parts of the file. The parts may overlap as mirrors. A map may lack its objects. Then nothing
//! was written there yet (not instantiated), or the file was released to an archive.
//!
//! Decision: parsing is total. Bytes that are not understood in any one place make the layout
//! unknown as a whole. The price is that one unusual component hides the others. Foreign components
//! and components without use for a reader (stale, offline, for extension, parity) are only checked
//! for their bounds. Memory is at most as large as the bytes: no count is trusted before its
//! objects are there, and components may not share bytes.

use std::ops::Range;

use foreread_tier::{ObjectLayout, StorageServer};

const MAGIC_V1: u32 = 0x0BD1_0BD0;
const MAGIC_V3: u32 = 0x0BD3_0BD0;
const MAGIC_COMPOSITE: u32 = 0x0BD6_0BD0;
const MAGIC_COMPOSITE_ALIASED: u32 = 0x0BD8_0BD0;
const MAGIC_FOREIGN: u32 = 0x0BD7_0BD0;

const PATTERN_RAID0: u32 = 1;
const PATTERN_MDT: u32 = 0x100;
/// Several stripes may be on one OST. The map is the same.
const PATTERN_OVERSTRIPED: u32 = 0x200 | PATTERN_RAID0;
const PATTERN_RELEASED: u32 = 0x8000_0000;

const ENTRY_STALE: u32 = 1;
const ENTRY_PREFERRED: u32 = 2;
const ENTRY_OFFLINE: u32 = 8;
const ENTRY_INSTANTIATED: u32 = 0x10;
const ENTRY_EXTENSION: u32 = 0x40;
const ENTRY_PARITY: u32 = 0x80;
/// Entries with any of these are not read from.
const ENTRY_UNUSED: u32 = ENTRY_STALE | ENTRY_OFFLINE | ENTRY_EXTENSION | ENTRY_PARITY;

const HEADER_V1: usize = 32;
const HEADER_V3: usize = 48;
const OBJECT: usize = 24;
const HEADER_COMPOSITE: usize = 32;
const ENTRY: usize = 48;

/// Stripe sizes are multiples of it.
const STRIPE_UNIT: u32 = 64 << 10;

/// Where a file's data is, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    is_known: bool,
    is_released: bool,
    /// The components that a reader may use, in the order of the layout.
    components: Vec<Component>,
}

/// A part of a file with one stripe map.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Component {
    range: Range<u64>,
    is_preferred: bool,
    stripe_size: u32,
    data: ComponentData,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ComponentData {
    Mdt,
    /// The OST index of each stripe, at least one.
    Osts(Vec<u32>),
    /// No objects, or void ones.
    Unknown,
}

impl Layout {
    /// The layout of a file without objects, to which nothing was written.
    pub(crate) fn without_objects() -> Layout {
        Layout { is_known: true, ..Layout::default() }
    }

    /// Parses the value of `lustre.lov`. Bytes that are not understood give a layout of which
    /// nothing [is known](Layout::is_known).
    pub fn parse(bytes: &[u8]) -> Layout {
        parse(bytes).unwrap_or_default()
    }

    /// Whether the bytes were a layout that this parser understands.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// The number of objects that the data is striped over: the most of any component.
    pub fn stripe_count(&self) -> usize {
        let count = |component: &Component| match &component.data {
            ComponentData::Osts(osts) => osts.len(),
            ComponentData::Mdt | ComponentData::Unknown => 0,
        };
        self.components.iter().map(count).max().unwrap_or(0)
    }

    /// The component that readers use at `offset`, and the range around it in which that is so. Of
    /// several, it is the preferred one.
    fn at(&self, offset: u64) -> Option<(&Component, Range<u64>)> {
        let here = || self.components.iter().filter(|component| component.range.contains(&offset));
        let found = only(here()).or_else(|| only(here().filter(|component| component.is_preferred)))?;
        let ranges = || self.components.iter().map(|component| &component.range);
        let bounds = || ranges().flat_map(|range| [range.start, range.end]);
        let start = bounds().filter(|&bound| bound <= offset).max()?;
        let end = bounds().filter(|&bound| bound > offset).min()?;
        Some((found, start..end))
    }
}

impl ObjectLayout for Layout {
    fn server(&self, offset: u64) -> Option<StorageServer> {
        self.at(offset)?.0.server(offset)
    }

    /// A stripe, or a whole component, whatever the file's size.
    fn run(&self, offset: u64) -> Option<Range<u64>> {
        let (component, range) = self.at(offset)?;
        let run = component.run(offset)?;
        Some(run.start.max(range.start)..run.end.min(range.end))
    }

    fn is_released(&self) -> bool {
        self.is_released
    }
}

/// The only component, if there is exactly one.
fn only<'a>(mut some: impl Iterator<Item = &'a Component>) -> Option<&'a Component> {
    let first = some.next()?;
    some.next().is_none().then_some(first)
}

impl Component {
    fn server(&self, offset: u64) -> Option<StorageServer> {
        match &self.data {
            ComponentData::Mdt => Some(StorageServer::Metadata),
            ComponentData::Osts(osts) => {
                let stripe = offset / u64::from(self.stripe_size) % osts.len() as u64;
                Some(StorageServer::Data(osts[stripe as usize]))
            }
            ComponentData::Unknown => None,
        }
    }

    fn run(&self, offset: u64) -> Option<Range<u64>> {
        match &self.data {
            ComponentData::Mdt => Some(self.range.clone()),
            ComponentData::Osts(osts) if osts.len() == 1 => Some(self.range.clone()),
            ComponentData::Osts(_) => {
                let size = u64::from(self.stripe_size);
                let start = offset / size * size;
                Some(start..start.saturating_add(size))
            }
            ComponentData::Unknown => None,
        }
    }
}

/// A stripe map, v1 or v3.
struct StripeMap {
    is_released: bool,
    stripe_size: u32,
    data: ComponentData,
}

fn parse(bytes: &[u8]) -> Option<Layout> {
    match u32_at(bytes, 0)? {
        MAGIC_V1 | MAGIC_V3 => {
            let mut layout = Layout::without_objects();
            layout.add(0..u64::MAX, false, StripeMap::parse(bytes)?);
            Some(layout)
        }
        MAGIC_COMPOSITE | MAGIC_COMPOSITE_ALIASED => parse_composite(bytes),
        _ => None,
    }
}

fn parse_composite(bytes: &[u8]) -> Option<Layout> {
    let bytes = bytes.get(..u32_at(bytes, 4)? as usize)?;
    let count = usize::from(u16_at(bytes, 14)?);
    let mut layout = Layout::without_objects();
    let entries = bytes.get(HEADER_COMPOSITE..HEADER_COMPOSITE + count * ENTRY)?;
    // Components have their own bytes, so that few bytes cannot become much memory.
    let mut left = bytes.len() - HEADER_COMPOSITE - entries.len();
    for entry in entries.chunks_exact(ENTRY) {
        let (offset, size) = (u32_at(entry, 24)? as usize, u32_at(entry, 28)? as usize);
        let map = bytes.get(offset..offset.checked_add(size)?)?;
        left = left.checked_sub(size)?;
        if u32_at(map, 0)? == MAGIC_FOREIGN {
            continue;
        }
        let flags = u32_at(entry, 4)?;
        if flags & ENTRY_STALE == 0 {
            layout.is_released |= u32_at(map, 4)? & PATTERN_RELEASED != 0;
        }
        if flags & ENTRY_INSTANTIATED == 0 || flags & ENTRY_UNUSED != 0 {
            continue;
        }
        let range = u64_at(entry, 8)?..u64_at(entry, 16)?;
        if range.is_empty() {
            return None;
        }
        layout.add(range, flags & ENTRY_PREFERRED != 0, StripeMap::parse(map)?);
    }
    Some(layout)
}

impl Layout {
    fn add(&mut self, range: Range<u64>, is_preferred: bool, map: StripeMap) {
        let StripeMap { is_released, stripe_size, data } = map;
        self.is_released |= is_released;
        self.components.push(Component { range, is_preferred, stripe_size, data });
    }
}

impl StripeMap {
    fn parse(bytes: &[u8]) -> Option<StripeMap> {
        let header = match u32_at(bytes, 0)? {
            MAGIC_V1 => HEADER_V1,
            MAGIC_V3 => HEADER_V3,
            _ => return None,
        };
        let pattern = u32_at(bytes, 4)?;
        let stripe_size = u32_at(bytes, 24)?;
        let count = usize::from(u16_at(bytes, 28)?);
        let objects = bytes.get(header..)?;
        let is_released = pattern & PATTERN_RELEASED != 0;
        let data = match pattern & !PATTERN_RELEASED {
            // Their objects are void.
            _ if is_released => ComponentData::Unknown,
            PATTERN_MDT => ComponentData::Mdt,
            PATTERN_RAID0 | PATTERN_OVERSTRIPED => {
                if stripe_size == 0 || stripe_size % STRIPE_UNIT != 0 {
                    return None;
                }
                // Not instantiated: the count is only planned, and there are no objects.
                if count == 0 || objects.is_empty() {
                    ComponentData::Unknown
                } else {
                    let objects = objects.get(..count * OBJECT)?.chunks_exact(OBJECT);
                    ComponentData::Osts(objects.map(|object| u32_at(object, 20)).collect::<Option<_>>()?)
                }
            }
            _ => return None,
        };
        Some(StripeMap { is_released, stripe_size, data })
    }
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array_at(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array_at(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array_at(bytes, at).map(u64::from_le_bytes)
}
