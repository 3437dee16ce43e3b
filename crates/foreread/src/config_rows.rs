//! The settings of a run: one row per field of [`Config`](crate::Config), with its default.
//!
//! `|argument: type| value` adds the method of [`Builder`](crate::Builder) that sets the field to
//! this value. It has the name and the text of the field. The rows are given to a macro, once for
//! the fields and once for the methods.

/// Gives all rows to a macro.
macro_rules! config_rows {
    ($then:ident) => {
        $then! {
            /// Samples per batch, on this rank. At least 1. Default: 64.
            pub batch_size: u64 = 64, |samples: u64| samples;
            /// The number of passes over the dataset, 1 to 1,000,000. No default: a run with 0,
            /// which means unset, is refused. [`Builder::source`](crate::Builder::source) needs
            /// none.
            pub epochs: u64 = 0, |epochs: u64| epochs;
            /// The seed of the order. Default: 0.
            pub seed: u64 = 0, |seed: u64| seed;
            /// The sampler of the order. Default: [`SamplerKind::Shuffle`].
            pub sampler: SamplerKind = SamplerKind::default(), |sampler: SamplerKind| sampler;
            /// Drop samples that do not divide evenly among ranks and batches, instead of padding.
            /// Default: false.
            pub drop_last: bool = false, |drop_last: bool| drop_last;
            /// How ranks share an epoch. Default: [`Deal::Torch`].
            pub deal: Deal = Deal::Torch, |deal: Deal| deal;
            /// Whether each sample of a global batch goes to the rank that caches it, as far as
            /// equal shares allow. Only groups of ranks use it. Steps and positions stay as with
            /// `deal`. Default: false.
            pub locality: bool = false, |locality: bool| locality;
            /// The size of the memory tier, per rank. Default: [`Memory::Auto`].
            pub memory: Memory = Memory::Auto, |memory: Memory| memory;
            /// The disk tier: none, one or several directories.
            pub disk: Vec<Disk> = Vec::new();
            /// How many bytes are prefetched. Never more than an epoch. Default: 256 MiB.
            pub look_ahead: u64 = 256 << 20, |bytes: u64| bytes;
            /// This process's rank among all of the run. Default: the only rank.
            pub rank: RankOf = RankOf::ALONE, |rank: RankOf| rank;
            /// This process's rank among the processes of its node, in a group or not.
            /// [`Memory::Auto`] is half of the node's free memory for all of them, and each has a
            /// part of the disk tier's directories. `None`: from the launcher's environment.
            pub on_node: Option<RankOf> = None, |rank: RankOf| Some(rank);
            /// The most bytes per second from the origin. Default: no limit.
            pub origin_limit: Option<u64> = None, |bytes_per_second: u64| Some(bytes_per_second);
            /// The most parallel reads from the origin, hedges included. Default: adapted during
            /// the run.
            pub origin_parallelism: Option<usize> = None, |reads: usize| Some(reads);
            /// How failed reads from the origin are retried. Default: at most 8 attempts within 120
            /// s of the first failure, with waits from 100 ms to 10 s.
            pub retry: RetryPolicy = RetryPolicy::default(), |policy: RetryPolicy| policy;
            /// Retries a failed read from the origin until this time after its first failure, with
            /// any number of attempts. Set it above the longest outage that the run must survive.
            /// Replaces the patience and the number of attempts of [`retry`](Self::retry), and
            /// keeps its waits. A silent server of a network file system is waited for this long,
            /// too, instead of 20 minutes.
            pub patience: Option<Duration> = None, |patience: Duration| Some(patience);
            /// Whether files that the storage has moved to an archive are restored, in the
            /// background and in the order of their first use. Without it their first reads wait
            /// for it.
            pub recall: bool = false, |recall: bool| recall;
            /// The timeout of reads from the origin, after which they are retried. `None`: none.
            /// Directories in the page cache have no timeout. Default: 30 s plus eight times the
            /// transfer time of its bytes at the recent throughput.
            pub deadline: Option<DeadlinePolicy> = Some(DeadlinePolicy::default()),
                |policy: impl Into<Option<DeadlinePolicy>>| policy.into();
            /// When a slow read from the origin is hedged. `None`: never. Directories in the page
            /// cache are not hedged. Default: after three times the 95th percentile of reads of its
            /// size, and at least 10 ms. At most 3 of 100 reads are hedged.
            pub hedge: Option<HedgePolicy> = Some(HedgePolicy::default()),
                |policy: impl Into<Option<HedgePolicy>>| policy.into();
            /// The storage backend's settings for the training data.
            pub storage_options: StorageOptions = StorageOptions::default();
            /// The storage backend's settings for the validation data.
            pub validate_storage_options: StorageOptions = StorageOptions::default();
            /// The measured speeds of origin and disks: for predicted times, and for the first
            /// number of parallel reads. Default: none.
            pub calibration: Option<Arc<Calibration>> = None,
                |calibration: Calibration| Some(Arc::new(calibration));
            /// The reaction to a sample that cannot be read. Default: [`OnError::Fail`].
            pub on_error: OnError = OnError::Fail, |on_error: OnError| on_error;
            /// A second dataset, read in order after every epoch.
            pub validate: Option<String> = None, |target: impl Into<String>| Some(target.into());
            /// The format of the datasets' objects, regardless of their names. `None`: detected
            /// from names, or known from a catalog.
            pub format: Option<Format> = None, |format: Format| Some(format);
            /// The trainer's computation time per batch, for predicted times only. Zero: unknown.
            pub(crate) compute: Duration = Duration::ZERO;
            /// The numbers of the samples that passes read, by dataset, where the targets are parts
            /// of catalogs.
            pub(crate) chosen: Vec<Option<Arc<[u64]>>> = Vec::new();
            /// The agent of the node, whose cache replaces this run's memory and disks. Without the
            /// feature `share` there is none.
            pub agent: AgentChoice = AgentChoice::default(), |agent: AgentChoice| agent;
            /// Bytes of memory for samples while the agent, or the rank that hosts the memory of
            /// this node, is gone. 0 by default: the agent's memory is free for others then.
            pub memory_alone: u64 = 0, |bytes: u64| bytes;
            /// The job's name in the status and the policy of the node's agent. `None`: the name
            /// of the Slurm job, or the program's.
            pub job_name: Option<String> = None, |name: impl Into<String>| Some(name.into());
            /// Whether samples are requested by id, and the settings have no order.
            pub(crate) is_by_id: bool = false;
            /// Plans only: directories of the disk tier are neither created nor changed. A run that
            /// starts all the same has no disk tier. Default: false.
            pub plan_only: bool = false, |plan_only: bool| plan_only;
            /// The node.
            pub(crate) machine: Machine = Machine::default();
        }
    };
}

pub(crate) use config_rows;
