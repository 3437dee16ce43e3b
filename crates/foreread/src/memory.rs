//! The memory of a run without a setting: `--memory auto`.
//!
//! All loaders of all ranks of a node take at most half of the free memory. The machine and the
//! control group (a container's or a job's limit) determine how much is free. Half, because the
//! trainer's own growth is unknown. A killed process costs more than a smaller cache. The rest of
//! the free memory still serves as page cache.
//!
//! * A rank's *share* is that half, divided by the node's ranks. It is measured when the rank's
//!   first automatic loader starts, and holds while any of its automatic loaders lives. Memory that
//!   other ranks have filled since belongs to them.
//! * A *grant* covers a loader's memory tier and its look-ahead. It counts for the whole process,
//!   never exceeds the loader's datasets, and is returned when the loader is dropped. The
//!   look-ahead is the user's setting and never reduced. A loader with a smaller grant gets no
//!   memory tier.
//! * A loader leaves an eighth of the share to later ones, as long as it gets an eighth itself. So
//!   the first of two loaders with large datasets gets seven eighths. The second gets one eighth,
//!   and together they use the whole share.
//! * A loader gets at most half of the memory that is free now and not granted to an unfilled
//!   loader. A trainer that has grown since the first loader started keeps its memory.
//! * Processes without a common launcher see of each other's memory only the filled part.
//! * A child that was forked from a process with live grants gets none: it cannot see the memory of
//!   its parent and siblings.
//!
//! Decision: earlier grants do not shrink. A plan is made for its capacity, and its lower bound
//! would no longer hold. The price: a process with a single loader leaves an eighth of the share
//! unused. After two loaders with large datasets, a third may get nothing. `--memory SIZE` gives it
//! a fixed size.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foreread_tier::Budget;

/// A loader leaves this fraction (1/8) of the share to later ones.
const RESERVED_PART: u64 = 8;

/// The memory that a loader requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryNeed {
    /// The memory tier's bytes, if the user has set them.
    pub(crate) fixed: Option<u64>,
    /// The most bytes that the memory tier can fill.
    pub(crate) data: u64,
    /// The bytes of the look-ahead.
    pub(crate) look_ahead: u64,
}

/// The grants to the loaders of a process. Clones are the same account.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryAccount(Arc<AccountState>);

#[derive(Debug, Default)]
struct AccountState {
    grants: Mutex<Grants>,
    /// The number of live grants. A forked child reads it without the lock, which may be held
    /// forever.
    live: AtomicUsize,
    /// Whether this process was forked from one with live grants.
    forked: bool,
}

#[derive(Debug, Default)]
struct Grants {
    /// This rank's share, while an automatic loader lives.
    share: u64,
    /// The number of the node's ranks that the share was computed for.
    ranks: u32,
    live: BTreeMap<u64, GrantEntry>,
    next: u64,
}

#[derive(Debug)]
struct GrantEntry {
    bytes: u64,
    automatic: bool,
    /// The budget of its memory tier, once the tier exists.
    tier: Option<Budget>,
}

/// A loader's part of the memory, returned on drop.
#[derive(Debug)]
pub(crate) struct Grant {
    account: MemoryAccount,
    number: u64,
    tier: u64,
}

impl MemoryAccount {
    /// The account of a child that was forked from this account's process. It grants no automatic
    /// memory if this account had live grants at the fork.
    pub(crate) fn of_a_forked_child(&self) -> Self {
        let forked = self.0.forked || self.0.live.load(Ordering::Acquire) > 0;
        Self(Arc::new(AccountState { forked, ..AccountState::default() }))
    }

    /// Grants memory to a loader of one of `ranks` ranks, if the node has `free` bytes.
    pub(crate) fn grant(&self, free: u64, ranks: u32, need: MemoryNeed) -> Grant {
        let mut grants = self.lock();
        let (tier, automatic) = match need.fixed {
            Some(bytes) => (bytes, false),
            None if self.0.forked => {
                tracing::warn!(
                    "this process was forked from one with loaders, and cannot see their memory: \
                     the automatic memory tier is off; set the size of the memory tier, \
                     or start processes by `spawn`"
                );
                (0, true)
            }
            None => {
                let most = grants.allowed(free, ranks.max(1));
                (most.saturating_sub(need.look_ahead).min(need.data), true)
            }
        };
        // A loader without a memory tier has only its look-ahead, which the user has set.
        let bytes = if tier > 0 { tier.saturating_add(need.look_ahead) } else { 0 };
        let number = grants.next;
        grants.next += 1;
        grants.live.insert(number, GrantEntry { bytes, automatic, tier: None });
        self.0.live.store(grants.live.len(), Ordering::Release);
        drop(grants);
        Grant { account: self.clone(), number, tier }
    }

