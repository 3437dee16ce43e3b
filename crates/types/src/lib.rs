//! The vocabulary of all other crates: samples, ranks, stores, positions, sizes and fingerprints.
//!
//! These are plain values without behaviour beyond arithmetic. The crate depends on nothing, so the
//! pure crates (oracle, planner) and the crates with I/O can share it without depending on each
//! other. The price is that no type here implements a library's serialisation or hashing. Crates
//! that need it convert at their own boundary. The one exception is the name of a setting in a
//! message ([`setting`]), which depends on the interface of the process.

mod fingerprint;
mod footprint;
mod identity;
mod ids;
mod interface;
mod map;
mod mix;
mod recipe;
mod sizes;

pub use fingerprint::{Fingerprint, ParseFingerprintError};
pub use footprint::Footprint;
pub use identity::{DatasetIdentity, ParseIdentityError};
pub use ids::{DatasetId, Rank, RankOf, SampleId, SampleKey, StoreId, Tick};
pub use interface::{Interface, SettingName, setting};
pub use map::{KeyHasher, KeyMap};
pub use mix::{SplitMix64, finalize, mix};
pub use recipe::{Decoder, MOST_PAGE_HEAD, ParseDecoderError, Recipe};
pub use sizes::Sizes;
