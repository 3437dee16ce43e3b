//! Automatic memory of real processes: the kernel's count against the grants.
//!
//! The machine's free memory is simulated, or the test would have to fill half of it. It runs its
//! own program once per process. All processes are measured at the same time, because the kernel
//! divides a shared page among them.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking, too")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use async_trait::async_trait;
use foreread_tier::{Backend, OpenContext, OpenOptions, OriginTier, TierError};
use foreread_tier_testing::{FakeOrigin, until};
use foreread_types::RankOf;

use super::Machine;
use super::tests::memory;
use crate::{Config, Loader, Registry, SamplerKind};

/// The rank of a process.
const RANK: &str = "FOREREAD_TEST_PROCESS";

const RANKS: u32 = 8;

const FREE: u64 = 384 << 20;
const LOOK_AHEAD: u64 = 1 << 20;

/// More than half of the free memory, so that every memory tier is filled.
const SAMPLES: u64 = 3_000;
const LENGTH: u64 = 110_000;

/// The memory of a process outside its grants: threads, tables, batches, freed memory in the
/// allocator. Measured: 2.4 MiB of a program that is not optimised.
const OVERHEAD: u64 = 4 << 20;

#[derive(Debug)]
struct Fake;

#[async_trait]
impl Backend for Fake {
    fn schemes(&self) -> &[&str] {
        &["fake"]
    }

    async fn open(
        &self,
        _: &str,
        _: &OpenOptions,
        context: &OpenContext,
    ) -> Result<Arc<dyn OriginTier>, TierError> {
        let origin = FakeOrigin::uniform(SAMPLES, LENGTH).with_buffers(Arc::clone(&context.buffers));
        Ok(Arc::new(origin))
    }
}

/// This process's proportional share of memory, without pages of files: how many of the program's
/// own pages it has touched depends on how it was compiled.
fn pss() -> u64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let of = |kind: &str| -> u64 {
        let line = rollup.lines().find_map(|line| line.strip_prefix(kind)).unwrap();
        line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
    };
    of("Pss_Anon:") + of("Pss_Shmem:")
}

/// Waits for a line from the parent.
fn print_and_wait() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

fn loader(machine: &Machine, rank: u32) -> (u64, Loader) {
    let mut config = Config { machine: machine.clone(), look_ahead: LOOK_AHEAD, ..Config::default() };
    // A rank reads the same samples in each epoch.
    (config.epochs, config.batch_size, config.sampler) = (2, 8, SamplerKind::Sequential);
    let builder = Loader::builder_with("fake://data", config).rank(RankOf { rank, ranks: RANKS });
    let registry = Registry::empty().register(Fake);
    let ready = builder.registry(registry).prepare().unwrap();
    (memory(&ready) + LOOK_AHEAD, ready.start())
}

/// Fills the memory of two loaders, for example for training and validation. Prints the granted
/// bytes and the growth of its memory.
fn work(rank: u32) {
    let root = tempfile::tempdir().unwrap();
    let torchrun = [("RANK", rank), ("WORLD_SIZE", RANKS), ("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", RANKS)];
    let variables = torchrun.map(|(name, value)| (name, value.to_string()));
    let machine = Machine::imagined(root.path(), FREE, &variables);
    let before = pss();
    let mut granted = 0;
    let mut live = Vec::new();
    for _ in 0..2 {
        let (bytes, loader) = loader(&machine, rank);
        granted += bytes;
        // To the end of the first epoch: by then all cached samples are in the cache.
        while loader.batches().next().unwrap().unwrap().epoch() == 0 {}
        live.push(loader);
    }
    println!("\nfilled");
    print_and_wait();
    let mut held = 0;
    until("idle memory goes back to the system", || {
        held = pss().saturating_sub(before);
        held <= granted + OVERHEAD
    });
    println!("\nholds {granted} {held}");
    print_and_wait();
    drop(live);
}

/// The rest of the next line that begins with `word`.
fn line(from: &mut impl BufRead, word: &str) -> String {
    let mut lines = from.lines().map(Result::unwrap);
    lines.find_map(|line| line.strip_prefix(word).map(str::to_owned)).expect("the process has ended early")
}

/// Runs all ranks, which execute `test`. Returns the sum of granted bytes, and of the bytes held at
/// the same time.
fn hold(test: &str) -> (u64, u64) {
    let program = std::env::current_exe().unwrap();
    let start = |rank: u32| {
        let mut command = Command::new(&program);
        command.args(["--exact", &format!("machine::processes::{test}"), "--nocapture"]);
        command.env(RANK, rank.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut processes: Vec<Child> = (0..RANKS).map(start).collect();
    let mut outputs: Vec<_> =
        processes.iter_mut().map(|process| BufReader::new(process.stdout.take().unwrap())).collect();
    outputs.iter_mut().for_each(|output| drop(line(output, "filled")));
    let notify = |process: &mut Child| process.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    processes.iter_mut().for_each(notify);
    let mut sums = (0, 0);
    for output in &mut outputs {
        let figures = line(output, "holds ");
        println!("a process of {RANKS}: granted and held {figures}");
        let (granted, held) = figures.split_once(' ').unwrap();
        sums = (sums.0 + granted.parse::<u64>().unwrap(), sums.1 + held.parse::<u64>().unwrap());
    }
    processes.iter_mut().for_each(notify);
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    sums
}

#[test]
// semantics: CACHE-9
fn eight_ranks_hold_45_to_50_percent_of_free_memory() {
    if let Ok(rank) = std::env::var(RANK) {
        return work(rank.parse().unwrap());
    }
    let (granted, held) = hold("eight_ranks_hold_45_to_50_percent_of_free_memory");
    assert!(held <= granted + 8 * OVERHEAD, "{held} bytes are held, {granted} were granted");
    assert!(held >= granted / 10 * 9, "{held} bytes are held of {granted}: the test fills no memory");
    assert!((FREE / 100 * 45..=FREE / 2).contains(&granted), "{granted} of {FREE}");
}
