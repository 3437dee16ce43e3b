//! The thread that announces a job's orders: the present epoch and two more.
//!
//! An order may take long to compute, and a table of it long to make. So the thread is two epochs
//! ahead of the requests. It begins again with each connection.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use foreread_store::StoreError;
use foreread_store::attach::{ORDER, OrderPiece, Piece, RESTART};

use crate::JobOrders;
use crate::client::is_silent;
use crate::link::{Connection, Link, LinkState};

/// Epochs that are announced before their first request.
const AHEAD: usize = 2;

/// How long a wait for requests lasts at most.
const WAIT: Duration = Duration::from_millis(500);

/// Announces until the job ends.
pub(crate) fn run(link: &Arc<Link>) {
    loop {
        let mut state = link.lock();
        let (connection, orders) = loop {
            if state.closed {
                return;
            }
            if let (Some(connection), Some(orders)) = (state.connection(), state.orders.clone()) {
                break (connection, orders);
            }
            state = wait(link, state);
        };
        let generation = state.generation;
        drop(state);
        if let Err(error) = announce(link, &connection, &*orders, generation) {
            tracing::debug!(%error, "the node's agent does not know this job's order");
        }
        let mut state = link.lock();
        while state.generation == generation && !state.closed {
            state = wait(link, state);
        }
    }
}

/// Waits for a change.
fn wait<'a>(link: &'a Link, state: MutexGuard<'a, LinkState>) -> MutexGuard<'a, LinkState> {
    link.changed.wait_timeout(state, WAIT).unwrap_or_else(PoisonError::into_inner).0
}

/// Announces all epochs, as requests come near. Ends early if the connection or the orders change.
fn announce(
    link: &Link,
    connection: &Connection,
    orders: &dyn JobOrders,
    generation: u64,
) -> Result<(), StoreError> {
    let is_over = || link.is_closed() || link.lock().generation != generation;
    let call = |name, payload: &[u8]| {
        connection.client.call_with(name, payload, &mut is_silent(&connection.client, &is_over))
    };
    call(RESTART, b"")?;
    let furthest = link.furthest.load(Ordering::Relaxed);
    let has_passed =
        |index: usize| orders.pass(index).is_some_and(|(first, uses)| first.0 + uses <= furthest);
    let begin = (0..).find(|index| !has_passed(*index)).unwrap_or_default();
    for index in begin.. {
        if orders.pass(index).is_none() {
            return Ok(());
        }
        if let Some(near) = index.checked_sub(AHEAD).filter(|near| *near >= begin)
            && let Some((first, _)) = orders.pass(near)
        {
            let mut state = link.lock();
            while link.furthest.load(Ordering::Relaxed) < first.0 {
                if state.generation != generation || state.closed {
                    return Ok(());
                }
                state = wait(link, state);
            }
        }
        if link.lock().generation != generation {
            return Ok(());
        }
        let Some(pass) = orders.order(index) else { return Ok(()) };
        let numbers: Vec<u8> = pass.samples.iter().flat_map(|id| id.to_le_bytes()).collect();
        for piece in Piece::all(pass.dataset, &numbers) {
            call(ORDER, &OrderPiece { first: pass.first, piece }.encode())?;
        }
    }
    Ok(())
}
