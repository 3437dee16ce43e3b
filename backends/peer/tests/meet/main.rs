//! The rendezvous, the run and its end, over a network in memory and over real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that finds something else should fail here"
)]

mod arriving;
mod catalogs;
mod differing;
mod left_over;
mod relay;
mod running;
mod several;
mod sockets;
mod support;
mod thousand;
