//! A read that is under way.
//!
//! A flight that is dropped ends its read, and begins others in its place. When the runtime ends,
//! it drops every new task at once. Then no flight begins another one: the first that finds out
//! notes it for the whole store.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use foreread_planner::NodeOwner;
use foreread_tier::{ErrorKind, ReadFuture, TierError, lock};
use foreread_types::{SampleKey, Tick};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::runtime::Handle;

use super::sample_reader::SampleReader;
use super::state::{Actions, BegunRead, ReadPlace, SampleFlight};
use super::store_job::StoreJob;
use super::{NodeStore, StoreInner};

thread_local! {
    /// Whether this thread is starting a read.
    static IS_STARTING: Cell<bool> = const { Cell::new(false) };
}

/// A sample that is being read. If the read ends without a result, its requests fail.
struct Flight {
    inner: Arc<StoreInner>,
    key: SampleKey,
    is_open: bool,
}

/// Starts reads.
pub(super) fn begin(inner: &Arc<StoreInner>, reads: Vec<BegunRead>) {
    let mut used: Vec<Arc<dyn SampleReader>> = Vec::new();
    let mut of_nodes = Vec::new();
    for BegunRead { keys, place, reader } in reads {
        let flight = |key: &SampleKey| Flight { inner: Arc::clone(inner), key: *key, is_open: true };
        match (&keys[..], place) {
            ([key], ReadPlace::Node(job, due)) => {
                of_nodes.push((flight(key), reader.read_node(key.id, job, due)));
            }
            ([key], ReadPlace::Disk) => begin_one(inner, flight(key), reader.read_disk(key.id)),
            ([key], ReadPlace::Origin(order)) => begin_one(inner, flight(key), reader.read(key.id, order)),
            (keys, place) => {
                let ids = keys.iter().map(|key| key.id).collect();
                let order = if let ReadPlace::Origin(order) = place { order } else { Tick::default() };
                let flights = keys.iter().map(flight).collect();
                spawn_block(&inner.runtime, flights, reader.read_block(ids, order));
            }
        }
        if !used.iter().any(|other| Arc::ptr_eq(other, &reader)) {
            used.push(reader);
        }
    }
    used.iter().for_each(|reader| reader.submit());
    if !of_nodes.is_empty() {
        spawn_of_nodes(&inner.runtime, of_nodes);
    }
}

/// Starts a read, which ends with its jobs.
fn begin_one(inner: &StoreInner, flight: Flight, read: ReadFuture) {
    let (before, key) = (IS_STARTING.replace(true), flight.key);
    let reading = inner.runtime.spawn(async move { flight.complete(read.await) });
    IS_STARTING.set(before);
    if let Some(flight) = lock(&inner.state).flights.get_mut(&key) {
        flight.abort = Some(reading.abort_handle());
    }
}

/// Starts the read of a block. It is not aborted, because jobs that come may wait for it.
fn spawn_block(runtime: &Handle, flights: Vec<Flight>, reads: BoxFuture<'static, Vec<ReadFuture>>) {
    let before = IS_STARTING.replace(true);
    runtime.spawn(async move {
        let reads = reads.await;
        let each = flights.into_iter().zip(reads);
        let each = each.map(|(flight, read)| async move { flight.complete(read.await) });
        each.collect::<FuturesUnordered<_>>().collect::<()>().await;
    });
    IS_STARTING.set(before);
}

/// Starts reads of other nodes, in one task: there are many at once, and each takes little time.
/// They are not aborted, because they use no turn of an origin.
fn spawn_of_nodes(runtime: &Handle, reads: Vec<(Flight, ReadFuture)>) {
    let before = IS_STARTING.replace(true);
    let each = reads.into_iter().map(|(flight, read)| async move { flight.complete(read.await) });
    let each = each.collect::<FuturesUnordered<_>>();
    runtime.spawn(each.collect::<()>());
    IS_STARTING.set(before);
}

impl Flight {
    fn complete(mut self, received: Result<Bytes, TierError>) {
        self.end(received);
    }

