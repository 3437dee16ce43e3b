//! Packed formats, through the library's front door: shards in an origin, a catalog out.

mod cost;
mod hostile;
mod origin;
mod shards;
mod writers;
