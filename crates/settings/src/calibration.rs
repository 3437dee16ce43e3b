//! The file that `foreread calibrate` writes, and people may edit: TOML.

use std::fmt;
use std::path::Path;

use foreread::calibration::{Calibration, Point};
use foreread::{Error, ErrorKind, Result};

/// The default name of the file, in the working directory.
pub const FILE_NAME: &str = "foreread-calibration.toml";

fn usage(message: String) -> Error {
    Error::new(ErrorKind::Usage, message)
}

/// Reads and checks a calibration.
///
/// # Errors
/// If the file cannot be read, is not a calibration, or has a figure out of range. The message
/// names file and field.
pub fn read(path: &Path) -> Result<Calibration> {
    let wrong = |why: String| usage(format!("{} is not a calibration: {why}", path.display()));
    let text = foreread::read_text(path)
        .map_err(|error| usage(format!("{} cannot be read: {error}", path.display())))?;
    let calibration: Calibration =
        toml::from_str(&text).map_err(|error| wrong(error.message().to_owned()))?;
    check(&calibration).map_err(wrong)?;
    Ok(calibration)
}

/// Checks that [`write()`] would replace no file but a calibration, of any version.
///
/// # Errors
/// If another file is there. The message names it.
pub fn check_replaceable(path: &Path) -> Result<()> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    let table = foreread::read_text(path).ok().and_then(|text| text.parse::<toml::Table>().ok());
    if table.is_some_and(|table| table.contains_key("version") && table.contains_key("made")) {
        return Ok(());
    }
    Err(usage(format!("{} exists and is not a calibration; name another file", path.display())))
}

/// Writes the file atomically. Only a calibration is replaced.
///
/// # Errors
/// If it cannot be written, or another file is there.
pub fn write(calibration: &Calibration, path: &Path) -> Result<()> {
    check_replaceable(path)?;
    let failed = |error: &dyn fmt::Display| {
        Error::new(ErrorKind::System, format!("{} cannot be written: {error}", path.display()))
    };
    let text = toml::to_string(calibration).map_err(|error| failed(&error))?;
    foreread_dataset::replace_file(path, text.as_bytes()).map_err(|error| failed(&error))
}

fn check(calibration: &Calibration) -> Result<(), String> {
    let (version, known) = (calibration.version, Calibration::VERSION);
    if version != known {
        return Err(format!("version is {version}, and this program reads version {known}"));
    }
    if let Some(origin) = &calibration.origin {
        check_points("origin.read", &origin.read)?;
        positive("origin.sample_bytes", origin.sample_bytes)?;
        positive("origin.stream_bytes_per_second", origin.stream_bytes_per_second)?;
        if let Some(large) = &origin.large {
            check_points("origin.large.read", &large.read)?;
            positive("origin.large.bytes", large.bytes)?;
        }
        for (at, server) in origin.servers.iter().flat_map(|servers| &servers.server).enumerate() {
            check_points(&format!("origin.servers.server[{at}].read"), &server.read)?;
            positive(&format!("origin.servers.server[{at}].sample_bytes"), server.sample_bytes)?;
        }
        // In this form the check refuses NaN, too.
        if !(0.0..=3600.0).contains(&origin.latency_seconds) {
            return Err("origin.latency_seconds must be 0 to 3600".to_owned());
        }
    }
    if let Some(memory) = &calibration.memory {
        positive("memory.bytes_per_second", memory.bytes_per_second)?;
    }
    for (at, disk) in calibration.disk.iter().enumerate() {
        check_points(&format!("disk[{at}].read"), &disk.read)?;
        positive(&format!("disk[{at}].write_bytes_per_second"), disk.write_bytes_per_second)?;
    }
    Ok(())
}

fn positive(field: &str, value: u64) -> Result<(), String> {
    if value == 0 { Err(format!("{field} must be more than 0")) } else { Ok(()) }
}

fn check_points(field: &str, points: &[Point]) -> Result<(), String> {
    if points.is_empty() {
        return Err(format!("{field} is empty"));
    }
    for (at, point) in points.iter().enumerate() {
        positive(&format!("{field}[{at}].parallelism"), point.parallelism.into())?;
        positive(&format!("{field}[{at}].bytes_per_second"), point.bytes_per_second)?;
        // In this form the check refuses NaN, too.
        if !(0.0..=1.0).contains(&point.spread) {
            return Err(format!("{field}[{at}].spread must be 0 to 1"));
        }
        if at > 0 && points[at - 1].parallelism >= point.parallelism {
            return Err(format!("{field}[{at}].parallelism must be more than that of the point before it"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use foreread::calibration::{DiskSpeed, LargeReads, MemorySpeed, OriginSpeed, ServerSpeed, ServerSpeeds};

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
                servers: Some(ServerSpeeds {
                    made: 1_790_000_000,
                    server: vec![ServerSpeed {
                        name: "OST 3".to_owned(),
                        sample_bytes: 110_000,
                        read: vec![point(1, 20_000_000), point(8, 120_000_000)],
                    }],
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
    fn calibration_is_read_as_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.toml");
        write(&example(), &path).unwrap();
        assert_eq!(read(&path).unwrap(), example());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "only the file itself");
    }

    #[test]
    // semantics: TIME-4
    fn figures_out_of_range_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.toml");
        let refused = |change: &dyn Fn(&mut Calibration)| {
            let mut changed = example();
            change(&mut changed);
            write(&changed, &path).unwrap();
            read(&path).unwrap_err().to_string()
        };
        let origin = |change: fn(&mut OriginSpeed)| {
            refused(&|calibration| calibration.origin.iter_mut().for_each(change))
        };
        assert!(refused(&|c| c.version = 2).ends_with("version is 2, and this program reads version 1"));
        assert!(origin(|o| o.read.clear()).ends_with("origin.read is empty"));
        assert!(origin(|o| o.read.reverse()).contains("origin.read[1].parallelism"));
        assert!(origin(|o| o.read[1].bytes_per_second = 0).contains("origin.read[1].bytes_per_second"));
        assert!(origin(|o| o.read[0].spread = f64::NAN).contains("origin.read[0].spread"));
        assert!(
            origin(|o| o.large.iter_mut().for_each(|l| l.read.clear()))
                .ends_with("origin.large.read is empty")
        );
        assert!(origin(|o| o.large.iter_mut().for_each(|l| l.bytes = 0)).contains("origin.large.bytes"));
        let server = |change: fn(&mut ServerSpeed)| {
            refused(&|calibration| {
                let origin = calibration.origin.iter_mut();
                origin.flat_map(|o| &mut o.servers).flat_map(|s| &mut s.server).for_each(change);
            })
        };
        assert!(server(|s| s.read.clear()).ends_with("origin.servers.server[0].read is empty"));
        assert!(server(|s| s.sample_bytes = 0).contains("origin.servers.server[0].sample_bytes"));
        assert!(origin(|o| o.latency_seconds = f64::NAN).contains("origin.latency_seconds"));
        assert!(origin(|o| o.latency_seconds = -1.0).contains("origin.latency_seconds"));
        assert!(
            refused(&|c| c.disk[0].write_bytes_per_second = 0).contains("disk[0].write_bytes_per_second")
        );
        std::fs::write(&path, "version = 1\nmade = 0\nspeed = 3").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("speed"));
        assert!(read(directory.path()).is_err());
    }
}
