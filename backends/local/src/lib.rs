//! Directories.
mod backend;
mod config;
mod core;
mod error;
mod lister;
mod pool;
mod reader;
pub use backend::LocalBackend;
pub use config::{LocalConfig, directory_of};
pub use core::LocalOrigin;
