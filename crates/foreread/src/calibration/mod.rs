//! What the tiers of a machine can do, measured: a value, and the file that it is kept in.
//!
//! Plans place samples rightly without it, because only ratios matter there, but they cannot say how long an epoch will
//! take. `foreread calibrate` measures ([`calibrate`]) and writes a file; `plan`, `load` and `simulate` read it where
//! they are told to. Every figure says how sure it is: how far the parts of its measurement were apart.
//!
//! The file is TOML, so that people can read it, put their own knowledge in, and keep it beside their configuration.
//! The price of measuring before a run is that a store may be busier later; the file says when it was made.

mod disk;
mod measure;
mod memory;
mod probe;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use self::measure::{CalibrateOptions, Progress, Stage, calibrate};
use crate::error::{Error, ErrorKind, Result};

/// The form of the file.
const VERSION: u32 = 1;

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The form of the file: 1.
    pub version: u32,
    /// When, in seconds since 1970.
    pub made: u64,
    /// The origin, if one was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<OriginSpeed>,
    /// Memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemorySpeed>,
    /// Directories of the disk tier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disk: Vec<DiskSpeed>,
}

/// How fast an origin is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OriginSpeed {
    /// Which origin: its URL or path.
    pub url: String,
    /// The mean length of the samples that were read, in bytes.
    pub sample_bytes: u64,
    /// Seconds that one read alone takes beside the time of its bytes.
    pub latency_seconds: f64,
    /// Bytes a second of one read once it flows, as far as can be told from outside: the best that all together got.
    pub stream_bytes_per_second: u64,
    /// Throughput over the number of reads under way, the fewest first.
    pub read: Vec<Point>,
    /// How fast it is read by large reads; where the dataset is in shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub large: Option<LargeReads>,
}

/// How fast an origin is read by reads of many samples at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LargeReads {
    /// The length of each, in bytes.
    pub bytes: u64,
    /// Throughput over the number of reads under way, the fewest first.
    pub read: Vec<Point>,
}

/// Throughput with a number of reads under way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Reads under way at once.
    pub parallelism: u32,
    /// Bytes a second of all of them together.
    pub bytes_per_second: u64,
    /// Half of what lay between the slowest and the quickest part of the measurement, as a share of the figure: 0.05 is
    /// "give or take 5 %". 1 where it was too short to tell.
    pub spread: f64,
    /// Samples that were read for it.
    pub samples: u64,
}

/// How fast memory is copied.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemorySpeed {
    /// Bytes a second that one thread copies.
    pub bytes_per_second: u64,
    /// As in [`Point::spread`].
    pub spread: f64,
}

/// How fast a disk tier in a directory is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSpeed {
    /// The directory.
    pub directory: String,
    /// Bytes a second that are written behind the first use.
    pub write_bytes_per_second: u64,
    /// Throughput over the number of reads under way, the fewest first; every sample checked, past the page cache.
    pub read: Vec<Point>,
}

impl Calibration {
    /// Reads what [`write`](Self::write) wrote, or a person.
    ///
    /// # Errors
    /// If the file cannot be read or is none, or a figure makes no sense: the message names the file and the field.
    pub fn read(path: &Path) -> Result<Self> {
        let wrong = |why: String| Error::usage(format!("{} is no calibration: {why}", path.display()));
        let text = crate::text::read(path)
            .map_err(|error| Error::usage(format!("{} cannot be read: {error}", path.display())))?;
        let read: Self = toml::from_str(&text).map_err(|error| wrong(error.message().to_owned()))?;
        read.check().map_err(wrong)?;
        Ok(read)
    }

    /// Finds out whether [`write`](Self::write) would replace what is no calibration. One of another version is one.
    ///
    /// # Errors
    /// If so: the message names the file.
    pub fn check_replaceable(path: &Path) -> Result<()> {
        if std::fs::symlink_metadata(path).is_err() {
            return Ok(()); // nothing is there
        }
        let table = crate::text::read(path).ok().and_then(|text| text.parse::<toml::Table>().ok());
        if table.is_some_and(|table| table.contains_key("version") && table.contains_key("made")) {
            return Ok(());
        }
        let why = format!("{} is there and is no calibration; name another file", path.display());
        Err(Error::usage(why))
    }

