//! The storage servers of samples: their speeds, and an order of samples that evens their time.
//!
//! A parallel file system spreads a dataset over servers. An epoch takes as long as its slowest
//! server, and a kept sample saves the time of one server only. So the next sample to keep is the
//! best one of the server with the most remaining time. The remaining times become equal, as far
//! as capacity allows.
//!
//! # The decision, and its price
//!
//! Greedy, in `O(n log n)` and integers, with ties broken by the number of the server. Within a
//! server samples go by worth. Samples that do not fit are counted as kept. They are few, because
//! the best samples come first. The price is two bytes per sample for the table of servers, and a
//! table of kept samples even if all lengths are equal. If lengths differ, more bytes may be read
//! than by worth alone. So [`server_times`](crate::server_times) compares both plans.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;

use foreread_types::SampleId;

use crate::curve::transfer_ns;
use crate::error::PlanReason;
use crate::wide::narrow;

/// The speed of one storage server, as one rank sees it with its usual number of parallel reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerSpeed {
    /// Nanoseconds that each read takes from the server's time, in addition to the bytes.
    pub latency_ns: u64,
    /// Bytes per second. Not 0.
    pub bytes_per_second: u64,
}

impl ServerSpeed {
    /// Nanoseconds that a read of `bytes` bytes takes from the server's time.
    fn nanoseconds(&self, bytes: u64) -> u64 {
        transfer_ns(bytes.into(), self.bytes_per_second).saturating_add(self.latency_ns)
    }
}

/// The storage server of each sample, and the speed of each server. Cheap to clone.
///
/// ```
/// use foreread_planner::{OriginServers, ServerSpeed};
/// let quick = ServerSpeed { latency_ns: 0, bytes_per_second: 100_000_000 };
/// let slow = ServerSpeed { bytes_per_second: 5_000_000, ..quick };
/// // Four samples on two servers. The server of the last sample is unknown.
/// let servers = OriginServers::new(vec![quick, slow], vec![[0, 1, 1, OriginServers::UNKNOWN].into()]);
/// assert_eq!(servers.speeds()[1], slow);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct OriginServers {
    speeds: Arc<[ServerSpeed]>,
    /// By dataset, by sample.
    tables: Arc<[Arc<[u16]>]>,
    /// The speed of a server of unknown speed.
    average: ServerSpeed,
}

impl OriginServers {
    /// The number of a sample whose server is unknown. Such samples count as spread evenly over
    /// servers of average speed.
    pub const UNKNOWN: u16 = u16::MAX;

    /// `tables` has the server of each sample as a position in `speeds`, by dataset. Samples
    /// without an entry and servers without a speed are unknown.
    pub fn new(speeds: Vec<ServerSpeed>, tables: Vec<Arc<[u16]>>) -> Self {
        let mean = |of: fn(&ServerSpeed) -> u64| {
            let all: u128 = speeds.iter().map(|speed| u128::from(of(speed))).sum();
            narrow(all / (speeds.len() as u128).max(1))
        };
        let average = ServerSpeed {
            latency_ns: mean(|speed| speed.latency_ns),
            bytes_per_second: mean(|speed| speed.bytes_per_second),
        };
        Self { speeds: speeds.into(), tables: tables.into(), average }
    }

    /// The servers of samples that are decoded when they are read: `stored` bytes become
    /// `delivered` ones. Speeds are then of delivered bytes.
    #[must_use]
    pub fn decoding(&self, stored: u64, delivered: u64) -> Self {
        let of = |speed: &ServerSpeed| {
            let rate = u128::from(speed.bytes_per_second) * u128::from(delivered) / u128::from(stored.max(1));
            ServerSpeed { bytes_per_second: narrow(rate).max(1), ..*speed }
        };
        let speeds = self.speeds.iter().map(of).collect();
        Self { speeds, average: of(&self.average), ..self.clone() }
    }

    /// The speed of each server.
    pub fn speeds(&self) -> &[ServerSpeed] {
        &self.speeds
    }

    /// The mean of these speeds.
    pub fn average(&self) -> ServerSpeed {
        self.average
    }

    /// The number of servers, and one for unknown ones.
    pub(crate) fn count(&self) -> usize {
        self.speeds.len() + 1
    }

