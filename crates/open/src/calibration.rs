//! Measured speeds of storage, memory and disks.
//!
//! Plans place samples well without them, because only ratios matter there. They cannot predict
//! times without them. The crate `foreread-estimate` measures, and `foreread-settings` reads and
//! writes the file. Every figure has its uncertainty. The price of measuring before a run: storage
//! may be busier during the run.
//!
//! ```
//! # extern crate foreread_open as foreread;
//! use foreread::calibration::{Calibration, OriginSpeed, Point};
//!
//! let point = |parallelism, bytes_per_second| {
//!     Point { parallelism, bytes_per_second, spread: 0.05, samples: 100 }
//! };
//! let origin = OriginSpeed {
//!     url: "s3://bucket/train".to_owned(),
//!     sample_bytes: 110_000,
//!     latency_seconds: 0.04,
//!     stream_bytes_per_second: 80_000_000,
//!     read: vec![point(1, 2_500_000), point(32, 78_000_000), point(64, 80_000_000)],
//!     large: None,
//!     servers: None,
//! };
//! // `Loader::builder(..).calibration(calibration)` uses it.
//! assert_eq!(origin.best().map(|best| best.parallelism), Some(32));
//! let calibration =
//!     Calibration {
//!         version: Calibration::VERSION, made: 0, origin: Some(origin), memory: None, disk: Vec::new()
//!     };
//! ```

use std::path::Path;

use serde::{Deserialize, Serialize};

/// The measured figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The version of the file format: [`Calibration::VERSION`].
    pub version: u32,
    /// The time of the measurement, in seconds since 1970.
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

/// The read speed of an origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OriginSpeed {
    /// The URL or path of the origin.
    pub url: String,
    /// The mean length of the samples that were read, in bytes.
    pub sample_bytes: u64,
    /// The latency of a single read without the time for its bytes, in seconds.
    pub latency_seconds: f64,
    /// Bytes per second of one read after its first byte. It cannot be measured directly, so this
    /// is the highest total throughput.
    pub stream_bytes_per_second: u64,
    /// Throughput by number of parallel reads, in ascending order.
    pub read: Vec<Point>,
    /// The speed of large reads, if the dataset is in shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub large: Option<LargeReads>,
    /// The speeds of the storage servers, if the dataset's catalog names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<ServerSpeeds>,
}

/// The read speeds of the storage servers of an origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSpeeds {
    /// The time of the measurement, in seconds since 1970. Plans ignore figures that are a day old,
    /// because the load of servers changes.
    pub made: u64,
    /// The measured servers.
    #[serde(default)]
    pub server: Vec<ServerSpeed>,
}

/// The read speed of one storage server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSpeed {
    /// The server, as in reports: `OST 3`, `MDT`.
    pub name: String,
    /// The mean length of its samples that were read, in bytes.
    pub sample_bytes: u64,
    /// Throughput by number of parallel reads, in ascending order. A server that has not answered
    /// within the time has one point of 0 samples: at most this throughput.
    pub read: Vec<Point>,
}

/// The speed of reads of many samples at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LargeReads {
    /// The length of each read, in bytes.
    pub bytes: u64,
    /// Throughput by number of parallel reads, in ascending order.
    pub read: Vec<Point>,
}

/// Throughput with a number of parallel reads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// The number of parallel reads.
    pub parallelism: u32,
    /// The total bytes per second.
    pub bytes_per_second: u64,
    /// Half of the difference between the slowest and the fastest part of the measurement, relative
    /// to the figure: 0.05 means plus or minus 5 %. 1 if the measurement was too short.
    pub spread: f64,
    /// The number of samples read.
    pub samples: u64,
}

/// The copy speed of memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemorySpeed {
    /// Bytes per second of one thread.
    pub bytes_per_second: u64,
    /// As in [`Point::spread`].
    pub spread: f64,
}

/// The speed of a disk tier in a directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSpeed {
    /// The directory.
    pub directory: String,
    /// Bytes per second of writes after the first use.
    pub write_bytes_per_second: u64,
    /// Throughput by number of parallel reads, in ascending order. Each read bypasses the page
    /// cache and checks its sample.
    pub read: Vec<Point>,
}

impl Calibration {
    /// The version of the file format.
    pub const VERSION: u32 = 1;

    /// The origin's figures, if they apply to `url`: the same location, or a location that contains
    /// it or is in it.
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
}

impl OriginSpeed {
    /// The fewest parallel reads with at least 95 % of the highest throughput, and their
    /// throughput.
    pub fn best(&self) -> Option<Point> {
        best(&self.read)
    }
}

impl ServerSpeed {
    /// As [`OriginSpeed::best`].
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

/// A path without its scheme and without a trailing slash.
fn plain(url: &str) -> &str {
    url.strip_prefix("file://").unwrap_or(url).trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(parallelism: u32, bytes_per_second: u64) -> Point {
        Point { parallelism, bytes_per_second, spread: 0.01, samples: 100 }
    }

    fn example() -> Calibration {
        Calibration {
            version: Calibration::VERSION,
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
                servers: None,
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
    fn best_point_is_the_least_near_the_maximum() {
        assert_eq!(example().origin.unwrap().best().unwrap().parallelism, 16);
        assert_eq!(best(&[]), None);
    }

    #[test]
    fn origin_figures_are_per_origin() {
        let example = example();
        assert!(example.of_origin("file:///data/train/").is_some());
        assert!(example.of_origin("/data/train/part").is_some());
        assert!(example.of_origin("/data").is_some());
        assert!(example.of_origin("/data/training").is_none());
        assert!(example.of_origin("s3://bucket/data/train").is_none());
        assert!(example.of_disk(Path::new("/local/scratch/")).is_some());
        assert!(example.of_disk(Path::new("/local")).is_none());
    }
}
