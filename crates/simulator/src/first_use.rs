//! The order of first uses of samples over all workers.
//!
//! Owners prefetch in this order. It takes one walk over all streams, and one byte per sample. If
//! workers need samples at the same time, lower worker numbers come first.

use crate::workload::Streams;

/// The first use of a sample anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstUse {
    pub sample: u32,
    pub worker: u32,
}

/// The first use of every used sample, in the order of (batch, place in the worker's share,
/// worker). This approximates the order of need.
pub(crate) fn first_uses(streams: &Streams, samples: usize) -> Vec<FirstUse> {
    let mut seen = vec![false; samples];
    let mut found = Vec::with_capacity(samples);
    let mut at = vec![0; streams.ids.len()];
    for batch in 0..streams.shape.batches() {
        let longest = streams.shape.share(0, batch).len();
        for place in 0..longest {
            for (worker, ids) in streams.ids.iter().enumerate() {
                if place < streams.shape.share(worker, batch).len() {
                    let sample = ids[at[worker] + place];
                    if !std::mem::replace(&mut seen[sample as usize], true) {
                        found.push(FirstUse { sample, worker: worker as u32 });
                    }
                }
            }
        }
        for (worker, at) in at.iter_mut().enumerate() {
            *at += streams.shape.share(worker, batch).len();
        }
    }
    found
}
