//! The layout that a file of the stand-in has, and its bytes as `lustre.lov`.

use std::ops::Range;

const PATTERN_RAID0: u32 = 1;
const PATTERN_MDT: u32 = 0x100;
const PATTERN_OVERSTRIPED: u32 = 0x200;
const PATTERN_RELEASED: u32 = 0x8000_0000;
const INSTANTIATED: u32 = 0x10;

/// Where a file of the stand-in has its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutSpec {
    /// Bytes of a stripe, a multiple of 64 KiB.
    pub stripe_size: u32,
    /// The OST of each stripe. Without any, the file has no objects, and reads of it cost nothing.
    pub osts: Vec<u32>,
    /// The name of the pool, at most 15 bytes. With one the layout is v3.
    pub pool: Option<String>,
    /// Bytes from the begin that are on the MDT. With some the layout is a composite.
    pub dom_size: u64,
    /// Whether the data is in an archive only, as after
    /// [`StandIn::release`](crate::StandIn::release).
    pub is_released: bool,
}

/// A server of a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DataServer {
    Ost(u32),
    Mdt,
}

impl LayoutSpec {
    /// Stripes over these OSTs, in turn.
    pub fn on(osts: impl Into<Vec<u32>>, stripe_size: u32) -> Self {
        Self { stripe_size, osts: osts.into(), pool: None, dom_size: 0, is_released: false }
    }

    /// `count` stripes over successive OSTs of `osts` from `first` on.
    pub fn striped(count: u32, stripe_size: u32, first: u32, osts: u32) -> Self {
        Self::on((first..first + count).map(|ost| ost % osts).collect::<Vec<_>>(), stripe_size)
    }

    /// No objects, as of a file that was never written to.
    pub fn none() -> Self {
        Self::on([], 1 << 20)
    }

    /// The same with the first bytes on the MDT.
    pub fn with_dom(self, dom_size: u64) -> Self {
        Self { dom_size, ..self }
    }

    /// The same in a pool.
    pub fn with_pool(self, pool: impl Into<String>) -> Self {
        Self { pool: Some(pool.into()), ..self }
    }

    /// The same, released to an archive.
    pub fn released(self) -> Self {
        Self { is_released: true, ..self }
    }

    /// The value of `lustre.lov`. `None` without objects.
    pub fn encode(&self) -> Option<Vec<u8>> {
        if self.osts.is_empty() && self.dom_size == 0 {
            return None;
        }
        if self.dom_size == 0 {
            return Some(self.stripe_map());
        }
        let on_mdt = map_header(0x0BD1_0BD0, self.pattern(PATTERN_MDT), self.dom_size as u32, 0);
        let mut maps = vec![(0..self.dom_size, on_mdt)];
        if !self.osts.is_empty() {
            maps.push((self.dom_size..u64::MAX, self.stripe_map()));
        }
        Some(composite(&maps))
    }

    fn pattern(&self, pattern: u32) -> u32 {
        pattern | if self.is_released { PATTERN_RELEASED } else { 0 }
    }

    /// v1 or v3. A released map keeps its count and has no objects.
    fn stripe_map(&self) -> Vec<u8> {
        let mut distinct = self.osts.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let overstriped = if distinct.len() < self.osts.len() { PATTERN_OVERSTRIPED } else { 0 };
        let pattern = self.pattern(PATTERN_RAID0 | overstriped);
        let magic = if self.pool.is_some() { 0x0BD3_0BD0 } else { 0x0BD1_0BD0 };
        let mut bytes = map_header(magic, pattern, self.stripe_size, self.osts.len() as u16);
        if let Some(pool) = &self.pool {
            let mut field = [0; 16];
            let name = &pool.as_bytes()[..pool.len().min(15)];
            field[..name.len()].copy_from_slice(name);
            bytes.extend_from_slice(&field);
        }
        if !self.is_released {
            for (stripe, ost) in self.osts.iter().enumerate() {
                bytes.extend_from_slice(&(stripe as u64 + 1).to_le_bytes());
                bytes.extend_from_slice(&0x2_4000_0400_u64.to_le_bytes());
                bytes.extend_from_slice(&0_u32.to_le_bytes());
                bytes.extend_from_slice(&ost.to_le_bytes());
            }
        }
        bytes
    }

    /// The servers of a range of a file, each with its part. `None` for bytes without objects.
    pub(crate) fn servers(&self, range: Range<u64>) -> Vec<(Option<DataServer>, Range<u64>)> {
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let (server, end) = if at < self.dom_size {
                (Some(DataServer::Mdt), self.dom_size)
            } else if let [only] = self.osts[..] {
                (Some(DataServer::Ost(only)), range.end)
            } else if self.osts.is_empty() {
                (None, range.end)
            } else {
                let size = u64::from(self.stripe_size);
                let ost = self.osts[(at / size % self.osts.len() as u64) as usize];
                (Some(DataServer::Ost(ost)), (at / size + 1) * size)
            };
            let end = end.min(range.end);
            found.push((server, at..end));
            at = end;
        }
        found
    }
}

