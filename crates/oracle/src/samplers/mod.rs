//! The samplers, one per file, and a row for each that users choose by name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{OracleError, Sampler};

mod explicit;
mod feistel;
mod sequential;
mod shuffle;
mod subset;
mod torch;
mod torch_weighted;
mod weighted;

pub use explicit::Explicit;
pub use feistel::Feistel;
pub(crate) use feistel::Permutation;
pub use sequential::Sequential;
pub use shuffle::Shuffle;
pub use subset::Subset;
pub use torch::Torch;
pub use torch_weighted::TorchWeighted;
pub use weighted::Weighted;

/// Defines [`SamplerKind`] by its rows: a variant, the name that settings use, and the constructor,
/// by the number of samples and the seed.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal $make:expr;)*) => {
        /// How an epoch's order is determined.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        #[non_exhaustive]
        pub enum SamplerKind {
            $($(#[$doc])* $kind,)*
        }

        impl SamplerKind {
            /// The names that settings use.
            pub const NAMES: &[&str] = &[$($name,)*];

            /// All samplers, by these names.
            pub const ALL: [(&str, Self); Self::NAMES.len()] = [$(($name, Self::$kind),)*];

            /// The sampler of a training pass over so many samples.
            ///
            /// # Errors
            /// If the sampler cannot order so many samples.
            pub fn sampler(self, samples: u64, seed: u64) -> Result<Arc<dyn Sampler>, OracleError> {
                Ok(match self {
                    $(Self::$kind => Arc::new($make(samples, seed)?),)*
                })
            }
        }
    };
}

kinds! {
    /// A new uniform permutation in every epoch.
    #[default]
    Shuffle "shuffle" Shuffle::new;
    /// PyTorch's `DistributedSampler`, bit for bit.
    Torch "torch" Torch::new;
    /// A keyed permutation without a table, for any number of samples.
    Feistel "feistel" Feistel::new;
    /// The catalog's order.
    Sequential "sequential" (|samples, _| Sequential::new(samples));
}

/// A name that no sampler has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownSampler;

impl fmt::Display for UnknownSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (last, others) = SamplerKind::NAMES.split_last().unwrap_or((&"", &[]));
        write!(f, "expected {} or {last}", others.join(", "))
    }
}

impl std::error::Error for UnknownSampler {}

impl FromStr for SamplerKind {
    type Err = UnknownSampler;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, kind)| kind).ok_or(UnknownSampler)
    }
}

impl fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(_, kind)| kind == self).map_or("", |(name, _)| *name))
    }
}
