//! The node of a process: free memory, the launcher's environment, and the grants to this process's
//! loaders.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, OnceLock};

use foreread_open::node_rank;
use foreread_types::RankOf;

use crate::memory::{self, Grant, MemoryAccount, MemoryNeed};

/// All loaders of a process share one account. A forked child has a copy of its parent's account.
/// Another thread may have held the lock of that copy, and its grants are never returned. So each
/// process has its own account.
#[derive(Debug)]
struct ProcessAccount {
    process: u32,
    account: MemoryAccount,
    /// The account of a child that was forked from this process and contains this copy.
    child: OnceLock<Box<ProcessAccount>>,
}

impl ProcessAccount {
    fn new(account: MemoryAccount) -> Self {
        Self { process: std::process::id(), account, child: OnceLock::new() }
    }
}

static ACCOUNTS: LazyLock<ProcessAccount> = LazyLock::new(|| ProcessAccount::new(MemoryAccount::default()));

/// This process's account.
fn account() -> MemoryAccount {
    let process = std::process::id();
    let mut of: &ProcessAccount = &ACCOUNTS;
    while of.process != process {
        of = of.child.get_or_init(|| Box::new(ProcessAccount::new(of.account.of_a_forked_child())));
    }
    of.account.clone()
}

/// The machine of a run. [`Default`] is this process on this machine. Tests have other machines.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// Replaces `/`.
    root: PathBuf,
    /// The environment. `None`: the process's own at the time of the call.
    variables: Option<Arc<BTreeMap<String, String>>>,
    /// The account of its process. `None`: determined when a loader requests memory, because
    /// settings may be made in one process and used in its children.
    account: Option<MemoryAccount>,
}

impl Default for Machine {
    fn default() -> Self {
        Self { root: PathBuf::from("/"), variables: None, account: None }
    }
}

impl Machine {
    /// The rank on the node, from the launcher.
    pub(crate) fn on_node(&self) -> RankOf {
        node_rank::launched(&|name| match &self.variables {
            Some(variables) => variables.get(name).cloned(),
            None => std::env::var(name).ok(),
        })
    }

    /// Grants memory to a loader of one of `ranks` ranks.
    pub(crate) fn grant(&self, ranks: u32, need: MemoryNeed) -> Grant {
        let account = self.account.clone().unwrap_or_else(account);
        account.grant(memory::free(&self.root).unwrap_or(0), ranks, need)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod processes;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Config, Loader, Memory};

    type Variables = Vec<(&'static str, String)>;

    const FREE: u64 = 4 << 20;
    const LOOK_AHEAD: u64 = 16 << 10;

    impl Machine {
        /// A machine with this free memory and these launcher variables. Its process has no grants.
        pub(super) fn imagined(root: &Path, free: u64, variables: &[(&str, String)]) -> Self {
            std::fs::create_dir_all(root.join("proc")).unwrap();
            std::fs::write(root.join("proc/meminfo"), format!("MemAvailable: {} kB\n", free / 1024)).unwrap();
            let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            Self {
                root: root.to_owned(),
                variables: Some(Arc::new(variables.collect())),
                account: Some(MemoryAccount::default()),
            }
        }
    }

    /// Samples of 16 KiB.
    fn dataset(directory: &Path, samples: u64) -> String {
        std::fs::create_dir_all(directory).unwrap();
        for sample in 0..samples {
            std::fs::write(directory.join(format!("{sample:04}")), vec![sample as u8; 16 << 10]).unwrap();
        }
        directory.to_str().unwrap().to_owned()
    }

    fn config(machine: &Machine) -> Config {
        Config {
            machine: machine.clone(),
            look_ahead: LOOK_AHEAD,
            batch_size: 8,
            epochs: 1,
            // Otherwise the kernel's page cache would be enough.
            origin_limit: Some(u64::MAX),
            ..Config::default()
        }
    }

    /// The capacity of a loader's memory tier.
    pub(super) fn memory(loader: &crate::Ready) -> u64 {
        let levels = loader.prepared().cluster.stores[0].levels.iter();
        levels.filter(|level| level.name == "memory").map(|level| level.capacity).sum()
    }

    #[test]
    // semantics: CACHE-9
    fn loaders_of_a_process_share_half_of_what_is_free() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::imagined(root.path(), FREE, &[]);
        let (train, small) = (dataset(&root.path().join("a"), 300), dataset(&root.path().join("b"), 3));
        let prepare = |url: &str| Loader::builder_with(url, config(&machine)).prepare().unwrap();
        // A plan alone holds no memory.
        let first = prepare(&train);
        let most = memory(&first);
        drop(first);
        crate::planned::Planned::new(config(&machine), &[foreread_types::Sizes::uniform(1000, 16 << 10)])
            .unwrap();
        let first = prepare(&train).start();
        assert_eq!(first.local_plan().origin_bytes(), 300 * (16 << 10));
        assert_eq!(first.batches().map(Result::unwrap).count(), 38);
        let second = prepare(&train);
        let both = most + memory(&second) + 2 * LOOK_AHEAD;
        assert!(most > 0 && memory(&second) + LOOK_AHEAD >= FREE / 16, "{most}, {}", memory(&second));
        assert!((FREE * 45 / 100..=FREE / 2).contains(&both), "{both} of {FREE}");
        // A source counts like a loader.
        drop(first);
        let source = second.source().unwrap();
        let third = prepare(&train);
        assert!(memory(&third) < most && memory(&third) > most / 2, "{} of {most}", memory(&third));
        drop((source, third));
        assert_eq!(memory(&prepare(&train)), most, "all was returned");
        let little = memory(&prepare(&small));
        assert!((3 * (16 << 10)..4 * (16 << 10)).contains(&little), "{little}");
    }