    /// Each change is a few assignments, so no panic leaves a change incomplete.
    fn lock(&self) -> MutexGuard<'_, Grants> {
        self.0.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Grants {
    /// The most bytes for one more automatic loader.
    fn allowed(&mut self, free: u64, ranks: u32) -> u64 {
        let unfilled = self.live.values().map(GrantEntry::unfilled).fold(0, u64::saturating_add);
        let half = (free / u64::from(ranks)).saturating_sub(unfilled) / 2;
        if !self.live.values().any(|granted| granted.automatic && granted.bytes > 0) {
            (self.share, self.ranks) = (half, ranks);
        }
        if ranks > self.ranks {
            // The number of the node's ranks is known only now.
            self.share = self.share / u64::from(ranks) * u64::from(self.ranks);
            self.ranks = ranks;
        }
        let automatic = self.live.values().filter(|granted| granted.automatic);
        let granted = automatic.map(|granted| granted.bytes).fold(0, u64::saturating_add);
        let left = self.share.saturating_sub(granted);
        let kept = self.share / RESERVED_PART;
        left.min(left.saturating_sub(kept).max(kept)).min(half)
    }
}

impl GrantEntry {
    /// Granted bytes that are still free on the machine.
    fn unfilled(&self) -> u64 {
        self.bytes.saturating_sub(self.tier.as_ref().map_or(0, Budget::used))
    }
}

impl Grant {
    /// The bytes of the loader's memory tier.
    pub(crate) fn tier(&self) -> u64 {
        self.tier
    }

    /// Counts the bytes that `tier` charges as filled.
    pub(crate) fn fills(&self, tier: &Budget) {
        if let Some(granted) = self.account.lock().live.get_mut(&self.number) {
            granted.tier = Some(tier.clone());
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let mut grants = self.account.lock();
        let granted = grants.live.remove(&self.number);
        self.account.0.live.store(grants.live.len(), Ordering::Release);
        drop(grants);
        // Outside of the lock: it may be the last handle of a tier's budget.
        drop(granted);
    }
}

/// The free bytes within the machine and each control group of this process (cgroup, versions 1 and
/// 2). `None` if the system does not say.
pub fn free_memory() -> Option<u64> {
    free(Path::new("/"))
}

/// The same. `root` replaces `/`.
pub(crate) fn free(root: &Path) -> Option<u64> {
    let machine = available(&fs::read_to_string(root.join("proc/meminfo")).ok()?)?;
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| {
        // `0::/path` is version 2. `9:memory:/path` is version 1.
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let base = root.join("sys/fs/cgroup");
        match controllers {
            "" => group(&base, path, "memory.max", "memory.current"),
            list if list.split(',').any(|name| name == "memory") => {
                group(&base.join("memory"), path, "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => None,
        }
    });
    Some(limits.fold(machine, u64::min))
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The free bytes in the group at `path` and in all groups above it. Each level may have a limit.
fn group(base: &Path, path: &str, limit: &str, usage: &str) -> Option<u64> {
    let mut at: PathBuf = base.join(path.trim_start_matches('/'));
    let mut least: Option<u64> = None;
    while at.starts_with(base) {
        let number = |name: &str| fs::read_to_string(at.join(name)).ok()?.trim().parse::<u64>().ok();
        // `max`, which is not a number, means no limit at this level.
        if let Some(limit) = number(limit) {
            let left = limit.saturating_sub(number(usage).unwrap_or(0));
            least = Some(least.map_or(left, |least| least.min(left)));
        }
        if !at.pop() {
            break;
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   2000 kB\n");

    #[test]
    // semantics: CACHE-10
    fn forked_child_gets_fixed_memory_only() {
        let parents = MemoryAccount::default();
        let need = |fixed| MemoryNeed { fixed, data: 1 << 40, look_ahead: 1 << 10 };
        let live = parents.grant(1 << 40, 1, need(None));
        let account = parents.of_a_forked_child();
        assert_eq!(account.of_a_forked_child().grant(1 << 40, 1, need(None)).tier(), 0);
        drop(live);
        assert_eq!(account.grant(1 << 40, 1, need(None)).tier(), 0);
        assert_eq!(account.grant(1 << 40, 1, need(Some(5000))).tier(), 5000);
    }

    /// Guards against this fault: a plan in the parent took automatic memory from all its children.
    #[test]
    // semantics: CACHE-10
    fn child_of_a_process_that_only_planned_gets_automatic_memory() {
        let parents = MemoryAccount::default();
        drop(parents.grant(160_000, 1, LARGE));
        assert_eq!(taken(&[&parents.of_a_forked_child().grant(160_000, 1, LARGE)]), 70_000);
    }

    #[test]
    fn limit_of_a_parent_group_counts() {
        let root = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/job/step\n"),
            ("sys/fs/cgroup/job/memory.max", "1000000"),
            ("sys/fs/cgroup/job/memory.current", "400000"),
            ("sys/fs/cgroup/job/step/memory.max", "max"),
        ]);
        assert_eq!(free(root.path()), Some(600_000));
    }

    #[test]
    fn limits_are_read_without_control_groups_and_in_version_1() {
        let root = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "9:cpu,memory:/j\n3:pids:/\n"),
            ("sys/fs/cgroup/memory/j/memory.limit_in_bytes", "500"),
            ("sys/fs/cgroup/memory/j/memory.usage_in_bytes", "600"),
        ]);
        assert_eq!(free(root.path()), Some(0));
        assert_eq!(free(tree(&[MEMINFO]).path()), Some(2_048_000));
        assert_eq!(free(tree(&[]).path()), None);
    }