    /// Writes the file, whole or not at all. Only a calibration is replaced.
    ///
    /// # Errors
    /// If it cannot be written, or another file is there.
    pub fn write(&self, path: &Path) -> Result<()> {
        Self::check_replaceable(path)?;
        let failed = |error: &dyn std::fmt::Display| {
            Error::new(ErrorKind::System, format!("{} cannot be written: {error}", path.display()))
        };
        let text = toml::to_string(self).map_err(|error| failed(&error))?;
        foreread_dataset::replace_file(path, text.as_bytes()).map_err(|error| failed(&error))
    }

    /// The origin's figures, if they are of `url`: of the same place, or of one that holds it or lies in it.
    pub fn of_origin(&self, url: &str) -> Option<&OriginSpeed> {
        let origin = self.origin.as_ref()?;
        let (here, there) = (plain(url), plain(&origin.url));
        let within = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        (within(here, there) || within(there, here)).then_some(origin)
    }

    /// The figures of a directory of the disk tier.
    pub fn of_disk(&self, directory: &Path) -> Option<&DiskSpeed> {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.disk.iter().find(|disk| absolute(Path::new(&disk.directory)) == absolute(directory))
    }

    fn check(&self) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!("version is {}, and this program reads version {VERSION}", self.version));
        }
        if let Some(origin) = &self.origin {
            check_points("origin.read", &origin.read)?;
            positive("origin.sample_bytes", origin.sample_bytes)?;
            positive("origin.stream_bytes_per_second", origin.stream_bytes_per_second)?;
            if let Some(large) = &origin.large {
                check_points("origin.large.read", &large.read)?;
                positive("origin.large.bytes", large.bytes)?;
            }
            // Written so that what is no number fails too.
            if !(0.0..=3600.0).contains(&origin.latency_seconds) {
                return Err("origin.latency_seconds is 0 to 3600".to_owned());
            }
        }
        if let Some(memory) = &self.memory {
            positive("memory.bytes_per_second", memory.bytes_per_second)?;
        }
        for (at, disk) in self.disk.iter().enumerate() {
            check_points(&format!("disk[{at}].read"), &disk.read)?;
            positive(&format!("disk[{at}].write_bytes_per_second"), disk.write_bytes_per_second)?;
        }
        Ok(())
    }
}

impl OriginSpeed {
    /// The number of reads under way from which more gain less than a twentieth, and what they give together.
    pub fn best(&self) -> Option<Point> {
        best(&self.read)
    }
}

impl LargeReads {
    /// As [`OriginSpeed::best`].
    pub fn best(&self) -> Option<Point> {
        best(&self.read)
    }
}

impl DiskSpeed {
    /// As [`OriginSpeed::best`].
    pub fn best(&self) -> Option<Point> {
        best(&self.read)
    }
}

fn best(points: &[Point]) -> Option<Point> {
    let most = points.iter().map(|point| point.bytes_per_second).max()?;
    points.iter().copied().find(|point| point.bytes_per_second as f64 >= 0.95 * most as f64)
}

/// A path without what says that it is one, and without a last stroke.
fn plain(url: &str) -> &str {
    url.strip_prefix("file://").unwrap_or(url).trim_end_matches('/')
}

fn positive(field: &str, value: u64) -> Result<(), String> {
    if value == 0 { Err(format!("{field} is more than 0")) } else { Ok(()) }
}

