//! The lock of shared state.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A panic of another holder is not passed on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
