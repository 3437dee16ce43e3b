//! Tests of the public interface, in one binary.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod dealing;
mod errors;
mod golden;
mod orders;
mod runs;
mod statistics;
mod torch;

use foreread_oracle::{AccessStream, Order};
use foreread_types::SampleId;

/// All ids of an order.
fn ids(order: &Order) -> Vec<u64> {
    let mut ids = vec![SampleId(0); order.len() as usize];
    order.fill(0, 1, &mut ids);
    ids.into_iter().map(|id| id.0).collect()
}

/// All ids of a stream, read in chunks of `chunk`.
fn read(stream: &AccessStream, chunk: usize) -> Vec<u64> {
    let mut ids = vec![SampleId(0); stream.len() as usize];
    for (nth, chunk_ids) in ids.chunks_mut(chunk).enumerate() {
        stream.fill((nth * chunk) as u64, chunk_ids);
    }
    ids.into_iter().map(|id| id.0).collect()
}
