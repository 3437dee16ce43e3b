//! What objects hold: bytes, or a rule that makes them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use foreread_types::mix;

/// What an object holds. The server asks for parts of at most [`PART`](super::PART) bytes.
pub trait Content: Send + Sync + 'static {
    /// Length in bytes.
    fn size(&self) -> u64;

    /// Some of the bytes; the range lies within the size.
    fn range(&self, range: Range<u64>) -> Bytes;
}

impl Content for Bytes {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn range(&self, range: Range<u64>) -> Bytes {
        self.slice(range.start as usize..range.end as usize)
    }
}

/// Content of `size` bytes that `make` makes: a 10 GB archive without the memory.
pub fn made(size: u64, make: impl Fn(Range<u64>) -> Bytes + Send + Sync + 'static) -> Arc<dyn Content> {
    Arc::new(GeneratedContent { size, make })
}

struct GeneratedContent<F> {
    size: u64,
    make: F,
}

impl<F: Fn(Range<u64>) -> Bytes + Send + Sync + 'static> Content for GeneratedContent<F> {
    fn size(&self) -> u64 {
        self.size
    }

    fn range(&self, range: Range<u64>) -> Bytes {
        (self.make)(range)
    }
}

/// Objects `0..count` of one size, named so that their numbers' order is their names' order, made without memory of
/// their own: each is a slice of one pattern, at a place that its number gives.
#[derive(Clone)]
pub struct Numbered {
    count: u64,
    size: u64,
    name: fn(u64) -> String,
    pattern: Bytes,
}

impl fmt::Debug for Numbered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Numbered")
            .field("count", &self.count)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// The pattern is longer than a slice of it by this much, so that as many slices differ.
const SPREAD: u64 = 1 << 20;

impl Numbered {
    /// `count` objects of `size` bytes, a thousand to a directory: `000017/00017042.bin`.
    pub fn new(count: u64, size: u64) -> Self {
        Self::named(count, size, |id| format!("{:06}/{id:08}.bin", id / 1000))
    }

    /// The same with other names. `name` must grow with its argument, byte by byte.
    pub fn named(count: u64, size: u64, name: fn(u64) -> String) -> Self {
        let words = (size + SPREAD).div_ceil(8);
        let pattern: Vec<u8> = (0..words).flat_map(|word| mix(word).to_le_bytes()).collect();
        Self { count, size, name, pattern: Bytes::from(pattern) }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Bytes of each.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The name of object `id`.
    pub fn name(&self, id: u64) -> String {
        (self.name)(id)
    }

    /// The bytes of object `id`.
    pub fn bytes(&self, id: u64) -> Bytes {
        let start = (mix(id) % SPREAD) as usize;
        self.pattern.slice(start..start + self.size as usize)
    }

    /// How many names are before `name`; and whether the next is `name` itself.
    pub(super) fn rank(&self, name: &str) -> (u64, bool) {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            match (self.name)(middle).as_str().cmp(name) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return (middle, true),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        (low, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_objects_are_found_by_name_and_differ() {
        let numbered = Numbered::new(2500, 100);
        assert_eq!(
            (numbered.count(), numbered.size(), numbered.name(2042)),
            (2500, 100, "000002/00002042.bin".into())
        );
        for id in [0, 1, 999, 1000, 2499] {
            assert_eq!(numbered.rank(&numbered.name(id)), (id, true));
            assert_eq!(numbered.rank(&format!("{}x", numbered.name(id))), (id + 1, false));
            assert_ne!(numbered.bytes(id), numbered.bytes(id + 1));
        }
        assert_eq!((numbered.rank(""), numbered.rank("z")), ((0, false), (2500, false)));
        let made = made(1 << 40, |range| Bytes::from(vec![7; (range.end - range.start) as usize]));
        assert_eq!((made.size(), made.range(5..7).len()), (1 << 40, 2));
    }
}
