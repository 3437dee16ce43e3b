//! LMDB: the cost of indexing a large tree, and trees that no writer makes. The pages are made
//! here.

use std::ops::Range;

use bytes::Bytes;
use foreread_formats::lmdb::{LmdbOptions, index};
use foreread_formats::{Extents, FileSource, FormatError, FormatErrorKind, FoundSamples, ReadError};
use futures::executor::block_on;
use futures::future::BoxFuture;

use crate::counting::Counted;

const BRANCH: u16 = 1;
const LEAF: u16 = 2;
/// The flag of a node whose value is in overflow pages.
const BIG: u8 = 1;

fn find(source: &dyn FileSource) -> Result<FoundSamples, FormatError> {
    block_on(index(source, &LmdbOptions::default()))
}

fn rows(found: &FoundSamples) -> &[(u64, u64)] {
    match &found.extents {
        Extents::Rows(rows) => rows,
        Extents::Runs(_) => panic!("LMDB has rows"),
    }
}

/// The first 6 bytes of a node, its key and its data.
type Stored = ([u8; 6], Vec<u8>, Vec<u8>);

fn child(page: u64) -> Stored {
    (page.to_le_bytes()[..6].try_into().unwrap(), b"separator".to_vec(), Vec::new())
}

fn inline(key: &[u8], value: &[u8]) -> Stored {
    let length = (value.len() as u32).to_le_bytes();
    ([length[0], length[1], length[2], length[3], 0, 0], key.to_vec(), value.to_vec())
}

fn overflow(key: &[u8], page: u64, length: u32) -> Stored {
    let length = length.to_le_bytes();
    let head = [length[0], length[1], length[2], length[3], BIG, 0];
    (head, key.to_vec(), page.to_le_bytes().to_vec())
}

/// The main database of a file of version 0.9.
#[derive(Clone, Copy)]
struct Main {
    page_size: usize,
    flags: u64,
    depth: u64,
    leaf_pages: u64,
    overflow_pages: u64,
    entries: u64,
    root: u64,
    last_page: u64,
}

impl Main {
    fn meta(&self, number: u64) -> Vec<u8> {
        let mut words = vec![number, 8 << 16, 1 << 32 | 0xBEEF_C0DE, 0, 0];
        words.extend([self.page_size as u64, 0, 0, 0, 0, u64::MAX]);
        words.extend([self.flags << 32 | self.depth << 48, 0, self.leaf_pages, self.overflow_pages]);
        words.extend([self.entries, self.root, self.last_page, number]);
        let mut page: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        page.resize(self.page_size, 0);
        page
    }

    fn page(&self, number: u64, flags: u16, nodes: &[Stored]) -> Vec<u8> {
        let mut page = vec![0; self.page_size];
        page[..8].copy_from_slice(&number.to_le_bytes());
        let mut upper = self.page_size;
        for (index, (head, key, data)) in nodes.iter().enumerate() {
            let node = [&head[..], &(key.len() as u16).to_le_bytes(), key, data].concat();
            upper = (upper - node.len()) & !1;
            page[upper..upper + node.len()].copy_from_slice(&node);
            page[16 + 2 * index..][..2].copy_from_slice(&(upper as u16).to_le_bytes());
        }
        for (place, word) in [flags, (16 + 2 * nodes.len()) as u16, upper as u16].into_iter().enumerate() {
            page[10 + 2 * place..][..2].copy_from_slice(&word.to_le_bytes());
        }
        page
    }

    /// A file with these tree pages, from page 2 on.
    fn file(&self, pages: &[(u16, &[Stored])]) -> Bytes {
        let mut file = [self.meta(0), self.meta(1)].concat();
        for (number, (flags, nodes)) in (2..).zip(pages) {
            file.extend(self.page(number, *flags, nodes));
        }
        file.into()
    }
}

/// One leaf on page 2, and nothing else.
const ONE: Main = Main {
    page_size: 4096,
    flags: 0,
    depth: 1,
    leaf_pages: 1,
    overflow_pages: 0,
    entries: 1,
    root: 2,
    last_page: 2,
};

/// A database whose pages are computed when they are read. After each leaf are the overflow pages
/// of its values. Branches are at the end.
struct Computed {
    main: Main,
    value: u64,
    /// Values per leaf.
    per_leaf: u64,
    /// Overflow pages per value. Values are in the leaves if it is 0.
    run: u64,
    /// Per level, the first page and the number of pages. Leaves are level 0.
    levels: Vec<(u64, u64)>,
}

