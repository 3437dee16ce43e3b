//! The placement of a small dataset on eight nodes, and the reads of its second epoch. All numbers
//! come from the planner and the order, as in a run of this size.

use std::sync::Arc;

use foreread_oracle::{Deal, Phase, PhaseKind, Run, Schedule, Shuffle};
use foreread_planner::{CacheStore, Cluster, ClusterPlan, Level, Ranks, plan_cluster};
use foreread_plot::colours::INK;
use foreread_plot::{Across, Canvas, Colour, Down, paint};
use foreread_types::{DatasetId, Footprint, Rank, SampleId, SampleKey, Sizes, StoreId};

use crate::Result;

const NODES: u32 = 8;
const SAMPLES: u64 = 96;
/// Samples per node and epoch, and of its cache.
const SHARE: u64 = SAMPLES / NODES as u64;
const BATCH: u64 = 4;
const SEED: u64 = 42;

const WIDTH: i32 = 720;
const HEIGHT: i32 = 488;
const LEFT: i32 = 24;
const NODE: i32 = 84;
const CELL: (i32, i32) = (25, 26);
const COLUMNS: usize = 3;

/// A colour for each node, from Tol's light scheme, which is made for dark text.
const NODE_COLOURS: [Colour; NODES as usize] = [
    Colour(0x77, 0xaa, 0xdd),
    Colour(0xee, 0x88, 0x66),
    Colour(0xee, 0xdd, 0x88),
    Colour(0xff, 0xaa, 0xbb),
    Colour(0x99, 0xdd, 0xff),
    Colour(0x44, 0xbb, 0x99),
    Colour(0xbb, 0xcc, 0x33),
    Colour(0xdd, 0xdd, 0xdd),
];

struct Placed {
    run: Run,
    plan: ClusterPlan,
}

impl Placed {
    /// Eight nodes of one rank each, whose memories hold the dataset together.
    fn new() -> Result<Self> {
        let train = Phase {
            kind: PhaseKind::Train,
            dataset: DatasetId(0),
            sampler: Arc::new(Shuffle::new(SAMPLES, SEED)?),
            batch_size: Some(BATCH),
            drop_last: false,
        };
        let run = Run::new(Arc::new(Schedule::new(2, vec![train])?), Deal::Torch, NODES, Rank(0))?;
        let memory = Level::new("memory", SHARE, Footprint::EXACT);
        let stores = (0..NODES).map(|id| CacheStore::new(StoreId(id), vec![memory.clone()])).collect();
        let cluster = Cluster { stores, ranks: Ranks::PerStore(1), ..Cluster::default() };
        let plan = plan_cluster(&run, &[Sizes::uniform(SAMPLES, 1)], &cluster)?;
        Ok(Self { run, plan })
    }

    /// The samples that each node reads in an epoch, in order.
    fn reads(&self, epoch: usize) -> Result<Vec<Vec<u64>>> {
        let pass = self.run.pass(epoch).ok_or("there is no such epoch")?;
        let all = self.run.stream(&pass)?;
        let of_rank = |rank| {
            let stream = all.of_rank(Rank(rank))?;
            Ok((0..stream.len()).map(|index| stream.at(index).0).collect())
        };
        (0..NODES).map(of_rank).collect()
    }

    fn owner(&self, sample: u64) -> Result<usize> {
        let key = SampleKey::new(DatasetId(0), SampleId(sample));
        Ok(self.plan.owner(key).ok_or("a sample has no owner")?.store)
    }
}

pub fn svg() -> Result<String> {
    let placed = Placed::new()?;
    let owner: Vec<usize> = (0..SAMPLES).map(|sample| placed.owner(sample)).collect::<Result<_>>()?;
    let (first, second) = (placed.reads(0)?, placed.reads(1)?);
    let kept: Vec<Vec<u64>> = (0..NODES as usize)
        .map(|node| (0..SAMPLES).filter(|sample| owner[*sample as usize] == node).collect())
        .collect();
    // In the first epoch each node reads the samples that it keeps from storage, and nothing moves.
    let own = |reads: &[Vec<u64>]| -> usize {
        let nodes = reads.iter().enumerate();
        nodes.map(|(node, ids)| ids.iter().filter(|id| owner[**id as usize] == node).count()).sum()
    };
    let (from_storage, local) = (own(&first), own(&second));
    if from_storage as u64 != SAMPLES || placed.plan.origin_bytes() != SAMPLES {
        return Err("the first epoch moves samples between nodes".into());
    }
    let svg = paint((WIDTH, HEIGHT), |canvas| {
        canvas.bold("96 samples on 8 nodes with memory for 12 each", (LEFT, 16), 18)?;
        let title = format!(
            "Epoch 0: each node reads its samples from storage and keeps them: {from_storage} reads in all"
        );
        canvas.text(&title, (LEFT, 52), 15, INK, (Across::Left, Down::Top))?;
        nodes(canvas, 80, &kept, &owner)?;
        let title = format!(
            "Epoch 1: another order. {} samples come from the nodes of their colour, {local} are local,",
            SAMPLES as usize - local
        );
        canvas.text(&title, (LEFT, 232), 15, INK, (Across::Left, Down::Top))?;
        canvas.text("0 are read from storage", (LEFT, 254), 15, INK, (Across::Left, Down::Top))?;
        nodes(canvas, 284, &second, &owner)?;
        let note = "Numbers are sample ids. Outlined: the node that reads the sample keeps it.";
        canvas.text(note, (LEFT, 448), 15, INK, (Across::Left, Down::Top))
    })?;
    Ok(svg)
}

/// The samples of each node, in the colours of their owners.
fn nodes(canvas: &Canvas<'_>, top: i32, samples: &[Vec<u64>], owner: &[usize]) -> foreread_plot::Result<()> {
    for (node, ids) in samples.iter().enumerate() {
        let left = LEFT + node as i32 * NODE;
        canvas.rectangle((left, top), (left + 3 * CELL.0, top + 26), NODE_COLOURS[node])?;
        let middle = (left + 3 * CELL.0 / 2, top + 13);
        canvas.text(&format!("node {node}"), middle, 15, INK, (Across::Middle, Down::Middle))?;
        for (index, id) in ids.iter().enumerate() {
            let (column, row) = ((index % COLUMNS) as i32, (index / COLUMNS) as i32);
            let from = (left + column * CELL.0, top + 32 + row * CELL.1);
            let to = (from.0 + CELL.0 - 2, from.1 + CELL.1 - 2);
            let owner = owner[*id as usize];
            canvas.rectangle(from, to, NODE_COLOURS[owner])?;
            if owner == node {
                canvas.outline((from.0 + 1, from.1 + 1), (to.0 - 1, to.1 - 1), INK)?;
            }
            let middle = (from.0 + CELL.0 / 2 - 1, from.1 + CELL.1 / 2 - 1);
            canvas.text(&id.to_string(), middle, 14, INK, (Across::Middle, Down::Middle))?;
        }
    }
    Ok(())
}
