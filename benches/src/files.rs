//! A directory of samples like pictures, made for one run of the benchmarks.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use foreread_tier::{Object, Version};

/// The next of a sequence of numbers that look random (`SplitMix64`).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Writes `count` files of `least..=most` bytes in twenty directories below `root`; returns their bytes, summed.
/// They stay in the page cache, where there is room.
///
/// # Errors
/// If a file cannot be written.
pub fn make(root: &Path, count: usize, least: u64, most: u64) -> Result<u64> {
    let mut state = 1;
    let mut noise = Vec::new();
    while noise.len() < most as usize + 4096 {
        noise.extend(random(&mut state).to_le_bytes());
    }
    for class in 0..20.min(count) {
        std::fs::create_dir(root.join(format!("class{class:02}")))?;
    }
    let mut total = 0;
    for number in 0..count {
        let length = least + random(&mut state) % (most - least + 1);
        let from = (random(&mut state) % 4096) as usize;
        let mut file = File::create(root.join(format!("class{:02}/image{number:06}.jpg", number % 20)))?;
        file.write_all(&noise[from..from + length as usize])?;
        total += length;
    }
    // Or the kernel's writing back would run beside what is measured.
    rustix::fs::syncfs(File::open(root)?)?;
    Ok(total)
}

/// Objects like those of ImageNet's training set, for catalogs that are never read from.
pub fn imagenet(count: u64) -> impl Iterator<Item = Object> {
    (0..count).map(|number| Object {
        path: format!("n{:08}/n{:08}_{number}.JPEG", number % 1000, number % 1000).into(),
        size: 60_000 + number * 7919 % 100_000,
        version: Some(Version::Modified(1_700_000_000_000_000_000 + number as i64)),
    })
}
