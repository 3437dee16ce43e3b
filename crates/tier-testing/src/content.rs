//! Generated contents that depend on the object.

use std::ops::Range;

use bytes::Bytes;
use foreread_tier::{Buffer, Buffers, HeapBuffers, Object, ReadRequest, Span};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick, mix};

/// The content of the object `path` of `size` bytes. A pure function of its arguments, different
/// for every object and without a period, so a wrong path, length or offset is detected.
pub fn content(seed: u64, path: &str, size: u64) -> Bytes {
    content_range(seed, path, size, 0..size)
}

/// A part of [`content`], without generating the rest.
///
/// # Panics
/// If the range leaves the object.
pub fn content_range(seed: u64, path: &str, size: u64, range: Range<u64>) -> Bytes {
    assert!(range.start <= range.end && range.end <= size, "{range:?} of {size} bytes of {path}");
    let name = path.bytes().fold(mix(seed ^ size), |hash, byte| mix(hash ^ u64::from(byte)));
    let mut bytes = memory((range.end - range.start) as usize);
    let mut at = range.start;
    while at < range.end {
        let word = mix(name ^ (at / 8)).to_le_bytes();
        let part = &word[(at % 8) as usize..];
        let part = &part[..part.len().min((range.end - at) as usize)];
        bytes.extend(part);
        at += part.len() as u64;
    }
    bytes.freeze()
}

/// Memory as all samples have it.
///
/// # Panics
/// If there is none.
fn memory(length: usize) -> Buffer {
    let Some(memory) = HeapBuffers.allocate(length, 1) else { panic!("no memory for {length} bytes") };
    memory
}

/// A copy in memory as all samples have it.
pub(crate) fn copied(bytes: &[u8]) -> Bytes {
    let mut copy = memory(bytes.len());
    copy.extend(bytes);
    copy.freeze()
}

/// A number in `0.0..1.0`.
pub(crate) fn unit(value: u64) -> f64 {
    (mix(value) >> 11) as f64 / (1u64 << 53) as f64
}

/// An object with its sample's key and its content.
#[derive(Clone, Debug)]
pub struct KnownSample {
    /// The sample.
    pub key: SampleKey,
    /// The object.
    pub object: Object,
    /// The bytes of the whole object.
    pub content: Bytes,
}

impl KnownSample {
    /// Objects of the given paths and sizes without versions, numbered in this order as samples of
    /// dataset 0, with the [`content`] of `seed`.
    pub fn generate<'a>(seed: u64, named: impl IntoIterator<Item = (&'a str, u64)>) -> Vec<Self> {
        named
            .into_iter()
            .zip(0..)
            .map(|((path, size), id)| Self {
                key: SampleKey::new(DatasetId(0), SampleId(id)),
                object: Object { path: path.into(), size, version: None },
                content: content(seed, path, size),
            })
            .collect()
    }

    /// A read of the whole object, due at this tick.
    pub fn whole(&self, due: u32) -> ReadRequest {
        request(due, self.key, &self.object)
    }

    /// A read of a part of it, due at this tick.
    pub fn range(&self, due: u32, range: Range<u64>) -> ReadRequest {
        ReadRequest { span: Span::Range(range), ..self.whole(due) }
    }
}

/// A read of the whole `object`, due at this tick.
pub fn request(due: u32, key: SampleKey, object: &Object) -> ReadRequest {
    ReadRequest::new(key, object.clone(), Span::Whole, Tick(u64::from(due)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_equals_a_slice_of_the_content() {
        let whole = content(7, "a/b", 100);
        assert_eq!(whole.len(), 100);
        for (start, end) in [(0, 100), (0, 0), (3, 4), (5, 29), (8, 16), (99, 100)] {
            assert_eq!(content_range(7, "a/b", 100, start..end), whole.slice(start as usize..end as usize));
        }
    }

    #[test]
    fn content_depends_on_seed_path_and_size() {
        let base = content(7, "a/b", 100);
        assert_ne!(content(8, "a/b", 100), base);
        assert_ne!(content(7, "a/c", 100), base);
        assert_ne!(content(7, "a/b", 101)[..100], base[..]);
    }
}