    /// Only the launcher knows that these eight ranks share a node.
    #[test]
    // semantics: CACHE-9
    fn eight_ranks_of_a_node_share_memory_and_disk() {
        let root = tempfile::tempdir().unwrap();
        let url = dataset(&root.path().join("data"), 300);
        let torchrun = |rank: u32| {
            let one = |name, value: u32| (name, value.to_string());
            let ranks = [one("RANK", rank), one("WORLD_SIZE", 8)];
            [&ranks[..], &[one("LOCAL_RANK", rank), one("LOCAL_WORLD_SIZE", 8)]].concat()
        };
        let slurm = |rank: u32| {
            let one = |name, value: u32| (name, value.to_string());
            let ranks = [one("SLURM_PROCID", rank), one("SLURM_NTASKS", 8), one("SLURM_LOCALID", rank)];
            let node = [one("SLURM_NODEID", 0), ("SLURM_STEP_TASKS_PER_NODE", "8".to_owned())];
            [&ranks[..], &node].concat()
        };
        let none = |_| Vec::new();
        let launchers: [(&str, &dyn Fn(u32) -> Variables); 3] =
            [("torchrun", &torchrun), ("slurm", &slurm), ("none", &none)];
        for (launcher, variables) in launchers {
            let cache = root.path().join(launcher);
            let ready: Vec<_> = (0..8)
                .map(|rank| {
                    let machine = Machine::imagined(root.path(), 4 * FREE, &variables(rank));
                    let builder = Loader::builder_with(&url, config(&machine)).disk(&cache, 8 << 20);
                    let rank = RankOf { rank, ranks: 8 };
                    let builder = builder.rank(rank);
                    let builder = if launcher == "none" { builder.on_node(rank) } else { builder };
                    builder.prepare().unwrap()
                })
                .collect();
            let all: u64 = ready.iter().map(|ready| memory(ready) + LOOK_AHEAD).sum();
            assert!((4 * FREE * 43 / 100..=4 * FREE / 2).contains(&all), "{launcher}: {all}");
            let disks: Vec<u64> =
                ready.iter().map(|ready| ready.prepared().disk.as_ref().unwrap().capacity).collect();
            assert!(disks.iter().all(|room| *room > 0), "{launcher}: {disks:?}");
            assert!(disks.iter().sum::<u64>() <= 8 << 20, "{launcher}: {disks:?}");
            let roots = std::fs::read_dir(&cache).unwrap().map(|root| root.unwrap().path());
            assert!(roots.into_iter().any(|root| root.join("rank-7").is_dir()), "{launcher}");
        }
    }

    #[test]
    fn invalid_ranks_on_a_node_are_refused() {
        let builder = || Loader::builder("/nowhere").epochs(1).memory(Memory::Bytes(0));
        for (rank, ranks) in [(0, 0), (8, 8)] {
            let error = builder().on_node(RankOf { rank, ranks }).prepare().unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Usage, "{error}");
        }
    }
}