    /// A loader with datasets larger than any memory.
    const LARGE: MemoryNeed = MemoryNeed { fixed: None, data: u64::MAX, look_ahead: 100 };

    fn small(data: u64) -> MemoryNeed {
        MemoryNeed { data, ..LARGE }
    }

    /// Granted bytes including the look-ahead.
    fn taken(grants: &[&Grant]) -> u64 {
        grants.iter().map(|grant| grant.tier() + 100).sum()
    }

    #[test]
    // semantics: CACHE-9
    fn second_loader_gets_the_rest_of_the_share() {
        let account = MemoryAccount::default();
        let first = account.grant(160_000, 1, LARGE);
        assert_eq!(taken(&[&first]), 70_000, "seven eighths of half");
        let second = account.grant(160_000, 1, LARGE);
        assert_eq!(taken(&[&second]), 10_000, "an eighth of half");
        assert_eq!(account.grant(160_000, 1, LARGE).tier(), 0);
        // The first loader has filled its tier meanwhile, which is no longer free.
        let budget = Budget::new(first.tier());
        first.fills(&budget);
        let _filled = budget.charge(first.tier());
        drop(second);
        let second = account.grant(160_000 - first.tier(), 1, LARGE);
        assert_eq!(taken(&[&first, &second]), 80_000);
    }

    #[test]
    fn grant_is_returned_when_the_loader_ends() {
        let account = MemoryAccount::default();
        let first = account.grant(160_000, 1, LARGE).tier();
        assert_eq!(account.grant(160_000, 1, LARGE).tier(), first);
        let (one, two) = (account.grant(160_000, 1, LARGE), account.grant(160_000, 1, LARGE));
        drop(one);
        assert_eq!(account.grant(160_000, 1, LARGE).tier(), 60_000 - 100, "an eighth is left again");
        drop(two);
        assert!(account.lock().live.is_empty());
    }

