//! The timer that gives idle memory back.
//!
//! It runs as a task only while an arena has idle memory, and otherwise waits without a timeout.
//! Between some pages it yields, because a page costs up to 100 us, and 500 us if it is shared.

use std::sync::{Arc, Weak};

use super::Pools;
use super::pool::{IDLE, IdleMemory};

/// Pages that are given back in one turn.
const PAGES_PER_TURN: usize = 2;

/// Gives idle memory of `pools` back until they are dropped.
///
/// # Cancel safety
/// Memory stays idle when the future is dropped. It then goes back when other memory becomes idle.
pub(super) async fn run(pools: Weak<Pools>, idle: Arc<IdleMemory>) {
    loop {
        idle.wake.notified().await;
        loop {
            tokio::time::sleep(IDLE / 2).await;
            let Some(pools) = pools.upgrade() else { return };
            pools.all().for_each(|pool| pool.tick());
            while pools.give_back_due(PAGES_PER_TURN) {
                tokio::task::yield_now().await;
            }
            if !pools.have_idle() {
                break;
            }
        }
    }
}
