//! The thread that announces a job's orders: the present epoch and two more.
//!
//! An order may take long to compute, and a table of it long to make. So the thread is two epochs
//! ahead of the requests. It begins again with each connection.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use foreread_store::attach::{BLOCKS, JobProgress, ORDER, PROGRESS, RESTART, ReadInBlocks};
use foreread_store::{StoreError, StoreErrorKind};

use crate::connection::Connection;
use crate::job::JobOrders;
use crate::link::{ClientLink, LinkState};

/// Epochs that are announced before their first request.
const AHEAD: usize = 2;

/// How long a wait for requests lasts at most.
const WAIT: Duration = Duration::from_millis(500);

/// How often the agent hears how the job gets on.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the thread.
pub(crate) fn spawn(link: &Arc<ClientLink>) -> Result<JoinHandle<()>, StoreError> {
    let announcing = Arc::clone(link);
    let thread = std::thread::Builder::new().name("foreread-orders".to_owned());
    let thread = thread.spawn(move || run(&announcing));
    thread.map_err(|error| StoreError::system("no thread for the agent", error))
}

/// Announces until the job ends.
fn run(link: &Arc<ClientLink>) {
    let mut progress = Progress { reported: Instant::now() };
    loop {
        let mut state = link.lock();
        let (connection, orders) = loop {
            if state.closed {
                return;
            }
            if let (Some(connection), Some(orders)) = (state.connection(), state.orders.clone()) {
                break (connection, orders);
            }
            state = wait(link, state, &mut progress);
        };
        let generation = state.generation;
        drop(state);
        if let Err(error) = announce(link, &connection, &*orders, generation, &mut progress) {
            tracing::debug!(%error, "the node's agent does not know this job's order");
        }
        let mut state = link.lock();
        while state.generation == generation && !state.closed {
            state = wait(link, state, &mut progress);
        }
    }
}

/// Waits for a change. Meanwhile, tells the agent how the job gets on.
fn wait<'a>(
    link: &'a ClientLink,
    mut state: MutexGuard<'a, LinkState>,
    progress: &mut Progress,
) -> MutexGuard<'a, LinkState> {
    if progress.reported.elapsed() >= PROGRESS_INTERVAL {
        progress.reported = Instant::now();
        let connection = state.connection();
        if let (Some(connection), Some(stalled)) = (connection, state.stalled.clone()) {
            drop(state);
            tell(link, &connection, stalled().as_secs_f64());
            state = link.lock();
        }
    }
    link.changed.wait_timeout(state, WAIT).unwrap_or_else(PoisonError::into_inner).0
}

/// When the agent heard last how the job gets on.
struct Progress {
    reported: Instant,
}

/// Reports the waiting time of the trainer to the agent, and receives the reads for the job. An
/// agent that does not understand it loses nothing but a column of its status.
pub(crate) fn tell(link: &ClientLink, connection: &Connection, stalled_seconds: f64) {
    let Ok(payload) = serde_json::to_vec(&JobProgress { stalled_seconds }) else { return };
    match connection.call(PROGRESS, &payload, &|| link.is_closed()) {
        // Agents of older versions answer nothing.
        Ok(answer) => link.set_reads(connection, serde_json::from_slice(&answer).unwrap_or_default()),
        Err(error) => tracing::trace!(%error, "the node's agent does not know how this job gets on"),
    }
}

/// Has the agent read the shards of a dataset in blocks at first. One of an older version reads
/// sample by sample.
pub(crate) fn read_in_blocks(
    connection: &Connection,
    is_over: &dyn Fn() -> bool,
    dataset: u32,
    bytes: u64,
) -> Result<(), StoreError> {
    let request = serde_json::to_vec(&ReadInBlocks { dataset, bytes }).unwrap_or_default();
    match connection.call(BLOCKS, &request, is_over) {
        Err(error) if error.kind() == StoreErrorKind::Sample => {
            tracing::debug!(%error, "no blocks");
            Ok(())
        }
        answer => answer.map(drop),
    }
}

/// Announces all epochs, as requests come near. Ends early if the connection or the orders change.
fn announce(
    link: &ClientLink,
    connection: &Connection,
    orders: &dyn JobOrders,
    generation: u64,
    progress: &mut Progress,
) -> Result<(), StoreError> {
    let is_over = || link.is_closed() || link.lock().generation != generation;
    connection.call(RESTART, b"", &is_over)?;
    for (dataset, bytes) in orders.blocks() {
        read_in_blocks(connection, &is_over, dataset, bytes)?;
    }
    let furthest = link.furthest().0;
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
            while !link.has_reached(first) {
                if state.generation != generation || state.closed {
                    return Ok(());
                }
                state = wait(link, state, progress);
            }
        }
        if link.lock().generation != generation {
            return Ok(());
        }
        let Some(pass) = orders.order(index) else { return Ok(()) };
        let encoded = pass.encoded();
        for piece in pass.pieces(&encoded) {
            connection.call(ORDER, &piece.encode(), &is_over)?;
        }
    }
    Ok(())
}