    #[test]
    // semantics: CACHE-9
    fn eight_ranks_take_half_together_not_each() {
        for first in [true, false] {
            // One process per account. Filled memory is no longer free when the next process starts
            // its second loader.
            let ranks: Vec<MemoryAccount> = (0..8).map(|_| MemoryAccount::default()).collect();
            let (mut free, mut grants, mut held) = (1_600_000, Vec::new(), Vec::new());
            for account in &ranks {
                grants.push(account.grant(free, 8, LARGE));
            }
            for grant in &grants {
                let budget = Budget::new(grant.tier());
                grant.fills(&budget);
                if first {
                    held.push(budget.charge(grant.tier()));
                    free -= grant.tier();
                }
            }
            for account in &ranks {
                grants.push(account.grant(free, 8, LARGE));
            }
            assert!(grants.iter().all(|grant| taken(&[grant]) >= 1_600_000 / 2 / 8 / 8));
            assert_eq!(taken(&grants.iter().collect::<Vec<_>>()), 800_000, "filled: {first}");
        }
    }

    #[test]
    fn loader_gets_no_more_than_its_data_fill() {
        let account = MemoryAccount::default();
        let first = account.grant(160_000, 1, small(5000));
        assert_eq!(first.tier(), 5000);
        let second = account.grant(160_000, 1, LARGE);
        assert_eq!(taken(&[&first, &second]), 70_000, "an eighth is left for a third");
        assert_eq!(taken(&[&account.grant(160_000, 1, LARGE)]), 10_000);
    }

    #[test]
    fn fixed_memory_that_is_yet_to_be_filled_is_not_free() {
        let account = MemoryAccount::default();
        let fixed = account.grant(160_000, 1, MemoryNeed { fixed: Some(79_900), ..LARGE });
        assert_eq!(fixed.tier(), 79_900);
        let first = account.grant(160_000, 1, LARGE);
        assert_eq!(taken(&[&first]), 35_000, "seven eighths of half of what is not promised");
    }

    #[test]
    fn memory_that_the_trainer_took_is_not_granted() {
        let account = MemoryAccount::default();
        let first = account.grant(160_000, 1, small(40_000));
        let second = account.grant(60_100, 1, LARGE);
        assert_eq!(taken(&[&second]), 10_000, "half of what is free and not promised to the first");
        drop(first);
    }

    #[test]
    fn ranks_that_become_known_later_count_from_then_on() {
        let account = MemoryAccount::default();
        let first = account.grant(160_000, 1, small(9900));
        let second = account.grant(160_000, 2, LARGE);
        assert_eq!(taken(&[&first, &second]), 35_000);
    }

    #[test]
    fn look_ahead_larger_than_the_share_leaves_no_tier() {
        let account = MemoryAccount::default();
        let none = account.grant(160_000, 1, MemoryNeed { look_ahead: 80_000, ..LARGE });
        assert_eq!(none.tier(), 0);
        assert_eq!(account.grant(160_000, 0, LARGE).tier(), 69_900, "nothing was taken from it");
    }

    proptest::proptest! {
        #[test]
        // semantics: CACHE-9
        fn loaders_of_any_ranks_stay_within_half(
            ranks in 1_u32..5,
            steps in proptest::collection::vec((0_usize..4, 0_u64..200_000, proptest::bool::ANY), 1..60),
        ) {
            const WHOLE: u64 = 1_000_000;
            let accounts: Vec<MemoryAccount> = (0..ranks).map(|_| MemoryAccount::default()).collect();
            let mut live: Vec<(Grant, Option<foreread_tier::Charge>)> = Vec::new();
            for (rank, data, ends) in steps {
                if ends && !live.is_empty() {
                    live.remove(data as usize % live.len());
                    continue;
                }
                let filled = live.iter().map(|(_, held)| held.as_ref().map_or(0, |held| held.bytes()));
                let free = WHOLE - filled.sum::<u64>();
                let grant = {
                    let need = MemoryNeed { look_ahead: 0, ..small(data) };
                    accounts[rank % accounts.len()].grant(free, ranks, need)
                };
                let budget = Budget::new(grant.tier());
                grant.fills(&budget);
                let held = data.is_multiple_of(2).then(|| budget.charge(grant.tier()));
                live.push((grant, held));
                let all: u64 = live.iter().map(|(grant, _)| grant.tier()).sum();
                proptest::prop_assert!(all <= WHOLE / 2, "{} of {}", all, WHOLE);
            }
        }
    }
}
