//! All integration tests, as one binary, which is linked once. A new file is one `mod` line here.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot set itself up fails by panicking"
)]

mod agent;
mod agent_disk;
mod agent_faults;
mod agent_http;
mod agent_lifetime;
mod agent_node;
mod agent_policy;
mod agent_shards;
mod bad_input;
mod calibrate;
mod catalog;
mod control;
mod disk;
mod disk_faults;
mod disk_users;
mod endurance;
mod help;
mod house;
mod identity;
mod load;
mod needs_arrow;
mod needs_azurite;
mod needs_bindfs;
mod needs_btrfs;
mod needs_ceph;
mod needs_cgroup;
mod needs_chromium;
mod needs_ext4;
mod needs_fuse;
mod needs_moto;
mod needs_mounts;
mod needs_mpi;
mod needs_network;
mod needs_strace;
mod needs_tar;
mod needs_torch;
mod node_sockets;
mod order;
mod packed;
mod plot;
mod ranks;
mod ranks_disk;
mod s3;
mod s3_faults;
mod simulate;
mod state;
mod stop;
mod support;
mod tables;
mod terminal;
mod token;
mod two_runs;
mod unchanged;
mod unchanged_agent;
mod unchanged_names;
