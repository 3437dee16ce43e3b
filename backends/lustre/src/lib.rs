//! Files of a Lustre file system: which of its servers has which part of a file.
//!
//! A Lustre file has its name on an MDT (metadata target). Its data is on one or more OSTs (object
//! storage targets). The first bytes may be on the MDT instead. Every file has a layout that states
//! it. Any user can read it as the extended attribute `lustre.lov`: by [`read_layout`], as a
//! [`Layout`].
//!
//! [`LustreBackend`] opens directories, by [`open_lustre`], which reads them as any other
//! directory.
//!
//! Decision: layouts are hints. They choose and explain, and no byte is read by them, because a
//! file may move at any time (`lfs migrate`, `lfs hsm_release`). So whatever the parser does not
//! understand has no known server and is never an error. The price is that a damaged layout is not
//! reported.
//!
//! All of it was written from Lustre's source and tested against a file system that behaves like
//! Lustre. Nothing was tried on a real one.

mod backend;
mod ceph;
mod layout;
mod origin;
mod xattr;

/// The tier's name.
pub(crate) const NAME: &str = "lustre";

pub use backend::LustreBackend;
pub use layout::Layout;
pub use origin::open_lustre;
pub use xattr::read_layout;
