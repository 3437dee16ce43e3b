//! PRISMA: parallel prefetching from the file system into a buffer, without a cache.
//!
//! Its tuner adds producer threads while the consumer waits for the buffer. Simplified: a worker
//! begins with one thread and gets one more after each batch in which it waited, up to the threads
//! of the staging buffer. None is removed. The real tuner also grows the buffer, which has its
//! whole capacity from the start here. The accounting is always honest, because the thesis's
//! accounting is a fault of its own simulator.

use crate::plan::{Origin, Plan, Setting, Sources, Staging};
use crate::scenario::Accounting;

pub(super) fn plan(setting: &Setting<'_>) -> Plan {
    let sources = Sources { origin: Origin::Always, local: false, remote: false };
    let staging = Staging { sources, accounting: Accounting::Honest, growing: true, single_flight: false };
    Plan { staging: Some(staging), ..Plan::on_demand(setting) }
}
