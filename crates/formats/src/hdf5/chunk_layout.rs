//! How a dataset is cut into chunks, as its header says.
//!
//! The header has the place of an index, and [`chunk`](super::chunk) reads it. Files with one
//! dataset per sample are the exception: the only chunk of each is found together with the headers.

/// How a dataset is cut into chunks.
#[derive(Clone, Debug)]
pub(super) struct ChunkLayout {
    /// The lengths of a chunk's dimensions. The ones at the edges are as long.
    pub(super) lengths: Vec<u64>,
    /// The bytes of a chunk without filters.
    pub(super) bytes: u64,
    pub(super) index: ChunkIndex,
    /// The largest shape of the dataset.
    pub(super) most: Vec<Option<u64>>,
    /// The chunk of a dataset that has one, if it was read with the header.
    pub(super) only: Option<Stored>,
    /// Filters are not applied to chunks that reach out of the dataset.
    pub(super) edges_unfiltered: bool,
}

/// The index of chunks, and its place. No place: there are no chunks.
#[derive(Clone, Debug)]
pub(super) enum ChunkIndex {
    /// A version 1 B-tree.
    BTree1(Option<u64>),
    /// One chunk.
    Single { at: Option<u64>, size: u64, mask: u32 },
    /// Chunks one after another.
    Implicit(Option<u64>),
    /// A fixed array.
    FixedArray(Option<u64>),
    /// An extensible array.
    ExtensibleArray(Option<u64>),
    /// A version 2 B-tree.
    BTree2(Option<u64>),
}

impl ChunkIndex {
    /// The index's name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::BTree1(_) => "version 1 B-tree",
            Self::Single { .. } => "single chunk",
            Self::Implicit(_) => "implicit index",
            Self::FixedArray(_) => "fixed array",
            Self::ExtensibleArray(_) => "extensible array",
            Self::BTree2(_) => "version 2 B-tree",
        }
    }
}

/// A chunk in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// Its number in row-major order of the chunks in the dataset's shape.
    pub(super) number: u64,
    /// Its place in the file.
    pub(super) at: u64,
    /// The bytes in the file.
    pub(super) size: u64,
    /// Bit `i`: filter `i` was not applied.
    pub(super) mask: u32,
}
