//! For tests only: fakes of every kind of tier, and the conformance suite for real ones.
//!
//! * [`FakeOrigin`]: a store of generated objects with latency, bandwidth and parallelism.
//! * [`OriginModel`]: such stores by their bottleneck, with their possible throughput.
//! * [`FailingTier`]: any tier, with injected faults and counted reads.
//! * [`Trainer`]: the reads of an engine and a trainer over time, and their results.
//! * [`ReadAll`]: several reads of any tier as one stream.
//! * [`CountingAllocator`]: the memory that a test program has in use.
//! * [`StoredCache`]: a cache that is read like a disk, without a disk.
//! * [`TestRandom`]: random numbers from the seed of a test run.
//! * [`Scheduler`]: simulated time, seeded randomness and the hash of a trace, for simulations of
//!   state machines.
//! * `store`, with the feature `http`: an object store over HTTP, with counts and faults.
//! * [`until`]: waiting for a condition, and [`NEVER`], after which a call hangs.
//! * [`copy_program`]: a copy of a program that can be executed at once.
//! * [`conformance`]: the contract as functions that every tier's tests call.
//!
//! The fakes use [`tokio::time`] alone, so on a paused clock an hour of reading takes a moment and
//! two runs are equal. They use no threads, no global state and no randomness beyond a seed.
//! Everything here may panic: a wrongly used fake or a broken contract is a failed test.

mod allocator;
mod ceiling;
mod cell;
mod content;
mod counts;
mod draw;
mod failing;
mod origin;
mod program;
mod reads;
mod scheduler;
mod stored;
mod trainer;
mod until;

pub mod conformance;
#[cfg(feature = "http")]
pub mod store;

pub use allocator::CountingAllocator;
pub use cell::OriginModel;
pub use content::{KnownSample, content, content_range, request};
pub use counts::{ReadCounter, ReadCounts};
pub use draw::TestRandom;
pub use failing::{FailingTier, Fault, When};
pub use origin::FakeOrigin;
pub use program::copy_program;
pub use reads::{Answered, ReadAll};
pub use scheduler::{EventId, Scheduler};
pub use stored::StoredCache;
pub use trainer::{Trainer, TrainerReport, TrainerStep};
pub use until::{NEVER, until};
