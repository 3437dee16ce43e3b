//! The oracle: the order in which each rank reads its samples.
//!
//! A training run draws its read order from a seed, so the order is known before the run starts.
//! This crate computes it in four steps. Each step is a separate value:
//!
//! 1. A [`Sampler`] gives the global [`Order`] of an epoch: [`Shuffle`], [`Torch`], [`Feistel`],
//!    [`Sequential`], [`Weighted`], [`TorchWeighted`], [`Explicit`], [`Subset`] or a custom
//!    sampler.
//! 2. A [`Dealing`] splits that order among the ranks, as PyTorch's `DistributedSampler` does or in
//!    blocks.
//! 3. An [`AccessStream`] is the sequence that one rank reads in one pass. It is read forwards
//!    (`at`, `fill`) and backwards (`next_use`).
//! 4. A [`Schedule`] names the passes of a run. A [`Run`] concatenates them: all accesses of one
//!    rank, from the beginning or from a saved [`Position`].
//!
//! # The decision, and its price
//!
//! Every result is a function of its arguments. There is no I/O, clock, global state, hash order or
//! floating-point tie. Two ranks compute the same orders without communication, and so does one
//! rank after a restart on another machine. The price: the generators and shuffles are implemented
//! here and pinned by golden vectors. They can never be changed in place. A better one is a new
//! sampler.
//!
//! ```
//! use std::sync::Arc;
//! use foreread_oracle::{Deal, Phase, PhaseKind, Run, Schedule, Shuffle};
//! use foreread_types::{DatasetId, Rank, SampleId};
//!
//! # fn main() -> Result<(), foreread_oracle::OracleError> {
//! let train = Phase {
//!     kind: PhaseKind::Train,
//!     dataset: DatasetId(0),
//!     sampler: Arc::new(Shuffle::new(1000, 42)?),
//!     batch_size: Some(64),
//!     drop_last: false,
//! };
//! let run = Run::new(Arc::new(Schedule::new(3, vec![train])?), Deal::Torch, 4, Rank(1))?;
//! for pass in run.passes() {
//!     let stream = run.stream(&pass)?;
//!     let mut ids = vec![SampleId(0); stream.len() as usize];
//!     stream.fill(0, &mut ids);
//!     assert_eq!((ids.len(), pass.batches), (250, 4));
//! }
//! # Ok(())
//! # }
//! ```

mod dealing;
mod error;
mod fingerprint;
mod order;
mod position;
mod random;
mod run;
mod sampler;
mod samplers;
mod schedule;
mod stream;
mod uses;

pub use dealing::{Deal, Dealing};
pub use error::OracleError;
pub use fingerprint::Fingerprinter;
pub use order::{ComputedOrder, Order};
pub use position::Position;
pub use run::{Pass, Passes, Run};
pub use sampler::Sampler;
pub use samplers::*;
pub use schedule::{Phase, PhaseKind, Schedule};
pub use stream::AccessStream;
pub use uses::OrderInverse;
