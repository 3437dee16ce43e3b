//! Sparse files: a catalog with parts that were never written, as an interrupted copy leaves it.

/// The highest ratio of a file's length to its allocated bytes. It is above the ratio of
/// compression by file systems.
const MAX_COMPRESSION: u64 = 64;

/// Shorter files are read whatever their allocated size. ZFS, for example, may report the allocated
/// size of a file only seconds after it was written. This limits the bytes that are read in vain.
const MAX_UNCHECKED: u64 = 1 << 30;

/// Whether a file of `length` bytes with `blocks` allocated blocks of 512 bytes is sparse. Some
/// file systems do not report blocks.
pub(crate) fn is_sparse(length: u64, blocks: u64) -> bool {
    length >= MAX_UNCHECKED && blocks > 0 && length / MAX_COMPRESSION > blocks.saturating_mul(512)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ZFS reports a block for each file that was just written.
    #[test]
    // semantics: SAMPLE-21
    fn catalog_that_was_just_written_is_not_sparse() {
        assert!(!is_sparse(100 << 20, 1));
        assert!(!is_sparse(1 << 40, 0));
        assert!(!is_sparse(1 << 40, 1 << 30));
        assert!(is_sparse(1 << 30, 1));
        assert!(is_sparse(1 << 42, 16));
    }
}