    fn end(&mut self, received: Result<Bytes, TierError>) {
        self.is_open = false;
        let (mut actions, now) = (Actions::default(), (self.inner.clock)());
        let mut state = lock(&self.inner.state);
        let flight = state.flights.remove(&self.key).unwrap_or_default();
        let SampleFlight { waiting, reader, is_on_disk, is_of_node, .. } = flight;
        let SampleFlight { is_for_disk, is_in_block, has_block, requested, .. } = flight;
        let has_ended = self.inner.has_ended.load(Ordering::Relaxed);
        if (is_on_disk || is_of_node) && received.is_err() && !has_ended {
            if is_on_disk {
                state.cache.set_on_disk(self.key, false);
            }
            state.queue_again(self.key, waiting, is_for_disk, now, &mut actions);
            drop(state);
            return self.inner.carry_out(actions);
        }
        if (is_in_block || has_block) && received.is_err() && !has_ended {
            // The error may be that of another sample.
            state.block_failed(self.key);
            if !is_in_block {
                state.end_read(self.key, now, true, &mut actions);
            }
            state.queue_again(self.key, waiting, is_for_disk, now, &mut actions);
            drop(state);
            return self.inner.carry_out(actions);
        }
        match &received {
            // It may have been evicted meanwhile.
            Ok(bytes) if state.cache.contains(self.key) => {
                state.samples.insert(self.key, bytes.clone());
            }
            Ok(_) => {}
            Err(_) => state.cache.forget(self.key),
        }
        for request in &waiting {
            if let Some(member) = state.jobs.get_mut(&request.job) {
                member.waiting -= 1;
            }
        }
        let length = received.as_ref().ok().map(Bytes::len);
        if let Some(length) = length.filter(|_| !is_on_disk && !is_of_node && !is_in_block) {
            state.pace.ended(length as u64, now.saturating_sub(requested), now);
        }
        // Reads from disks and nodes have no turns.
        let reader = reader.or_else(|| waiting.first().map(|request| request.job));
        state.count(reader.unwrap_or(StoreJob(u64::MAX)), self.key.dataset, |counts| match length {
            Some(_) if is_on_disk => counts.disk_reads += 1,
            Some(_) if is_of_node => counts.node_reads += 1,
            Some(length) => {
                counts.reads += 1;
                counts.read_bytes += length as u64;
                counts.requests += u64::from(!is_in_block);
            }
            None => counts.failures += 1,
        });
        if !is_in_block {
            state.end_read(self.key, now, !has_ended, &mut actions);
        }
        let dataset = state.datasets.get(self.key.dataset.0 as usize);
        let is_new = !is_on_disk && state.cache.owner(self.key) == NodeOwner::This;
        let dataset = dataset.filter(|dataset| is_for_disk && is_new && dataset.reader.has_disk());
        let keeper = dataset.map(|dataset| Arc::clone(&dataset.reader));
        let to_disk = keeper.zip(received.as_ref().ok().cloned());
        if let Some((_, bytes)) = &to_disk {
            state.written_behind.insert(self.key, bytes.clone());
        }
        drop(state);
        self.inner.carry_out(actions);
        if let Some((keeper, bytes)) = to_disk {
            let writing = DiskWrite { inner: Arc::clone(&self.inner), key: self.key };
            keeper.keep_on_disk(self.key.id, bytes, Box::new(move || writing.kept()));
        }
        for request in waiting {
            (request.answer)(received.clone());
        }
    }
}

/// A sample on its way to a disk, until it is dropped.
struct DiskWrite {
    inner: Arc<StoreInner>,
    key: SampleKey,
}

impl DiskWrite {
    fn kept(self) {
        NodeStore(Arc::clone(&self.inner)).set_on_disk(self.key.dataset, &[self.key.id], true);
    }
}

impl Drop for DiskWrite {
    fn drop(&mut self) {
        let bytes = lock(&self.inner.state).written_behind.remove(&self.key);
        // Without the lock: it may unmap memory.
        drop(bytes);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.is_open {
            if IS_STARTING.get() {
                self.inner.has_ended.store(true, Ordering::Relaxed);
            }
            let detail = "the read has ended without a result";
            self.end(Err(TierError::new(ErrorKind::Transient, "store").with_detail(detail)));
        }
    }
}