    /// The server of a sample. The one after the last if it is unknown.
    pub(crate) fn of(&self, dataset: usize, id: SampleId) -> usize {
        let table = self.tables.get(dataset);
        let number = table.and_then(|table| table.get(usize::try_from(id.0).ok()?));
        number.map_or(self.speeds.len(), |&number| usize::from(number).min(self.speeds.len()))
    }

    /// Nanoseconds that a read of `bytes` bytes takes from a server's time.
    pub(crate) fn nanoseconds(&self, server: usize, bytes: u64) -> u64 {
        match self.speeds.get(server) {
            Some(speed) => speed.nanoseconds(bytes),
            // Spread over all servers, each of which has a part of the time.
            None => self.average.nanoseconds(bytes) / (self.speeds.len() as u64).max(1),
        }
    }

    pub(crate) fn check(&self) -> Result<(), PlanReason> {
        // The average of no speeds is 0.
        if self.speeds.iter().chain([&self.average]).any(|speed| speed.bytes_per_second == 0) {
            return Err(PlanReason::Zero { field: "servers.bytes_per_second" });
        }
        Ok(())
    }
}

impl fmt::Debug for OriginServers {
    /// The speeds, not every sample.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OriginServers").field("speeds", &self.speeds).finish_non_exhaustive()
    }
}

/// Orders `items` so that those before any point leave the servers with equal remaining times. The
/// next item is always the least one of the server with the most remaining time. Returns `None`
/// without memory for a second list.
///
/// `server` is the number of an item's server, below `servers`. `ns` is the time that the item
/// takes from it.
pub(crate) fn by_remaining_time<T: Copy + Ord>(
    items: &mut Vec<T>,
    servers: usize,
    server: impl Fn(&T) -> usize,
    ns: impl Fn(&T) -> u128,
) -> Option<()> {
    let mut ordered = Vec::new();
    ordered.try_reserve_exact(items.len()).ok()?;
    items.sort_unstable_by_key(|item| (server(item), *item));
    let mut remaining = vec![0u128; servers];
    let mut ends = vec![0; servers];
    for (at, item) in items.iter().enumerate() {
        let server = server(item);
        remaining[server] = remaining[server].saturating_add(ns(item));
        ends[server] = at + 1;
    }
    let mut next = vec![0; servers];
    let mut most = BinaryHeap::new();
    let mut start = 0;
    for (server, &end) in ends.iter().enumerate().filter(|(_, end)| **end > 0) {
        next[server] = start;
        start = end;
        most.push((remaining[server], Reverse(server)));
    }
    while let Some((remaining, Reverse(server))) = most.pop() {
        let item = items[next[server]];
        ordered.push(item);
        next[server] += 1;
        if next[server] < ends[server] {
            most.push((remaining.saturating_sub(ns(&item)), Reverse(server)));
        }
    }
    *items = ordered;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_times_become_equal() {
        // Server, number and time: 60, 30 and 10 in all.
        let mut items: Vec<(usize, u32, u128)> = Vec::new();
        items.extend((0..6).map(|number| (0, number, 10)));
        items.extend((0..3).map(|number| (1, number, 10)));
        items.push((2, 0, 10));
        by_remaining_time(&mut items, 4, |item| item.0, |item| item.2).unwrap();
        let order: Vec<(usize, u32)> = items.iter().map(|item| (item.0, item.1)).collect();
        // Three of the first server leave 30. Then both take turns.
        assert_eq!(order[..4], [(0, 0), (0, 1), (0, 2), (0, 3)]);
        assert_eq!(order[4..], [(1, 0), (0, 4), (1, 1), (0, 5), (1, 2), (2, 0)]);
    }

    #[test]
    fn unknown_servers_are_spread_over_all() {
        let speed = |bytes_per_second| ServerSpeed { latency_ns: 100, bytes_per_second };
        let table: Arc<[u16]> = [1, 0, OriginServers::UNKNOWN, 7].into();
        let servers = OriginServers::new(vec![speed(1_000_000_000), speed(3_000_000_000)], vec![table]);
        let found: Vec<usize> = (0..6).map(|id| servers.of(0, SampleId(id))).collect();
        assert_eq!((found, servers.of(1, SampleId(0))), (vec![1, 0, 2, 2, 2, 2], 2));
        assert_eq!([0, 1, 2].map(|server| servers.nanoseconds(server, 6000)), [6100, 2100, 1550]);
        // Without any server there is nothing to even, and no division by 0.
        assert_eq!(OriginServers::new(Vec::new(), Vec::new()).nanoseconds(0, 0), u64::MAX);
    }
}
