//! Synthetic datasets: a directory of samples with the sizes of images, and objects for catalogs.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use bytes::Bytes;
use foreread_tier::{Object, Version};
use foreread_types::SplitMix64;

/// Samples of random lengths in twenty classes. Each is a slice of one shared noise buffer.
#[derive(Clone, Debug)]
pub struct SyntheticSamples {
    noise: Bytes,
    extents: Vec<Range<usize>>,
}

impl SyntheticSamples {
    /// `count` samples of `least..=most` bytes, which begin within the first `spread` bytes of the
    /// noise. A small spread stays in a processor's cache.
    pub fn new(count: usize, least: u64, most: u64, spread: usize) -> Self {
        let mut random = SplitMix64(1);
        let mut noise = Vec::new();
        while noise.len() < most as usize + spread {
            noise.extend(random.draw().to_le_bytes());
        }
        let extents = std::iter::repeat_with(|| {
            let length = least + random.draw() % (most - least + 1);
            let from = (random.draw() % spread as u64) as usize;
            from..from + length as usize
        });
        Self { noise: noise.into(), extents: extents.take(count).collect() }
    }

    /// The total bytes of all samples.
    pub fn bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.len() as u64).sum()
    }

    /// The names and bytes of all samples.
    pub fn iter(&self) -> impl Iterator<Item = (String, Bytes)> {
        let name = |number| format!("class{:02}/image{number:06}.jpg", number % 20);
        self.extents.iter().enumerate().map(move |(number, at)| (name(number), self.noise.slice(at.clone())))
    }

    /// Writes the samples as files below `root`. They stay in the page cache if it has room.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, root: &Path) -> Result<()> {
        for class in 0..20.min(self.extents.len()) {
            std::fs::create_dir_all(root.join(format!("class{class:02}")))?;
        }
        for (name, sample) in self.iter() {
            File::create(root.join(name))?.write_all(&sample)?;
        }
        // Otherwise the kernel's writeback would overlap the measurement.
        rustix::fs::syncfs(File::open(root)?)?;
        Ok(())
    }
}

/// Writes `count` files of `least..=most` bytes below `root`. Returns their total bytes.
///
/// # Errors
/// If a file cannot be written.
pub fn write_samples(root: &Path, count: usize, least: u64, most: u64) -> Result<u64> {
    let samples = SyntheticSamples::new(count, least, most, 4096);
    samples.write(root)?;
    Ok(samples.bytes())
}

/// Objects like those of ImageNet's training set, for catalogs whose samples are not read.
pub fn imagenet_objects(count: u64) -> impl Iterator<Item = Object> {
    (0..count).map(|number| Object {
        path: format!("n{:08}/n{:08}_{number}.JPEG", number % 1000, number % 1000).into(),
        size: 60_000 + number * 7919 % 100_000,
        version: Some(Version::Modified(1_700_000_000_000_000_000 + number as i64)),
    })
}
