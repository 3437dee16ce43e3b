//! Hosts the store of a node: one cache for the ranks of a run, or for all jobs of an agent.
//!
//! Jobs attach to it: they name their datasets and announce their orders ([`provider`]). The host
//! opens the datasets with the same layers as a job ([`dataset_host`]), keeps the samples that any
//! job needs soonest in memory ([`NodeStore`](foreread_store::NodeStore)) and some on disks
//! ([`disk`]), and reads from the stores of other nodes ([`cluster_cache`]).
//!
//! # Decisions and price
//!
//! * *Two hosts, one code.* The first rank of a node hosts its store ([`JobHost`]), or an agent, in
//!   a process of its own (`foreread-agent`). Only the settings differ: an agent has a policy, a
//!   page, and a budget of writes.
//! * *Jobs that differ share nothing.* A job proves its dataset: the identity of its bytes, its
//!   location, its settings and the credentials in the environment.
//! * *The store knows no order of its own.* The price is that each job announces its order.
//!
//! This crate is a part of the library `foreread`. It works on Linux.
#![cfg(target_os = "linux")]

pub mod cluster_cache;
mod connections;
pub mod dataset_host;
mod dataset_room;
mod datasets;
pub mod disk;
pub mod error;
pub mod file_limit;
mod files;
pub mod held_leases;
pub mod host_control;
pub mod host_state;
mod job_runtime;
mod job_store;
mod jobs;
pub mod json;
mod node;
mod openings;
mod origin_name;
pub mod policy;
pub mod policy_file;
mod policy_in_force;
pub mod provider;
mod recent;
mod same_samples;
pub mod status;
mod status_report;
mod warming;

pub use crate::job_runtime::{JobRuntime, io_threads};
#[doc(hidden)]
pub use crate::job_store::HostFault;
pub use crate::job_store::{JobHost, JobStore};
pub use crate::node::{HostRank, HostSettings, NodeDataset, StoreLinks};
