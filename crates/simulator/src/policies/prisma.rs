//! PRISMA: parallel prefetching from the file system into a buffer, without a cache.
//!
//! Its tuner adds producer threads while the consumer finds the buffer wanting. Simplified: a worker begins with one
//! thread and gets one more after each batch in which it waited, up to the threads of the staging buffer, and none is
//! taken away; the real tuner grows the buffer too, which here has its whole capacity from the start. Room is always
//! counted honestly, because the thesis's accounting is a fault of its own simulator.

use crate::plan::{Origin, Plan, Setting, Sources, Staging};
use crate::scenario::Accounting;

pub(super) fn plan(setting: &Setting<'_>) -> Plan {
    let sources = Sources { origin: Origin::Always, local: false, remote: false };
    let staging = Staging { sources, accounting: Accounting::Honest, growing: true, single_flight: false };
    Plan { staging: Some(staging), ..Plan::on_demand(setting) }
}
