//! The formats of shards, against files by their real writers.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod allocation;
mod arrow_stream;
mod columnar;
mod counting;
mod hdf5;
mod kit;
mod litdata;
mod lmdb;
mod lmdb_trees;
mod mutations;
mod parquet;
mod parts;
mod tables;
