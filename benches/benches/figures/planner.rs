//! The cost of planning for many ranks: CPU time and peak memory.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use foreread_benches::subprocess;
use foreread_benches::table::{Figure, Goal};
use foreread_benches::usage::{Usage, peak_memory};
use foreread_oracle::{Deal, Feistel, Phase, PhaseKind, Run, Sampler, Schedule, Shuffle};
use foreread_planner::{CacheStore, Cluster, Level, Ranks, plan_cluster};
use foreread_simulator::{Policy, Scenario, Simulation};
use foreread_types::{DatasetId, Footprint, Rank, Sizes, StoreId};
use serde::{Deserialize, Serialize};

/// ImageNet-22k.
const SAMPLES: u64 = 14_197_103;
const RANKS: u32 = 256;
const HUGE: u64 = 1_000_000_000;
const HUGE_RANKS: u32 = 1024;
const EPOCHS: u64 = 90;
const GIB: f64 = (1u64 << 30) as f64;

#[derive(Debug, Serialize, Deserialize)]
struct Measurement {
    seconds: f64,
    cpu: f64,
    /// Bytes of the whole process at its peak, and of the table of owners.
    peak: u64,
    owners: u64,
    /// Predicted origin bytes over the lower bound.
    over_lower_bound: f64,
    /// Uses by the owner's rank over all uses.
    local: f64,
}

/// Name and kind of each plan, cache size in percent of the dataset, targets in seconds and GiB.
const PLANS: [(&str, &str, u64, f64, f64); 4] = [
    ("14.2 M x 256 ranks x 90 epochs", "table", 50, 2.0, 1.5),
    ("the same with caches for all", "table", 100, 2.0, 1.5),
    ("the same with caches for ten copies of each", "table", 1000, 3.0, 1.5),
    ("10^9 x 1,024 ranks, feistel", "huge", 50, 1.0, 1.0 / 16.0),
];

pub fn figures() -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (name, kind, percent, seconds, memory) in PLANS {
        let found: Measurement = subprocess::run(&[&"planner", &kind, &percent.to_string()])?;
        let time = Figure::new(format!("plan: {name}"), Goal::AtMost(seconds), found.cpu, "s of CPU");
        let percent = format!("caches for {percent} %; {:.2} s elapsed", found.seconds);
        let room = Figure::new(
            format!("plan: {name}, peak memory"),
            Goal::AtMost(memory * 1024.0),
            found.peak as f64 / GIB * 1024.0,
            "MiB",
        );
        let owners = format!("{:.2} bytes of owners per sample", found.owners as f64 / SAMPLES as f64);
        let over = Figure::new(
            format!("plan: {name}, origin bytes / lower bound"),
            Goal::AtMost(1.01),
            found.over_lower_bound,
            "x",
        );
        let local = format!("{:.2} % of all uses local", found.local * 100.0);
        figures.extend([time.note(percent), room.note(owners), over.note(local)]);
    }
    figures.push(simulated()?);
    Ok(figures)
}

/// The thesis's first scenario under every policy. Drawing its sizes and orders is included.
fn simulated() -> Result<Figure> {
    let scenario = Scenario::from_toml(include_str!("../../../crates/simulator/scenarios/thesis-s1.toml"))?;
    let start = Instant::now();
    let simulation = Simulation::new(&scenario, scenario.seed)?;
    for policy in Policy::ALL {
        simulation.run(policy, &mut || ());
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Figure::new("simulate: the thesis's S1, all policies", Goal::AtMost(1.0), seconds, "s"))
}

/// Computes a plan in a separate process, so that no other memory is counted.
pub fn part(args: &[String]) -> Result<()> {
    let [kind, percent] = args else { bail!("expected a kind of plan and a cache size in percent") };
    let percent: u64 = percent.parse()?;
    let found = match &**kind {
        "table" => {
            // Sizes like those of photographs.
            let lengths: Vec<u64> =
                (0..SAMPLES).map(|id| 20_000 + id.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 150_000).collect();
            let sizes = Sizes::table(&lengths);
            drop(lengths);
            measure(Shuffle::new(SAMPLES, 22)?, &sizes, RANKS, percent)?
        }
        "huge" => {
            let sizes = Sizes::uniform(HUGE, 100_000);
            measure(Feistel::new(HUGE, 22)?, &sizes, HUGE_RANKS, percent)?
        }
        _ => bail!("unknown plan {kind}"),
    };
    subprocess::print_result(&found)
}

fn measure(sampler: impl Sampler + 'static, sizes: &Sizes, ranks: u32, percent: u64) -> Result<Measurement> {
    let train = Phase {
        kind: PhaseKind::Train,
        dataset: DatasetId(0),
        sampler: Arc::new(sampler),
        batch_size: Some(32),
        drop_last: false,
    };
    let run = Run::new(Arc::new(Schedule::new(EPOCHS, vec![train])?), Deal::Torch, ranks, Rank(0))?;
    let each = sizes.total() / u64::from(ranks) * percent / 100;
    let memory = Level::new("memory", each, Footprint::EXACT);
    let stores = (0..ranks).map(|id| CacheStore::new(StoreId(id), vec![memory.clone()])).collect();
    let cluster = Cluster { stores, ranks: Ranks::PerStore(1), ..Cluster::default() };
    let start = Instant::now();
    let before = Usage::since(start);
    let plan = plan_cluster(&run, std::slice::from_ref(sizes), &cluster)?;
    let used = Usage::since(start) - before;
    let local: u64 = plan.stores().iter().map(|store| store.local.samples).sum();
    Ok(Measurement {
        seconds: used.seconds,
        cpu: used.cpu,
        peak: peak_memory()?,
        owners: plan.owners().memory(),
        over_lower_bound: plan.origin_bytes() as f64 / plan.floor() as f64,
        local: local as f64 / plan.uses().samples as f64,
    })
}
