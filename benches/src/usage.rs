//! What this process has used so far.

use std::fs::File;
use std::ops::Sub;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Time, CPU time of all threads and page faults since the process began; or the difference of two of those.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Seconds of the clock.
    pub seconds: f64,
    /// Seconds of CPU, in the program and in the kernel on its behalf, all threads.
    pub cpu: f64,
    /// The kernel's part of them.
    pub system: f64,
    /// Page faults that needed no device.
    pub faults: f64,
}

impl Usage {
    /// Now; the clock counts from `start`.
    pub fn since(start: Instant) -> Self {
        // SAFETY: all bits zero are a valid `rusage`, which is plain numbers.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a `rusage` that is ours to write.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        let seconds = |time: libc::timeval| {
            (Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64))
                .as_secs_f64()
        };
        let system = seconds(usage.ru_stime);
        Self {
            seconds: start.elapsed().as_secs_f64(),
            cpu: seconds(usage.ru_utime) + system,
            system,
            faults: usage.ru_minflt as f64,
        }
    }
}

impl Sub for Usage {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            seconds: self.seconds - before.seconds,
            cpu: self.cpu - before.cpu,
            system: self.system - before.system,
            faults: self.faults - before.faults,
        }
    }
}

/// How many of a file's pages the page cache holds, and of how many.
///
/// # Errors
/// If the kernel does not say, or the file is empty.
pub fn cached(file: &File) -> Result<(u64, u64)> {
    let length = usize::try_from(file.metadata()?.len())?;
    let mut held = vec![0u8; length.div_ceil(4096)];
    // SAFETY: a new mapping of an open file, through which nobody touches it; `mincore` writes one byte for each of its
    // pages, which is what `held` has; it is unmapped here, and nothing refers to it afterwards.
    let asked = unsafe {
        let (none, shared) = (libc::PROT_NONE, libc::MAP_SHARED);
        let start = libc::mmap(std::ptr::null_mut(), length, none, shared, file.as_raw_fd(), 0);
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        let asked = libc::mincore(start, length, held.as_mut_ptr());
        libc::munmap(start, length);
        asked
    };
    if asked != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok((held.iter().filter(|&&page| page & 1 == 1).count() as u64, held.len() as u64))
}

/// The most resident memory that this process has had so far, in bytes.
///
/// # Errors
/// If the kernel does not say.
pub fn peak() -> Result<u64> {
    status("VmHWM:")
}

/// Resident memory of this process now, in bytes: its own pages and the mapped files' that it has touched.
///
/// # Errors
/// If the kernel does not say.
pub fn resident() -> Result<u64> {
    status("VmRSS:")
}

fn status(field: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let said = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = said.with_context(|| format!("no {field}"))?.trim().strip_suffix("kB");
    Ok(kib.with_context(|| format!("{field} is not in kB"))?.trim().parse::<u64>()? * 1024)
}
