//! A state without a host, for tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foreread_local::disk::SharedRoom;

use super::{CopyJob, HostState, HostWork};
use crate::adoption::EarlierCopies;
use crate::listing::ListedFile;
use crate::table::{NewTable, Table};
use crate::writes::WriteBudget;

/// A budget, and the number of tries.
#[derive(Debug, Default)]
pub(super) struct Budget {
    bytes: AtomicU64,
    pub(super) tries: AtomicU64,
}

impl WriteBudget for Budget {
    fn take(&self, bytes: u64) -> bool {
        self.tries.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A state with twenty files, whose hashes are 1 to 20.
pub(super) fn state(cache: &Path, room: u64, budget: &Arc<Budget>, keeps_pages: bool) -> HostState {
    let copies = cache.join("copies");
    std::fs::create_dir_all(&copies).unwrap();
    let new = NewTable {
        checks: false,
        key: 1,
        files: 100,
        copies: 100,
        copies_device: 1,
        directory: &copies,
        roots: &[],
        rights: [0; 4],
    };
    let table = Table::create(cache, &new).unwrap();
    let writes: Arc<dyn WriteBudget> = budget.clone();
    let mut state =
        HostState::new(table, copies, SharedRoom::new(room), EarlierCopies::new(cache, []), Some(writes));
    for hash in 1..=20 {
        let path = PathBuf::from(format!("/{hash}"));
        state.add(ListedFile { hash, path, is_link: false, keeps_pages });
    }
    state.all_are_listed();
    state
}

/// The next copy.
pub(super) fn next(state: &mut HostState) -> Option<CopyJob> {
    match state.next()? {
        HostWork::Copy(job) => Some(job),
        HostWork::Check(_) => None,
    }
}
