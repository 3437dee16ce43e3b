//! For tests only: fakes of every kind of tier, and a conformance suite that real ones are held to.
//!
//! * [`FakeOrigin`]: a store of generated objects with a latency, a bandwidth and a parallelism.
//! * [`Cell`]: such stores by what limits them, and what is possible there.
//! * [`FailingTier`]: any tier, with failures on command.
//! * [`Trainer`]: what an engine and a trainer ask of an origin, in time, and how they fare.
//! * [`CountingTier`]: any tier, counted and recorded.
//! * [`ReadAll`]: several reads of any tier as one stream.
//! * [`CountingAllocator`]: what a test program has in use.
//! * [`StoredCache`]: a cache that has to be read, as a disk has, but without the disk.
//! * [`Draw`]: numbers from the seed of a run of the tests.
//! * [`Scheduler`]: simulated time, seeded randomness and the hash of a trace, for simulations of state machines.
//! * `store`, with the feature `http`: an object store that is spoken to over HTTP, with counts and faults.
//! * [`copy_program`]: a copy of a program that can be run at once.
//! * [`conformance`]: what the contract promises, as functions that every backend's tests call.
//!
//! The fakes keep time with [`tokio::time`] alone, so that on a paused clock an hour of reading takes a moment and
//! two runs are alike. They use no threads, no global state and no randomness beyond a seed. Everything here may
//! panic: a fake that is used wrongly, or a promise that is not kept, is a failed test.

mod allocator;
mod ceiling;
mod cell;
mod content;
mod counting;
mod counts;
mod draw;
mod failing;
mod origin;
mod program;
mod reads;
mod scheduler;
mod stored;
mod trainer;

pub mod conformance;
#[cfg(feature = "http")]
pub mod store;

pub use allocator::CountingAllocator;
pub use cell::Cell;
pub use content::{Known, content, content_range, request};
pub use counting::CountingTier;
pub use counts::{Counts, Tally};
pub use draw::Draw;
pub use failing::{FailingTier, Fault, When};
pub use origin::FakeOrigin;
pub use program::copy_program;
pub use reads::{Answered, ReadAll};
pub use scheduler::{EventId, Scheduler};
pub use stored::StoredCache;
pub use trainer::{Course, Fared, Trainer};