/// The 32 bytes that v1 and v3 have in common.
fn map_header(magic: u32, pattern: u32, stripe_size: u32, count: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    bytes.extend_from_slice(&magic.to_le_bytes());
    bytes.extend_from_slice(&pattern.to_le_bytes());
    bytes.extend_from_slice(&5_u64.to_le_bytes());
    bytes.extend_from_slice(&0x2_0000_0401_u64.to_le_bytes());
    bytes.extend_from_slice(&stripe_size.to_le_bytes());
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&0_u16.to_le_bytes());
    bytes
}

/// A composite of instantiated components.
fn composite(maps: &[(Range<u64>, Vec<u8>)]) -> Vec<u8> {
    let table = 32 + 48 * maps.len();
    let size = table + maps.iter().map(|(_, map)| map.len()).sum::<usize>();
    let mut bytes = Vec::with_capacity(size);
    bytes.extend_from_slice(&0x0BD6_0BD0_u32.to_le_bytes());
    bytes.extend_from_slice(&(size as u32).to_le_bytes());
    bytes.extend_from_slice(&1_u32.to_le_bytes());
    bytes.extend_from_slice(&0_u16.to_le_bytes());
    bytes.extend_from_slice(&(maps.len() as u16).to_le_bytes());
    bytes.resize(32, 0);
    let mut offset = table;
    for (id, (range, map)) in (1_u32..).zip(maps) {
        let begin = bytes.len();
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes.extend_from_slice(&INSTANTIATED.to_le_bytes());
        bytes.extend_from_slice(&range.start.to_le_bytes());
        bytes.extend_from_slice(&range.end.to_le_bytes());
        bytes.extend_from_slice(&(offset as u32).to_le_bytes());
        bytes.extend_from_slice(&(map.len() as u32).to_le_bytes());
        bytes.resize(begin + 48, 0);
        offset += map.len();
    }
    maps.iter().for_each(|(_, map)| bytes.extend_from_slice(map));
    bytes
}

#[cfg(test)]
mod tests {
    use foreread_lustre::Layout;
    use foreread_tier::{ObjectLayout, StorageServer};

    use super::*;

    const KIB: u64 = 1 << 10;

    /// The parser and the encoder were written separately. They agree on every stripe.
    #[test]
    fn encoded_layouts_are_parsed_to_the_same_servers() {
        let specs = [
            LayoutSpec::on([5], 1 << 20),
            LayoutSpec::on([3, 7], 64 << 10),
            LayoutSpec::striped(5, 128 << 10, 6, 8),
            LayoutSpec::on([1, 1, 2, 1], 64 << 10),
            LayoutSpec::on([4, 9], 64 << 10).with_pool("flash"),
            LayoutSpec::on([4, 9], 64 << 10).with_dom(192 << 10),
            LayoutSpec::on([0], 1 << 20).with_dom(64 << 10).with_pool("slow"),
            LayoutSpec::none().with_dom(1 << 20),
        ];
        for spec in specs {
            let layout = Layout::parse(&spec.encode().unwrap());
            assert!(layout.is_known() && !layout.is_released(), "{spec:?}");
            for offset in (0..1024).map(|step| step * KIB) {
                let servers = spec.servers(offset..offset + 1);
                let expected = match servers[..] {
                    [(Some(DataServer::Ost(ost)), _)] => Some(StorageServer::Data(ost)),
                    [(Some(DataServer::Mdt), _)] => Some(StorageServer::Metadata),
                    _ => None,
                };
                assert_eq!(layout.server(offset), expected, "{spec:?} at {offset}");
            }
            assert_eq!(layout.stripe_count(), spec.osts.len());
            let released = Layout::parse(&spec.released().encode().unwrap());
            assert!(released.is_known() && released.is_released());
            assert_eq!(released.server(0), None);
        }
        assert_eq!(LayoutSpec::none().encode(), None);
    }

    #[test]
    fn range_is_divided_at_stripes() {
        let spec = LayoutSpec::on([3, 7], 64 << 10).with_dom(64 << 10);
        let servers = spec.servers(10 * KIB..200 * KIB);
        let (mdt, three, seven) = (Some(DataServer::Mdt), Some(DataServer::Ost(3)), Some(DataServer::Ost(7)));
        let expected = [
            (mdt, 10 * KIB..64 * KIB),
            (seven, 64 * KIB..128 * KIB),
            (three, 128 * KIB..192 * KIB),
            (seven, 192 * KIB..200 * KIB),
        ];
        assert_eq!(servers, expected);
        assert_eq!(LayoutSpec::none().servers(3..9), [(None, 3..9)]);
        assert_eq!(LayoutSpec::on([1], 64 << 10).servers(0..9 << 30).len(), 1);
    }
}
