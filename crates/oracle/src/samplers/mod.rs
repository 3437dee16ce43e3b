//! The samplers, one per file.

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
