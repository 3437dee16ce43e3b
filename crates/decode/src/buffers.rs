//! Memory for batches, which is reused.
//!
//! A batch of 256 images takes 38 MB, or 154 MB as floats. Fresh memory for it costs a page fault
//! per 4 KiB: 25 to 100 ms. So a batch's memory is mapped in large pages where the system allows
//! that, and the next batch gets it when the trainer lets go. The price: memory for as many batches
//! as were ever in use at once, up to [`MOST_FREE`], stays mapped.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::MmapMut;

/// Unused batches that are kept.
const MOST_FREE: usize = 4;

/// Memory for batches of one size. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct BatchBuffers {
    free: Arc<Mutex<Vec<MmapMut>>>,
}

/// The memory of a batch. Dropping it allows its reuse.
#[derive(Debug)]
pub struct BatchBuffer {
    /// `None` for batches of no bytes, and when dropped.
    memory: Option<MmapMut>,
    length: usize,
    of: BatchBuffers,
}

impl BatchBuffers {
    /// Memory for `length` bytes, page-aligned, with any content.
    ///
    /// # Errors
    /// If memory is short.
    pub fn take(&self, length: usize) -> io::Result<BatchBuffer> {
        if length == 0 {
            return Ok(BatchBuffer { memory: None, length, of: self.clone() });
        }
        let memory = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = free.iter().position(|memory| memory.len() >= length);
            fits.map(|at| free.swap_remove(at))
        };
        let memory = memory.map_or_else(|| mapped(length), Ok)?;
        Ok(BatchBuffer { memory: Some(memory), length, of: self.clone() })
    }
}

fn mapped(length: usize) -> io::Result<MmapMut> {
    let memory = MmapMut::map_anon(length)?;
    #[cfg(target_os = "linux")]
    {
        // Kernels without large pages refuse: then pages are small.
        let _ = memory.advise(memmap2::Advice::HugePage);
    }
    Ok(memory)
}

impl BatchBuffer {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory[..self.length])
    }

    /// The bytes, to write them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], |memory| &mut memory[..self.length])
    }
}

impl Drop for BatchBuffer {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut free = self.of.free.lock().unwrap_or_else(PoisonError::into_inner);
        // Memory for another size was too small for the last batch, so it may never be used again.
        if free.len() >= MOST_FREE {
            free.remove(0);
        }
        free.push(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reused_and_bounded() {
        let buffers = BatchBuffers::default();
        let mut first = buffers.take(1 << 20).unwrap();
        first.bytes_mut().fill(7);
        let at = first.bytes().as_ptr();
        drop(first);
        assert_eq!(buffers.take(1000).unwrap().bytes().as_ptr(), at);
        let many: Vec<_> = (0..9).map(|_| buffers.take(4096).unwrap()).collect();
        assert!(many.iter().all(|buffer| buffer.bytes().len() == 4096));
        drop(many);
        assert_eq!(buffers.free.lock().unwrap().len(), MOST_FREE);
        assert_eq!(buffers.take(0).unwrap().bytes(), b"");
    }
}
