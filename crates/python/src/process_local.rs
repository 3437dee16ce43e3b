//! What belongs to one process, and is left alone in a copy of it.
//!
//! After `fork` the child has the parent's memory and none of its threads: a lock that one of them held is never given back,
//! and a runtime's shutdown waits for threads that are not there. So everything that threads work on remembers the process that
//! it was made in. Elsewhere it refuses to work, and when it is dropped it is forgotten; the price is memory that the
//! child never had to itself anyway. Processes are told apart by a count that a handler of `fork` raises in the child:
//! asking the kernel for the process's number costs more than reading a sample's bytes does.

use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::PyResult;

use crate::errors;

/// How many forks led from the first process that loaded this module to this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Begins to count forks; once for a process and its children.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler is a function that lives as long as this module, and does nothing but add to an atomic
        // number, which is allowed in a child. Where no handler can be registered there is no memory for anything else
        // either; then forks go unnoticed.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// The number of this process's generation.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// A value that is of use in the process that made it alone.
#[derive(Debug)]
pub(crate) struct Here<T> {
    value: ManuallyDrop<T>,
    generation: u64,
}

impl<T> Here<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), generation: generation() }
    }

    /// The value; in a forked child a `ForkError` that names `what`.
    pub(crate) fn get(&self, what: &str) -> PyResult<&T> {
        if self.generation == generation() { Ok(&self.value) } else { Err(errors::forked(what)) }
    }

    /// The value wherever this is: for reading memory that nobody writes any more.
    pub(crate) fn peek(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Here<T> {
    fn drop(&mut self) {
        if self.generation == generation() {
            // SAFETY: it is dropped here alone, and nothing looks at it afterwards: this is the end of what holds it.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