impl Computed {
    /// Children of a branch.
    const FANOUT: u64 = 100;

    /// The step that places leaves far from their neighbours by key.
    const STEP: u64 = 7919;

    fn new(samples: u64, value: u64, per_leaf: u64, run: u64) -> Self {
        let leaves = samples.div_ceil(per_leaf);
        let (mut levels, mut free) = (vec![(2, leaves)], 2 + leaves * (1 + per_leaf * run));
        let mut below = leaves;
        while below > 1 {
            below = below.div_ceil(Self::FANOUT);
            levels.push((free, below));
            free += below;
        }
        let main = Main {
            depth: levels.len() as u64,
            leaf_pages: leaves,
            overflow_pages: samples * run,
            entries: samples,
            root: free - 1,
            last_page: free - 1,
            ..ONE
        };
        Self { main, value, per_leaf, run, levels }
    }

    /// The page of a leaf. Neighbours by key are far apart if values are in leaves.
    fn leaf(&self, leaf: u64) -> u64 {
        let place = if self.run == 0 { leaf * Self::STEP % self.levels[0].1 } else { leaf };
        2 + place * (1 + self.per_leaf * self.run)
    }

    fn key(sample: u64) -> String {
        format!("{sample:08}")
    }

    fn leaf_page(&self, number: u64, leaf: u64) -> Vec<u8> {
        let first = leaf * self.per_leaf;
        let samples = first..self.main.entries.min(first + self.per_leaf);
        let nodes: Vec<Stored> = samples
            .map(|sample| {
                let key = Self::key(sample).into_bytes();
                let place = number + 1 + (sample - first) * self.run;
                match self.run {
                    0 => inline(&key, &vec![7; self.value as usize]),
                    _ => overflow(&key, place, self.value as u32),
                }
            })
            .collect();
        self.main.page(number, LEAF, &nodes)
    }

    fn page(&self, number: u64) -> Vec<u8> {
        if number < 2 {
            return self.main.meta(number);
        }
        let level = self.levels.iter().rposition(|&(first, _)| number >= first).unwrap();
        let place = number - self.levels[level].0;
        if level == 0 {
            let each = 1 + self.per_leaf * self.run;
            if !place.is_multiple_of(each) {
                // A value's page, whose bytes do not matter.
                return vec![0; self.main.page_size];
            }
            let leaves = self.levels[0].1;
            let leaf = match self.run {
                // The inverse of `leaf`.
                0 => (0..Self::STEP).map(|turn| place + turn * leaves).find(|at| at % Self::STEP == 0),
                _ => Some(place / each * Self::STEP),
            };
            return self.leaf_page(number, leaf.unwrap() / Self::STEP);
        }
        let (first, pages) = self.levels[level - 1];
        let children = place * Self::FANOUT..pages.min((place + 1) * Self::FANOUT);
        let page = |number| if level == 1 { self.leaf(number) } else { first + number };
        let nodes: Vec<Stored> = children.map(|number| child(page(number))).collect();
        self.main.page(number, BRANCH, &nodes)
    }
}

impl FileSource for Computed {
    fn size(&self) -> u64 {
        (self.main.last_page + 1) * self.main.page_size as u64
    }

