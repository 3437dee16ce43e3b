//! Microbenchmarks with criterion, which show the effect of a change on one component.
//!
//! `cargo xtask bench --bench parts -- oracle` runs those whose name contains the word.

mod catalog;
mod core;
mod layers;
mod memory;
mod oracle;
mod planner;

use std::time::Duration;

use criterion::Criterion;

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let parts: [fn(&mut Criterion) -> anyhow::Result<()>; 6] =
        [oracle::parts, planner::parts, catalog::parts, memory::parts, layers::parts, core::parts];
    for part in parts {
        if let Err(error) = part(&mut criterion) {
            eprintln!("benchmark failed: {error:#}");
            std::process::exit(1);
        }
    }
    criterion.final_summary();
}
