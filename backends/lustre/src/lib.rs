//! Files of a Lustre file system: which of its servers has which part of a file.
//!
//! OSTs (object storage targets) hold the data of Lustre's files. An MDT (metadata target) holds
//! their names, and the data of small files. Every file has a layout that states it, readable
//! by any user as the extended attribute `lustre.lov`. [`read_layout`] reads it, and [`Layout`]
//! answers.
//!
//! [`LustreBackend`] opens directories, and [`LustreOrigin`] reads them as any other directory.
//!
//! Decision: layouts are hints. They choose and explain, and no byte is read by them, because a
//! file may move at any time (`lfs migrate`, `lfs hsm_release`). So whatever the parser does not
//! understand is [`Target::Unknown`] and never an error. The price is that a damaged layout is not
//! reported.
//!
//! All of it was written from Lustre's source and tested against a file system that behaves like
//! Lustre. Nothing was tried on a real one.

mod backend;
mod layout;
mod origin;
mod xattr;

/// The tier's name.
pub(crate) const NAME: &str = "lustre";

pub use backend::LustreBackend;
pub use layout::{Layout, LayoutTargets, Target};
pub use origin::LustreOrigin;
pub use xattr::read_layout;
