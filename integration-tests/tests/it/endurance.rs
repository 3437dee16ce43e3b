//! Three epochs over a dataset much larger than memory and disk: no resource grows. `cargo xtask
//! soak` runs it with 24 GiB of samples through 1 GiB of memory and 4 GiB of disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::support::{content, disk, foreread, is_soak, memory, number, order, taken, times, watch};

const MIB: u64 = 1 << 20;

/// The constant of the promise on resident memory, with the disk tier's write-behind (32 MiB).
const CONSTANT: u64 = 128 * MIB;

/// The share of memory and look-ahead that the allocator may lose to fragmentation.
const HOLES: u64 = 16;

/// The sizes of the test.
struct Size {
    samples: u64,
    /// On average, in bytes.
    sample: u64,
    memory: u64,
    disk: u64,
    look_ahead: u64,
}

impl Size {
    /// 20 % to 180 % of the average.
    fn of(&self, id: u64) -> u64 {
        self.sample / 5 + (id * 7919) % (self.sample * 8 / 5)
    }

    fn total(&self) -> u64 {
        (0..self.samples).map(|id| self.of(id)).sum()
    }
}

/// Writes the dataset so that ids and names are in the same order.
fn write(directory: &Path, size: &Size) {
    for id in 0..size.samples {
        let path = path(directory, id);
        if id.is_multiple_of(1000) {
            fs::create_dir(path.parent().unwrap()).unwrap();
        }
        fs::write(path, content(id, size.of(id) as usize)).unwrap();
    }
}

fn path(directory: &Path, id: u64) -> PathBuf {
    directory.join(format!("{:04}/{id:08}", id / 1000))
}

