//! What stands between the engine and a store: measuring, limiting, joining, hedging, ending, retrying, breaking. Each is
//! the only place for what it does.
//!
//! # The order
//!
//! ```text
//! joined( retry( limit( hedge( metrics( deadline( backend ))))))
//! ```
//!
//! [`Stack`] puts them around an origin in this order, and is the only place that does. They are plain `async fn`s that make
//! up one future a read, so a layer costs no allocation. Seen from the store outwards:
//!
//! * *deadline* is next to the store: its bound is on what the store does, not on queues, and whatever lies further
//!   out can rely on every read being answered, in its right length.
//! * *metrics* counts what the store is really asked (every attempt and every second read) and times how long the
//!   store takes, not how long requests wait for a turn. What a deadline ends is an error to it.
//! * *hedge* is inside of the limit, so that time spent waiting for a place makes no read late, a second read needs
//!   no place (they are few, and waiting for one would defeat it) unless the limit is the user's own, and the place of a read
//!   that hangs is free as soon as its second one is answered. The latency that the limit adapts itself to is that of the
//!   quicker of the two.
//! * *limit* is inside of the retries, so that a request that sleeps between two attempts holds no place. It is the one
//!   queue, ordered by need. It also holds what leaves to the rate that a store's complaints have taught it, for each
//!   origin, and to the [`Bandwidth`] that the user allows.
//! * *retry*: each attempt passes all the others again. It tells the [`Meter`] how often it did.
//! * *joined* is outermost, so that a joined read takes one place, is one request to the store's ceiling, and is repeated as
//!   one. It joins by what *metrics* sees reads take, below all queues. Of origins whose pages this machine's kernel
//!   keeps, only blocks are joined: their requests cost next to nothing.
//!
//! [`Breaker`] is for tiers that there is something else for, a peer or a disk before the origin: what is refused costs
//! nothing, and nothing is retried, which would wait where another tier is quicker.
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
//! # What it finds by itself
//!
//! Held by the tests in `tests/`, on a clock that runs when nothing else does:
//!
//! | of the store | found | price |
//! |---|---|---|
//! | how many requests fill it | 95 % of what it can do after a second; a tenfold change followed in two | a fifth more under way than fills it |
//! | a ceiling on requests a second, 20 to 5,000 | within 10 %, in two seconds or two hundred requests | 0.2 to 1.7 % refused; the first seconds' 20 to 300 more |
//! | a lower ceiling; one five times as high | in two seconds; in eight | |
//! | refusals by chance, 1 and 10 in 100 | told from a ceiling after a few of them | 2 and 10 % of the time; 31 % where the look-ahead is shorter than the waits before retries |
//! | a connection that stalls | after three times what 95 of 100 reads take | one second read; at most 3 in 100 |
//!
//! # Polling
//!
//! No layer has a task of its own: all work is done by whoever polls a read's future. This keeps the cost
//! of a layer far below a microsecond a sample and makes dropping the future cancel what it waits for. The price is
//! that a future that has begun has to be polled on (or dropped): a place that was given to it is not passed on while it
//! sleeps.

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
mod limit;
mod meter;
mod parts;
mod queue;
mod rate;
mod retry;
mod speed;
mod stack;

pub use bandwidth::Bandwidth;
pub use breaker::{Breaker, BreakerPolicy};
pub use controller::{AdaptivePolicy, LimitReason};
pub use deadline::DeadlinePolicy;
pub use hedge::HedgePolicy;
pub use joined::MergePolicy;
pub use limit::{Decisions, Limit};
pub use meter::{Meter, Reading};
pub use retry::RetryPolicy;
pub use stack::Stack;
