//! Makes a greedy assignment of equally long samples the best one, where they are few.
//!
//! Placing equal samples in stores of so many places each is the transport problem, and an assignment is the best one if
//! no cycle of moves (a sample from store a to b, one from b to c, one from c back to a) gains anything, with "nowhere"
//! and "a free place" as two more stations. So cycles that gain are looked for (Bellman and Ford) and applied until there
//! is none. Each costs a walk over all samples and stores, hence only up to [`MOST`] of them: beyond, samples are
//! so many that the greedy choice is within a point of the best (which is under test).

use foreread_types::SampleId;

use crate::assign::{Assigned, Part, levels_of};
use crate::cluster::Cluster;
use crate::owners::{NOBODY, pack, unpack};

/// Samples times stores.
const MOST: u64 = 1 << 14;

/// Improves until nothing gains. `value(id, near)` is what sample `id` saves where `near` of its uses are made.
pub(crate) fn improve(
    cluster: &Cluster,
    part: &Part<'_>,
    assigned: &mut Assigned,
    value: impl Fn(usize, u64) -> u64,
) {
    let (samples, stores) = (assigned.owners.len(), cluster.stores.len());
    let small = (samples as u64).saturating_mul(stores as u64) <= MOST;
    if samples == 0 || !small || !part.readers.is_full(stores) {
        return;
    }
    let bytes = part.sizes.bytes(SampleId(0));
    let rooms: Vec<u64> = (0..stores)
        .map(|store| {
            levels_of(cluster, store, bytes).iter().fold(0u64, |sum, level| sum.saturating_add(level.1))
        })
        .collect();
    // Samples that are not worth keeping stay out of it.
    let worth: Vec<usize> = (0..samples).filter(|&id| part.uses.of(SampleId(id as u64)) > 1).collect();
    let mut values = vec![vec![0i128; stores + 1]; worth.len()];
    for (values, &id) in values.iter_mut().zip(&worth) {
        values[..stores].fill(i128::from(value(id, 0)));
        for (store, uses) in part.readers.candidates(id) {
            values[store] = i128::from(value(id, uses));
        }
    }
    let places = worth.iter().map(|&id| unpack(assigned.owners[id]).map_or(stores, |(store, _)| store));
    let mut transport = Transport { values, places: places.collect(), rooms };
    while transport.step() {}
    // The levels, the most valuable samples first.
    let mut order: Vec<usize> = (0..worth.len()).collect();
    order.sort_by_key(|&at| (std::cmp::Reverse(transport.values[at][transport.places[at]]), at));
    let mut levels: Vec<_> = (0..stores).map(|store| levels_of(cluster, store, bytes)).collect();
    for at in order {
        let store = transport.places[at];
        let owner = &mut assigned.owners[worth[at]];
        *owner = NOBODY;
        let Some(levels) = levels.get_mut(store) else { continue };
        if let Some((level, room)) = levels.iter_mut().find(|(_, room)| *room > 0) {
            *room -= 1;
            *owner = pack(store, *level);
        }
    }
}

/// Samples at places; the last place is nowhere and has room for all.
struct Transport {
    /// By sample and place.
    values: Vec<Vec<i128>>,
    places: Vec<usize>,
    rooms: Vec<u64>,
}

impl Transport {
    /// Applies one cycle that gains, if there is one.
    fn step(&mut self) -> bool {
        let nowhere = self.rooms.len();
        let free = nowhere + 1;
        let nodes = free + 1;
        let mut left: Vec<i128> = self.rooms.iter().map(|&room| i128::from(room)).collect();
        for &place in &self.places {
            if place < nowhere {
                left[place] -= 1;
            }
        }
        // The best move between any two places, and which sample makes it.
        let mut moves: Vec<Vec<Option<(i128, usize)>>> = vec![vec![None; nodes]; nodes];
        for (sample, (values, &from)) in self.values.iter().zip(&self.places).enumerate() {
            for to in (0..=nowhere).filter(|&to| to != from) {
                let gain = values[to] - values[from];
                if moves[from][to].is_none_or(|(best, _)| gain > best) {
                    moves[from][to] = Some((gain, sample));
                }
            }
        }
        // Whoever moves in may take a free place, and whoever moves out leaves one.
        for place in 0..=nowhere {
            if place == nowhere || left[place] > 0 {
                moves[place][free] = Some((0, usize::MAX));
            }
            moves[free][place] = Some((0, usize::MAX));
        }
        let Some(cycle) = positive_cycle(&moves) else { return false };
        for pair in cycle.windows(2) {
            if let Some((_, sample)) = moves[pair[0]][pair[1]]
                && sample != usize::MAX
            {
                self.places[sample] = pair[1];
            }
        }
        true
    }
}

/// A cycle of nodes, the first again at the end, whose gains add up to more than 0.
fn positive_cycle(moves: &[Vec<Option<(i128, usize)>>]) -> Option<Vec<usize>> {
    let nodes = moves.len();
    let (mut best, mut before) = (vec![0i128; nodes], vec![usize::MAX; nodes]);
    let mut last = None;
    for _ in 0..nodes {
        last = None;
        for (from, row) in moves.iter().enumerate() {
            for (to, step) in row.iter().enumerate() {
                if let Some((gain, _)) = step
                    && best[from] + gain > best[to]
                {
                    best[to] = best[from] + gain;
                    before[to] = from;
                    last = Some(to);
                }
            }
        }
        last?;
    }
    // Still better after as many rounds as nodes: going back as many steps ends on a cycle.
    let mut node = last?;
    for _ in 0..nodes {
        node = before[node];
    }
    let mut cycle = vec![node];
    let mut at = before[node];
    while at != node {
        cycle.push(at);
        at = before[at];
    }
    cycle.push(node);
    cycle.reverse();
    Some(cycle)
}