/// The expected digest of an epoch, from regenerated content, independent of the files.
fn digest(size: &Size, epoch: u64) -> String {
    let mut digest = Sha256::new();
    for id in order(&["--samples", &size.samples.to_string(), "--epoch", &epoch.to_string()]) {
        digest.update(id.to_le_bytes());
        digest.update(content(id, size.of(id) as usize));
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The peaks of one epoch.
#[derive(Clone, Copy, Debug, Default)]
struct Peaks {
    /// Resident memory of all kinds, in bytes.
    resident: u64,
    /// Its part without pages of files.
    own: u64,
    descriptors: u64,
    disk: u64,
}

impl Peaks {
    fn see(&mut self, process: u32, directory: &Path) {
        // These files disappear when the process ends.
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).map_or(0, |all| all.count() as u64);
        self.descriptors = self.descriptors.max(descriptors);
        self.resident = self.resident.max(memory(process, "status", "VmRSS:").unwrap_or(0));
        self.own = self.own.max(memory(process, "smaps_rollup", "Pss_Anon:").unwrap_or(0));
        self.disk = self.disk.max(taken(directory));
    }
}

/// The epoch in the run's state file.
fn epoch(state: &Path) -> usize {
    let saved = fs::read_to_string(state).ok().and_then(|text| serde_json::from_str(&text).ok());
    saved.and_then(|saved: serde_json::Value| saved["epoch"].as_u64()).unwrap_or(0) as usize
}

/// Free bytes in the directory of temporary files.
fn free() -> u64 {
    let printed =
        Command::new("df").args(["--output=avail", "--block-size=1"]).arg(std::env::temp_dir()).output();
    let printed = String::from_utf8(printed.unwrap().stdout).unwrap();
    printed.lines().nth(1).unwrap().trim().parse().unwrap()
}

#[test]
// semantics: CACHE-8
fn resources_stay_flat_over_epochs_larger_than_the_caches() {
    let size = Size {
        samples: times(2500, 48 << 10),
        sample: times(105_000, MIB / 2),
        memory: times(16 * MIB, 1024 * MIB),
        disk: times(48 * MIB, 4096 * MIB),
        look_ahead: times(8 * MIB, 256 * MIB),
    };
    let total = size.total();
    let need = total + size.disk + total / 16;
    assert!(
        free() > need,
        "this needs {} MiB free in {}, and {} are: name a larger place with TMPDIR",
        need / MIB,
        std::env::temp_dir().display(),
        free() / MIB
    );
    let place = tempfile::tempdir().unwrap();
    let (data, cache, state) =
        (place.path().join("data"), place.path().join("cache"), place.path().join("state"));
    fs::create_dir(&data).unwrap();
    let began = Instant::now();
    write(&data, &size);
    println!("{} samples, {} MiB, written in {:.0?}", size.samples, total / MIB, began.elapsed());

    let mut command = foreread(["load", data.to_str().unwrap(), "--epochs=3", "--report=json", "--digest"]);
    command.arg(format!("--memory={}", size.memory)).arg(format!("--look-ahead={}", size.look_ahead));
    command.arg(disk(&cache, size.disk)).arg("--state").arg(&state);
    // The small run is slowed down, so that it is sampled often.
    if !is_soak() {
        command.arg("--origin-limit=150MB/s");
    }
    // Sampling takes time, also of the sampled process.
    let every = Duration::from_millis(times(10, 250));
    let began = Instant::now();
    let mut most = [Peaks::default(); 4];
    let (mut looked, mut printed) = (began, began);
    let finished = watch(&mut command, Duration::from_secs(times(300, 7200)), |process| {
        if looked.elapsed() < every {
            return;
        }
        looked = Instant::now();
        let epoch = epoch(&state).min(3);
        most[epoch].see(process, &cache);
        if printed.elapsed() > Duration::from_secs(30) {
            printed = Instant::now();
            println!("{:.0?}: epoch {epoch}, at most {:?}", began.elapsed(), most[epoch]);
        }
    });
    let took = began.elapsed();
    let peak = finished.peak;
    let report = finished.json();
    for (epoch, most) in most.iter().enumerate().take(3) {
        println!(
            "epoch {epoch}: resident {} MiB, own {} MiB, {} descriptors, {} MiB of disk",
            most.resident / MIB,
            most.own / MIB,
            most.descriptors,
            most.disk / MIB
        );
    }
    let bound = size.memory + size.look_ahead + (size.memory + size.look_ahead) / HOLES + CONSTANT;
    println!("peak {} MiB of {} MiB; the run took {took:.0?}", peak / MIB, bound / MIB);
    assert!(peak <= bound, "peak {} MiB of {} MiB", peak / MIB, bound / MIB);
    let [_, second, third, _] = most;
    assert!(second.own > 0 && third.own > 0, "an epoch was over before it was seen");
    // The allocator's share of buffers in flight varies by some percent.
    let noise = 16 * MIB + size.memory / 64;
    assert!(third.own <= second.own + noise, "memory grows: {second:?}, then {third:?}");
    // Files are opened and closed constantly. A leak would be thousands.
    assert!(third.descriptors <= second.descriptors + 16, "descriptors leak: {second:?}, then {third:?}");
    for most in most {
        assert!(most.disk <= size.disk, "{} bytes of {} on the disk", most.disk, size.disk);
    }

    let bound = total + 2 * (total - size.memory - size.disk);
    let read = number(&report, "/origin_bytes");
    println!("{} MiB read from the origin, the bound is {} MiB", read / MIB, bound / MIB);
    assert!(read as f64 <= 1.01 * bound as f64, "{read} of at most {bound}");
    assert!(read >= number(&report, "/floor_origin_bytes"));
    // In parallel, because a digest of 24 GiB takes minutes.
    std::thread::scope(|scope| {
        let size = &size;
        let digests: Vec<_> = (0..3).map(|epoch| (epoch, scope.spawn(move || digest(size, epoch)))).collect();
        for (epoch, digest) in digests {
            assert_eq!(report["epochs"][epoch as usize]["digest"], digest.join().unwrap(), "epoch {epoch}");
            println!("epoch {epoch}: the digest is right");
        }
    });
}
