//! Aligned memory to write from.

use super::place::BLOCK;

/// Reusable memory that begins at a multiple of [`BLOCK`].
#[derive(Debug)]
pub(super) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    pub(super) fn new(capacity: usize) -> Self {
        let memory = vec![0; capacity + BLOCK as usize];
        let start = memory.as_ptr().align_offset(BLOCK as usize).min(BLOCK as usize);
        Self { memory, start, length: 0 }
    }

    pub(super) fn left(&self) -> usize {
        self.memory.len() - BLOCK as usize - self.length
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.memory[self.start..][..self.length]
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn clear(&mut self) {
        self.length = 0;
    }

    /// Appends `bytes`.
    ///
    /// # Panics
    /// If they do not fit.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.memory[self.start + self.length..][..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Appends `count` zeros.
    ///
    /// # Panics
    /// If they do not fit.
    pub(super) fn extend_zeros(&mut self, count: usize) {
        self.memory[self.start + self.length..][..count].fill(0);
        self.length += count;
    }

    /// Replaces the first bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub(super) fn replace_first(&mut self, bytes: &[u8]) {
        self.memory[self.start..][..self.length][..bytes.len()].copy_from_slice(bytes);
    }

    /// Appends zeros up to a multiple of [`BLOCK`].
    pub(super) fn pad(&mut self) {
        self.extend_zeros(self.length.next_multiple_of(BLOCK as usize) - self.length);
    }
}
