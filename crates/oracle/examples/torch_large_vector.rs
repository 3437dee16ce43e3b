//! Checks PyTorch's large shuffle at its real size: `cargo run --release -p foreread-oracle
//! --example torch_large_vector`.
//!
//! From 214,748,364 samples on, PyTorch shuffles with another algorithm. The unit tests check its
//! code at small sizes. This example takes 1 GB and some seconds, and compares with the output of
//! PyTorch 2.15 for seed 7.

use std::time::Instant;

use foreread_oracle::{OracleError, Sampler, Torch};

fn main() -> Result<(), OracleError> {
    let start = Instant::now();
    let order = Torch::new(214_748_370, 7)?.order(0)?;
    let found: Vec<u64> = (0..6).map(|position| order.at(position).0).collect();
    println!("{found:?} in {:.1} s", start.elapsed().as_secs_f64());
    assert_eq!(found, [93_268_064, 63_068_233, 165_770_247, 155_513_421, 157_420_379, 198_105_859]);
    Ok(())
}
