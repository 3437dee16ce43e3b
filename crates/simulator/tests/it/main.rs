//! The simulator: its properties, its scenarios, and its predictions.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod properties;
mod scenarios;
mod several_jobs;
mod thesis;
mod whole_files;
