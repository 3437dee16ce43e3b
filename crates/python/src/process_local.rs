//! Values that belong to one process and are left untouched in a forked child.
//!
//! After `fork` the child has the parent's memory but none of its threads. A lock that one of them
//! held is never released, and a runtime's shutdown waits for missing threads. So every value that
//! threads work on remembers its process. In another process it refuses to work, and dropping it
//! leaks it. The price is memory that the child shares with its parent anyway. A counter that a
//! `fork` handler increments in the child identifies processes. Requesting the process id from the
//! kernel costs more than reading a sample's bytes.

use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::PyResult;

use crate::errors;

/// The number of forks between the first process that loaded this module and this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Starts counting forks, once for a process and its children.
pub(crate) fn count_forks() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the handler is a function that lives as long as this module. It only adds to an
        // atomic number, which is allowed in a child. Registration fails only without memory. Forks
        // then go unnoticed.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// The generation of this process.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// A value that only the process that made it may use.
#[derive(Debug)]
pub(crate) struct ProcessLocal<T> {
    value: ManuallyDrop<T>,
    generation: u64,
}

impl<T> ProcessLocal<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), generation: generation() }
    }

    /// The value, or in a forked child a `ForkError` that names `what`.
    pub(crate) fn get(&self, what: &str) -> PyResult<&T> {
        if self.generation == generation() { Ok(&self.value) } else { Err(errors::forked(what)) }
    }

    /// The value in any process, for reading memory that no thread writes any more.
    pub(crate) fn peek(&self) -> &T {
        &self.value
    }
}

impl<T: Default> Default for ProcessLocal<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Drop for ProcessLocal<T> {
    fn drop(&mut self) {
        if self.generation == generation() {
            // SAFETY: the value is dropped only here, and not used afterwards, because its owner
            // ends here.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
