//! Byte budgets.
//!
//! A [`Budget`] is a counter with a limit. A [`Charge`] is a part of it that is released when
//! dropped. The counter never blocks: a caller that finds no room decides on its own, because only
//! it knows whether the trainer is waiting. [`Budget::charge`] may exceed the limit for exactly
//! that case. The batch needed next must be admitted, or a buffer full of later samples would wait
//! forever.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type ReleaseHook = Box<dyn Fn(u64) + Send + Sync>;

struct BudgetState {
    limit: u64,
    used: AtomicU64,
    on_release: Option<ReleaseHook>,
}

/// A shared limit on bytes. Clones share it.
#[derive(Clone)]
pub struct Budget(Arc<BudgetState>);

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("limit", &self.limit()).field("used", &self.used()).finish()
    }
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(BudgetState { limit, used: AtomicU64::new(0), on_release: None }))
    }

    /// A budget that calls `on_release` with the number of bytes each time a charge ends. The call
    /// runs on the thread that ended the charge (often the trainer's), so it must be quick and must
    /// not block.
    pub fn with_release(limit: u64, on_release: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self(Arc::new(BudgetState { limit, used: AtomicU64::new(0), on_release: Some(Box::new(on_release)) }))
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// The charged bytes. Above the limit only through [`charge`](Self::charge).
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Acquire)
    }

    /// Charges `bytes` if they are free.
    pub fn try_charge(&self, bytes: u64) -> Option<Charge> {
        self.0
            .used
            .try_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(bytes).filter(|&sum| sum <= self.0.limit)
            })
            .ok()
            .map(|_| Charge { budget: self.clone(), bytes })
    }

    /// Charges `bytes`, even above the limit.
    pub fn charge(&self, bytes: u64) -> Charge {
        self.0.used.fetch_add(bytes, Ordering::AcqRel);
        Charge { budget: self.clone(), bytes }
    }
}

/// Bytes of a [`Budget`] that are in use until this is dropped.
#[must_use = "dropping a charge gives its bytes back"]
#[derive(Debug)]
pub struct Charge {
    budget: Budget,
    bytes: u64,
}

impl Charge {
    /// The charged bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the charge belongs to `budget`.
    pub fn is_of(&self, budget: &Budget) -> bool {
        Arc::ptr_eq(&self.budget.0, &budget.0)
    }

    /// Adds `other` to this charge.
    ///
    /// # Errors
    /// `other`, if it belongs to another budget.
    pub fn merge(&mut self, mut other: Self) -> Result<(), Self> {
        if !other.is_of(&self.budget) {
            return Err(other);
        }
        self.bytes += std::mem::take(&mut other.bytes);
        Ok(())
    }

    /// Splits off a charge of `bytes`, or of all bytes if there are fewer.
    pub fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { budget: self.budget.clone(), bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // Its bytes belong to another charge.
        if self.bytes == 0 {
            return;
        }
        self.budget.0.used.fetch_sub(self.bytes, Ordering::AcqRel);
        if let Some(on_release) = &self.budget.0.on_release {
            on_release(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_charge_is_released_and_reported() {
        let seen = Arc::new(AtomicU64::new(0));
        let sum = Arc::clone(&seen);
        let budget = Budget::with_release(10, move |bytes| {
            sum.fetch_add(bytes, Ordering::Relaxed);
        });
        let first = budget.try_charge(7).unwrap();
        assert!(budget.try_charge(4).is_none());
        let forced = budget.charge(4);
        assert_eq!(budget.used(), 11);
        drop(first);
        assert_eq!((budget.used(), seen.load(Ordering::Relaxed)), (4, 7));
        assert!(forced.is_of(&budget) && !forced.is_of(&Budget::new(10)));
    }

    #[test]
    fn merged_and_split_charges_count_once() {
        let budget = Budget::new(10);
        let mut charge = budget.try_charge(3).unwrap();
        charge.merge(budget.try_charge(4).unwrap()).unwrap();
        assert_eq!((charge.bytes(), budget.used()), (7, 7));
        let foreign = charge.merge(Budget::new(9).charge(1)).unwrap_err();
        assert_eq!((foreign.bytes(), charge.bytes()), (1, 7));
        drop(charge.split(5));
        assert_eq!((charge.bytes(), budget.used()), (2, 2));
        let rest = charge.split(9);
        assert_eq!((rest.bytes(), charge.bytes(), budget.used()), (2, 0, 2));
        drop(rest);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn overflowing_charge_is_refused() {
        let budget = Budget::new(u64::MAX);
        let _held = budget.charge(5);
        assert!(budget.try_charge(u64::MAX - 1).is_none());
    }
}