    fn read(&self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ReadError>> {
        let page = self.main.page_size as u64;
        let first = range.start / page;
        let mut bytes: Vec<u8> =
            (first..range.end.div_ceil(page)).flat_map(|number| self.page(number)).collect();
        bytes.truncate((range.end - first * page) as usize);
        bytes.drain(..(range.start - first * page) as usize);
        Box::pin(std::future::ready(Ok(bytes.into())))
    }
}

#[test]
// semantics: SHARD-9
fn tree_of_large_values_costs_few_requests_and_bytes() {
    // 30 GB: leaves about as full as of a writer that adds keys in any order.
    let samples = 300_000;
    let source = Counted::new(Computed::new(samples, 100 << 10, 70, 26));
    let found = find(&source).unwrap();
    assert_eq!(found.len(), samples);
    let (requests, bytes) = source.cost();
    assert!(requests as f64 <= 0.02 * samples as f64, "{requests} requests");
    assert!(bytes as f64 <= 0.02 * source.size() as f64, "{bytes} of {} bytes", source.size());
    let keys = found.keys.as_ref().unwrap();
    for sample in [0, 1, 69, 70, 71, 150_000, samples - 1] {
        let leaf = source.source.leaf(sample / 70);
        let start = (leaf + 1 + sample % 70 * 26) * 4096 + 16;
        assert_eq!(rows(&found)[sample as usize], (start, 100 << 10));
        assert_eq!(keys[sample as usize], Computed::key(sample));
    }
}

#[test]
fn tree_of_small_values_is_read_once_in_large_requests() {
    let samples = 100_003;
    let source = Counted::new(Computed::new(samples, 500, 7, 0));
    let found = find(&source).unwrap();
    let keys = found.keys.as_ref().unwrap();
    assert!((0..samples).zip(keys).all(|(sample, key)| *key == Computed::key(sample)));
    assert_eq!(keys.len() as u64, samples);
    let (requests, bytes) = source.cost();
    let size = source.size();
    assert!(bytes as f64 <= 1.05 * size as f64, "{bytes} of {size} bytes");
    assert!(requests <= size / (1 << 20) + 20, "{requests} requests for {size} bytes");
}

#[test]
fn pages_may_be_larger_or_smaller_than_blocks() {
    let sizes = [256, 512, 4096, 8192, 16 << 10, 32 << 10];
    for (page_size, overflow_pages) in sizes.into_iter().flat_map(|size| [(size, 0), (size, 9)]) {
        let main = Main { page_size, overflow_pages, depth: 2, entries: 2, last_page: 5, ..ONE };
        let branch = [child(4), child(3)];
        let long = overflow(b"b", 5, page_size as u32 - 16);
        let pages: [(u16, &[Stored]); 4] =
            [(BRANCH, &branch), (LEAF, &[long]), (LEAF, &[inline(b"a", b"value")]), (LEAF, &[])];
        let file = main.file(&pages);
        let found = find(&file).unwrap();
        let (start, length) = rows(&found)[0];
        assert_eq!(&file[start as usize..(start + length) as usize], b"value");
        assert_eq!(rows(&found)[1], (5 * page_size as u64 + 16, page_size as u64 - 16));
        assert_eq!(found.keys.unwrap(), ["a", "b"]);
    }
}

#[test]
fn integer_key_is_never_a_name() {
    let named =
        |flags| find(&Main { flags, ..ONE }.file(&[(LEAF, &[inline(b"metadata", b"value")])])).unwrap();
    assert_eq!((named(0).len(), named(0).skipped), (0, 1));
    assert_eq!(named(8).keys.unwrap(), ["0x6d65746164617461"]);
}

fn damage(file: &Bytes) -> String {
    let error = find(file).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Damaged, "{error}");
    error.to_string()
}

#[test]
fn values_outside_of_the_file_are_refused() {
    let value = |last_page, page, length| {
        damage(&Main { last_page, ..ONE }.file(&[(LEAF, &[overflow(b"key", page, length)]), (LEAF, &[])]))
    };
    assert!(value(3, 3, 4081).contains("ends on page 4, expected at most 3"));
    assert!(value(3, 4, 1).contains("expected 2 to 3"));
    assert!(value(3, 1, 1).contains("expected 2 to 3"));
    // A last page that the file does not have.
    assert!(value(u64::MAX, 3, 4081).contains("cut short"));
    assert!(value(u64::MAX, 4, 1).contains("cut short"));
    assert!(value(u64::MAX, u64::MAX - 1, u32::MAX).contains("cut short"));
    assert!(value(u64::MAX, 1 << 52, u32::MAX).contains("cut short"));
}

#[test]
fn tree_larger_than_the_file_is_refused() {
    let branch: Vec<Stored> = (0..9).map(|_| child(3)).collect();
    let main = Main { depth: 2, last_page: 3, ..ONE };
    assert!(damage(&main.file(&[(BRANCH, &branch), (LEAF, &[])])).contains("more pages than the file"));
}

#[test]
fn invalid_page_sizes_are_refused() {
    let whole = ONE.file(&[(LEAF, &[inline(b"key", b"value")])]);
    find(&whole).unwrap();
    for size in [0u32, 1, 128, 4095, 5000, 64 << 10, 1 << 31, u32::MAX] {
        let mut file = whole.to_vec();
        file[40..44].copy_from_slice(&size.to_le_bytes());
        let refused = damage(&file.into());
        assert!(refused.contains("the page size is"), "{size}: {refused}");
    }
    let mut file = whole.to_vec();
    file[4096 + 41] = 0x20;
    assert!(damage(&file.into()).contains("differ in their page size"));
}