fn check_points(field: &str, points: &[Point]) -> Result<(), String> {
    if points.is_empty() {
        return Err(format!("{field} has no point"));
    }
    for (at, point) in points.iter().enumerate() {
        positive(&format!("{field}[{at}].parallelism"), point.parallelism.into())?;
        positive(&format!("{field}[{at}].bytes_per_second"), point.bytes_per_second)?;
        // Written so that what is no number fails too.
        if !(0.0..=1.0).contains(&point.spread) {
            return Err(format!("{field}[{at}].spread is 0 to 1"));
        }
        if at > 0 && points[at - 1].parallelism >= point.parallelism {
            return Err(format!("{field}[{at}].parallelism is more than that of the point before it"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(parallelism: u32, bytes_per_second: u64) -> Point {
        Point { parallelism, bytes_per_second, spread: 0.01, samples: 100 }
    }

    fn example() -> Calibration {
        Calibration {
            version: VERSION,
            made: 1_790_000_000,
            origin: Some(OriginSpeed {
                url: "/data/train".to_owned(),
                sample_bytes: 110_000,
                latency_seconds: 0.004,
                stream_bytes_per_second: 50_000_000,
                read: vec![point(1, 20_000_000), point(16, 300_000_000), point(64, 310_000_000)],
                large: Some(LargeReads {
                    bytes: 8 << 20,
                    read: vec![point(1, 200_000_000), point(8, 600_000_000)],
                }),
            }),
            memory: Some(MemorySpeed { bytes_per_second: 10_000_000_000, spread: 0.1 }),
            disk: vec![DiskSpeed {
                directory: "/local/scratch".to_owned(),
                write_bytes_per_second: 900_000_000,
                read: vec![point(16, 1_500_000_000)],
            }],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.toml");
        example().write(&path).unwrap();
        assert_eq!(Calibration::read(&path).unwrap(), example());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "only the file itself");
    }

    #[test]
    fn the_best_is_the_least_that_gives_nearly_all() {
        assert_eq!(example().origin.unwrap().best().unwrap().parallelism, 16);
        assert_eq!(best(&[]), None);
    }

    #[test]
    fn an_origins_figures_are_its_own() {
        let example = example();
        assert!(example.of_origin("file:///data/train/").is_some());
        assert!(example.of_origin("/data/train/part").is_some());
        assert!(example.of_origin("/data").is_some());
        assert!(example.of_origin("/data/training").is_none());
        assert!(example.of_origin("s3://bucket/data/train").is_none());
        assert!(example.of_disk(Path::new("/local/scratch/")).is_some());
        assert!(example.of_disk(Path::new("/local")).is_none());
    }

    #[test]
    // semantics: TIME-4
    fn what_makes_no_sense_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.toml");
        let refused = |change: &dyn Fn(&mut Calibration)| {
            let mut changed = example();
            change(&mut changed);
            changed.write(&path).unwrap();
            Calibration::read(&path).unwrap_err().to_string()
        };
        let origin = |change: fn(&mut OriginSpeed)| {
            refused(&|calibration| calibration.origin.iter_mut().for_each(change))
        };
        assert!(refused(&|c| c.version = 2).ends_with("version is 2, and this program reads version 1"));
        assert!(origin(|o| o.read.clear()).ends_with("origin.read has no point"));
        assert!(origin(|o| o.read.reverse()).contains("origin.read[1].parallelism"));
        assert!(origin(|o| o.read[1].bytes_per_second = 0).contains("origin.read[1].bytes_per_second"));
        assert!(origin(|o| o.read[0].spread = f64::NAN).contains("origin.read[0].spread"));
        assert!(
            origin(|o| o.large.iter_mut().for_each(|l| l.read.clear()))
                .ends_with("origin.large.read has no point")
        );
        assert!(origin(|o| o.large.iter_mut().for_each(|l| l.bytes = 0)).contains("origin.large.bytes"));
        assert!(origin(|o| o.latency_seconds = f64::NAN).contains("origin.latency_seconds"));
        assert!(origin(|o| o.latency_seconds = -1.0).contains("origin.latency_seconds"));
        assert!(
            refused(&|c| c.disk[0].write_bytes_per_second = 0).contains("disk[0].write_bytes_per_second")
        );
        std::fs::write(&path, "version = 1\nmade = 0\nspeed = 3").unwrap();
        assert!(Calibration::read(&path).unwrap_err().to_string().contains("speed"));
        assert!(Calibration::read(directory.path()).is_err());
    }
}
