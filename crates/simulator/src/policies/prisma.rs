//! PRISMA: parallel prefetching from the file system into a buffer, without a cache.
//!
//! Its tuner adds producer threads while the consumer waits for the buffer. Simplified: a worker
//! begins with one thread. After each batch in which it waited it gets one more, up to the staging
//! buffer's threads. None is removed. The real tuner also grows the buffer, which has its whole
//! capacity from the start here. The accounting is always honest, because the thesis's accounting
//! is a fault of its simulator.

use crate::plan::{OriginAccess, PolicyPlan, Setup, Sources, Staging};
use crate::scenario::Accounting;

pub(super) fn plan(setup: &Setup<'_>) -> PolicyPlan {
    let sources = Sources { origin: OriginAccess::Always, local: false, remote: false };
    let staging = Staging { sources, accounting: Accounting::Honest, growing: true, single_flight: false };
    PolicyPlan { staging: Some(staging), ..PolicyPlan::on_demand(setup) }
}
