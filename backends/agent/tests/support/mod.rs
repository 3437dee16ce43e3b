//! Jobs of tests.

use std::num::NonZeroU32;

use bytes::Bytes;
use foreread_agent_client::{JobCatalogs, JobOrders};
use foreread_store::attach::EpochOrder;
use foreread_types::Tick;

/// The bytes of a sample.
pub const LENGTH: usize = 100_000;

/// A job whose agent knows its datasets.
pub struct NoCatalogs;

impl JobCatalogs for NoCatalogs {
    fn catalog(&self, _: usize) -> Option<Bytes> {
        None
    }
}

/// Three epochs of ten samples.
pub struct Orders;

impl JobOrders for Orders {
    fn pass(&self, index: usize) -> Option<(Tick, u64)> {
        (index < 3).then_some((Tick(index as u64 * 10), 10))
    }

    fn order(&self, index: usize) -> Option<EpochOrder> {
        let (first, per_position) = (Tick(index as u64 * 10), NonZeroU32::MIN);
        Some(EpochOrder { dataset: 0, first, per_position, samples: (0..10).collect() })
    }
}
