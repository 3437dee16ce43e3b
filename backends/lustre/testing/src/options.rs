//! Settings of the stand-in.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use foreread_types::mix;

use crate::spec::LayoutSpec;

/// The layout of a file, by its path below the root and its size.
pub type LayoutOf = Arc<dyn Fn(&str, u64) -> LayoutSpec + Send + Sync>;

/// Settings of a [`StandIn`](crate::StandIn).
#[derive(Clone)]
pub struct StandInOptions {
    /// The number of OSTs.
    pub osts: u32,
    /// The latency of a request to the MDT.
    pub metadata_latency: Duration,
    /// The latency of a request to an OST, or for data on the MDT.
    pub read_latency: Duration,
    /// Bytes per second that each OST sends. `None` for no limit.
    pub ost_bandwidth: Option<u64>,
    /// Opens and closes in flight.
    pub open_slots: usize,
    /// Other requests to the MDT in flight.
    pub getattr_slots: usize,
    /// Reads in flight to each OST.
    pub read_slots: usize,
    /// Whether the first read of an object takes one read latency more, for its lock.
    pub lock_latency: bool,
    /// Whether a full `stat` asks each OST of which the client has no lock for the object's size,
    /// as Lustre does.
    pub glimpses: bool,
    /// Whether the kernel caches pages, as Lustre's client does. Then programs can map files, and
    /// requests have the lengths that the kernel reads ahead. Otherwise each read of a program is a
    /// request, which tests count.
    pub cached: bool,
    /// The layout of each file.
    pub layout: LayoutOf,
    /// The text of CephFS's layouts. Then files have no layout of Lustre's.
    pub ceph_layout: Option<String>,
    /// The number of last requests that [`Counts::log`](crate::Counts::log) has.
    pub logged: usize,
}

impl Default for StandInOptions {
    /// Four OSTs, one stripe for each file, Lustre's numbers of requests in flight, no latency and
    /// no limit.
    fn default() -> Self {
        let osts = 4;
        Self {
            osts,
            metadata_latency: Duration::ZERO,
            read_latency: Duration::ZERO,
            ost_bandwidth: None,
            open_slots: 7,
            getattr_slots: 8,
            read_slots: 8,
            lock_latency: false,
            glimpses: false,
            cached: false,
            layout: spread(1, 1 << 20, osts),
            ceph_layout: None,
            logged: 0,
        }
    }
}

impl StandInOptions {
    /// The default over `osts` OSTs.
    pub fn new(osts: u32) -> Self {
        Self { osts, layout: spread(1, 1 << 20, osts), ..Self::default() }
    }

    /// The same with one latency for requests of all kinds.
    pub fn with_latency(self, latency: Duration) -> Self {
        Self { metadata_latency: latency, read_latency: latency, ..self }
    }

    /// The same with other layouts.
    pub fn with_layout(self, layout: impl Fn(&str, u64) -> LayoutSpec + Send + Sync + 'static) -> Self {
        Self { layout: Arc::new(layout), ..self }
    }

    /// The same with `stripe_count` stripes for each file. Its path determines the first OST.
    pub fn with_stripes(self, stripe_count: u32, stripe_size: u32) -> Self {
        Self { layout: spread(stripe_count, stripe_size, self.osts), ..self }
    }

    /// The same as a CephFS whose files have this layout.
    pub fn as_ceph(self, layout: &str) -> Self {
        Self { ceph_layout: Some(layout.to_owned()), ..self }
    }

    /// The same with a log of the last requests.
    pub fn with_log(self, logged: usize) -> Self {
        Self { logged, ..self }
    }
}

fn spread(stripe_count: u32, stripe_size: u32, osts: u32) -> LayoutOf {
    Arc::new(move |path, _| {
        let hash = path.bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)));
        LayoutSpec::striped(stripe_count, stripe_size, (hash % u64::from(osts)) as u32, osts)
    })
}

impl fmt::Debug for StandInOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandInOptions").field("osts", &self.osts).finish_non_exhaustive()
    }
}
