//! The words that every other crate uses: samples, ranks, stores, positions, sizes and fingerprints.
//!
//! These are plain values without behaviour beyond arithmetic, and this crate depends on nothing, so that the pure
//! crates (oracle, planner) and the ones that do I/O can share them without pulling each other in. The price is that
//! nothing here can serialise or hash itself with a library; crates that need it do that at their own edge.

mod fingerprint;
mod footprint;
mod identity;
mod ids;
mod map;
mod mix;
mod sizes;

pub use fingerprint::{Fingerprint, ParseFingerprintError};
pub use footprint::Footprint;
pub use identity::{DatasetIdentity, ParseIdentityError};
pub use ids::{DatasetId, Rank, SampleId, SampleKey, StoreId, Tick};
pub use map::{KeyHasher, KeyMap};
pub use mix::{SplitMix64, finalize, mix};
pub use sizes::Sizes;
