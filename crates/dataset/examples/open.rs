//! What opening a catalog of ImageNet's size takes, in time and in memory.
//!
//! `cargo run --release -p foreread-dataset --example open -- [samples]`

use std::error::Error;
use std::time::Instant;

use foreread_dataset::Catalog;
use foreread_tier::{Object, Version};
use foreread_types::SampleId;

/// Resident memory of this process, in bytes.
fn resident() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let samples: u64 = words.next().map_or(Ok(1_281_167), |word| word.parse())?;
    // Made by another process, so that this one's memory is that of opening alone.
    if let Some(path) = words.next() {
        let objects = (0..samples).map(|number| Object {
            path: format!("n{:08}/n{:08}_{number}.JPEG", number % 1000, number % 1000).into(),
            size: 60_000 + number * 7919 % 100_000,
            version: Some(Version::Modified(1_700_000_000_000_000_000 + number as i64)),
        });
        let start = Instant::now();
        let catalog = Catalog::from_objects("/data/imagenet/train", objects)?;
        let made = start.elapsed();
        catalog.save(path)?;
        println!("made in {made:.2?}, saved after {:.2?}", start.elapsed());
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("catalog.foreread");
    let program = std::env::current_exe()?;
    std::process::Command::new(program).arg(samples.to_string()).arg(&path).status()?;
    println!("{:.1} bytes of file a sample", std::fs::metadata(&path)?.len() as f64 / samples as f64);
    for _ in 0..5 {
        let (before, start) = (resident()?, Instant::now());
        let catalog = Catalog::open(&path)?;
        let sizes = catalog.sizes();
        let opened = start.elapsed();
        let grown = resident()?.saturating_sub(before);
        println!("opened in {opened:.2?}, {:.1} bytes resident a sample", grown as f64 / sizes.len() as f64);
        let start = Instant::now();
        for id in (0..samples).step_by(97) {
            catalog.entry(SampleId(id))?;
        }
        println!("an entry in {:.0?}", start.elapsed() / (samples / 97).max(1) as u32);
    }
    Ok(())
}
