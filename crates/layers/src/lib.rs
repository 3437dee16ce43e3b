//! Wrappers around any tier: measuring, holding to a rate, limiting, merging, hedging, ending, retrying, breaking. Each is
//! the only place for what it does.
//!
//! A layer wraps an `Arc` of a tier (a concrete one, or `dyn OriginTier`), keeps its name and profile, and implements
//! whatever of the tier traits the wrapped one has. Only [`read`](foreread_tier::Tier::read) is touched: listings,
//! lookups, reservations and stores pass through as they are.
//!
//! # The order of stacking
//!
//! ```text
//! Retrying( Merged( Limited( Hedged( Throttled( Metered( Deadlined( backend )))))))
//! ```
//!
//! [`Stack`] puts them on in this order, and is the only place that does. Seen from the store outwards:
//!
//! * [`Deadlined`] is next to the store: its bound is on what the store does, not on queues, and whatever lies further
//!   out can rely on every read being answered, in its right length.
//! * [`Metered`] counts what the store is really asked (every attempt and every second read) and times how long the
//!   store takes, not how long requests wait for a turn. What a deadline ends is an error to it.
//! * [`Throttled`] sees every attempt and every second read, because these load the store as well. It is inside of the
//!   limit, so that tokens are spent at the moment when a request leaves: were it outside, requests would queue behind
//!   it with their tokens paid, and leave in a burst. To an adaptive limit it looks like a store of that bandwidth.
//! * [`Hedged`] is inside of the limit, so that time spent waiting for a place makes no read late, a second read needs
//!   no place (they are few, and waiting for one would defeat it) unless the limit is the user's own, and the place of a read that hangs is free as soon
//!   as its second one is answered. The latency that the limit adapts itself to is that of the quicker of the two.
//! * [`Limited`] is outside of the throttle, where its queue, ordered by need, is the long one; and inside of the
//!   retries, so that a request that sleeps between two attempts holds no place. It also holds what leaves to the rate
//!   that a store's complaints have taught it, for each origin and for a prefix that is refused by itself.
//! * [`Merged`] is outside of the limit, so that a merged read takes one place and is one request to the store's ceiling;
//!   and inside of the retries, which repeat the parts of a merged read that failed in one batch. It merges by what
//!   [`Metered`] sees reads take, below all queues. Origins whose pages this machine's kernel keeps do without
//!   it: their requests cost next to nothing.
//! * [`Retrying`] is outermost: each attempt passes all the others again. It tells the [`Meter`] how often it did.
//!
//! [`Breaker`] is for tiers that there is something else for, a peer before the origin: outside of all others, so that what is
//! refused costs nothing, and without [`Retrying`] around it, which would wait where another tier is quicker.
//!
//! ```
//! use std::num::NonZeroU64;
//! use std::sync::Arc;
//! use foreread_layers::{Stack, Throttle};
//! use foreread_tier::OriginTier;
//!
//! fn held(origin: Arc<dyn OriginTier>, rate: NonZeroU64) -> Arc<dyn OriginTier> {
//!     Stack::new(0).with_throttle(Some(Throttle::new(rate))).wrap(origin)
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
//! | a ceiling of one prefix (50 of 6,400 a second) | the others have 99 % of their speed after twelve seconds | all are slowed until then |
//! | refusals by chance, 1 and 10 in 100 | told from a ceiling after a few of them | 2 and 10 % of the time; 31 % where the look-ahead is shorter than the waits before retries |
//! | a connection that stalls | after three times what 95 of 100 reads take | one second read; at most 3 in 100 |
//!
//! # Polling
//!
//! No layer has a task of its own: all work is done by whoever polls the stream of completions. This keeps the cost
//! of a layer far below a microsecond a sample and makes dropping a stream cancel what it waits for. The price is
//! that a stream that has been polled once has to be polled on (or dropped): a place or a turn that was given to it
//! is not passed on while it sleeps.

/// Passes on everything but `Tier` itself.
macro_rules! pass_through {
    ($layer:ident) => {
        impl<T: foreread_tier::OriginTier + ?Sized> foreread_tier::OriginTier for $layer<T> {
            fn list(
                &self,
                prefix: &str,
                after: Option<&str>,
            ) -> futures::stream::BoxStream<'static, Result<foreread_tier::Object, foreread_tier::TierError>>
            {
                self.inner.list(prefix, after)
            }

            fn stat(
                &self,
                path: &str,
            ) -> futures::future::BoxFuture<'static, Result<foreread_tier::Object, foreread_tier::TierError>>
            {
                self.inner.stat(path)
            }

            fn place(&self) -> &str {
                self.inner.place()
            }
        }

        #[async_trait::async_trait]
        impl<T: foreread_tier::CacheTier + ?Sized> foreread_tier::CacheTier for $layer<T> {
            fn footprint(&self) -> foreread_types::Footprint {
                self.inner.footprint()
            }

            fn lookup(&self, key: foreread_types::SampleKey) -> foreread_tier::Lookup {
                self.inner.lookup(key)
            }

            fn reserve(&self, bytes: u64) -> Option<foreread_tier::Charge> {
                self.inner.reserve(bytes)
            }

            async fn store(
                &self,
                room: foreread_tier::Charge,
                key: foreread_types::SampleKey,
                sample: foreread_tier::Sample,
            ) -> Result<(), foreread_tier::TierError> {
                self.inner.store(room, key, sample).await
            }

            async fn remove(&self, keys: Vec<foreread_types::SampleKey>) {
                self.inner.remove(keys).await;
            }
        }
    };
}

mod adaptive;
mod breaker;
mod controller;
mod deadline;
mod gate;
mod hedged;
mod histogram;
mod limit;
mod merged;
mod meter;
mod open;
mod rate;
mod rates;
mod retry;
mod running;
mod speed;
mod stack;
mod suspects;
mod throttle;

pub use adaptive::Decisions;
pub use breaker::{Breaker, BreakerPolicy};
pub use controller::{AdaptivePolicy, Controller, Outcome, Why};
pub use deadline::{DeadlinePolicy, Deadlined};
pub use hedged::{HedgePolicy, Hedged};
pub use limit::{Limit, Limited, Permit};
pub use merged::{MergePolicy, Merged};
pub use meter::{Meter, Metered, Reading};
pub use retry::{RetryPolicy, Retrying};
pub use stack::Stack;
pub use throttle::{Throttle, Throttled};
