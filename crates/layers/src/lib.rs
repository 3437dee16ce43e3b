//! Layers around a tier: metrics, limits, joined ranges, hedges, deadlines, retries and the
//! breaker. Each concern is handled in exactly one layer.
//!
//! # The order
//!
//! ```text
//! made( joined( retry( limit( hedge( metrics( deadline( origin )))))))
//! ```
//!
//! [`Stack`] is the only place that builds this order around an origin. The layers are plain `async
//! fn`s that form one future per read, so a layer costs no allocation. From the origin outwards:
//!
//! * *deadline* is next to the origin. Its bound applies to the origin and not to queues. Every
//!   outer layer can rely on an answer of the right length.
//! * *metrics* counts the requests to the origin (every attempt and every hedge). It measures the
//!   origin's latency without the time in queues. A read that a deadline ends is an error.
//! * *hedge* is inside the limit, so time in the queue makes no read late. A hedge needs no slot
//!   unless the limit is the user's own: hedges are few, and waiting for a slot would defeat them.
//!   The slot of a hanging read is free as soon as its hedge is answered. The limit adapts to the
//!   latency of the faster of the two reads.
//! * *limit* is inside the retries, so a request that waits between two attempts holds no slot. It
//!   is the only queue, in due order. It also enforces the request rate that each origin's refusals
//!   have taught it, and the user's [`Bandwidth`].
//! * *retry*: each attempt passes all inner layers again. Retries are counted in the [`Meter`].
//! * *joined* is outside of all other layers that see stored bytes. So a joined read takes one
//!   slot, is one request for the origin's ceiling, and is retried as one. It decides by the
//!   latencies that *metrics* measures, below all queues. For origins in this machine's page cache,
//!   only blocks are joined, because their requests cost next to nothing.
//! * *made* is outermost. It decodes compressed samples, and reads a stored unit once for all
//!   samples that share it ([`Units`]).
//!
//! [`Breaker`] is for tiers with an alternative: a peer, or a disk in front of the origin. A
//! rejected read costs nothing. Nothing is retried there, because the other tier is faster than a
//! wait.
//!
//! ```
//! use std::num::NonZeroU64;
//! use std::sync::Arc;
//! use foreread_layers::{Bandwidth, Stack};
//! use foreread_tier::OriginTier;
//!
//! fn held(origin: Arc<dyn OriginTier>, rate: NonZeroU64) -> Arc<dyn OriginTier> {
//!     Stack::new(0).with_bandwidth(Some(Bandwidth::new(rate))).wrap(origin)
//! }
//! ```
//!
//! # Measured behaviour
//!
//! Tested in `tests/`, on simulated time:
//!
//! | property of the origin | result | price |
//! |---|---|---|
//! | concurrency that saturates it | 95 % of its throughput after a second; a tenfold change is followed in two | a fifth more in flight than saturates it |
//! | a ceiling on requests per second, 20 to 5,000 | within 10 %, in two seconds or two hundred requests | 0.2 to 1.7 % refused; 20 to 300 more in the first seconds |
//! | a lower ceiling; one five times as high | in two seconds; in eight | |
//! | random refusals, 1 and 10 in 100 | distinguished from a ceiling after a few of them | 2 and 10 % of the time; 31 % where the look-ahead is shorter than the waits before retries |
//! | a connection that stalls | after three times the latency of 95 of 100 reads | one hedge; at most 3 in 100 |
//!
//! # Polling
//!
//! No layer has a task: all work is done by the task that polls a read's future. So a layer costs
//! far less than a microsecond per sample, and dropping the future cancels its waits. The price is
//! that a started future must be polled or dropped: a slot that was granted to it is not passed on
//! meanwhile.

/// Declares setters, each of which sets the fields named like its parameters.
macro_rules! setters {
    ($type:ident: $($(#[$doc:meta])* $name:ident($($field:ident: $value:ty),+);)+) => {
        impl $type {$(
            $(#[$doc])*
            #[must_use]
            pub fn $name(self, $($field: $value),+) -> Self {
                Self { $($field,)+ ..self }
            }
        )+}
    };
}

mod bandwidth;
mod breaker;
mod controller;
mod deadline;
mod hedge;
mod histogram;
mod joined;
mod kept_parts;
mod limit;
mod made;
mod meter;
mod parts;
mod queue;
mod rate;
mod retry;
mod speed;
mod stack;
mod units;

pub use bandwidth::Bandwidth;
pub use breaker::Breaker;
pub use controller::{AdaptivePolicy, LimitReason};
pub use deadline::DeadlinePolicy;
pub use hedge::HedgePolicy;
pub use joined::MergePolicy;
pub use limit::{Decisions, Limit};
pub use meter::{Meter, MeterReading};
pub use retry::RetryPolicy;
pub use stack::Stack;
pub use units::{Neighbour, UnitContents, UnitCounts, Units};
