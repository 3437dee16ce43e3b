//! Resource usage of this process, and pages of a file in the page cache.

use std::fs::File;
use std::ops::Sub;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Time, CPU time of all threads and page faults since the process started, or a difference of two
/// such values.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Seconds of wall-clock time.
    pub seconds: f64,
    /// CPU seconds of all threads, in user mode and in the kernel.
    pub cpu: f64,
    /// CPU seconds in the kernel.
    pub system: f64,
    /// Minor page faults, which need no device access.
    pub faults: f64,
}

impl Usage {
    /// The usage so far. The wall-clock time is measured from `start`.
    pub fn since(start: Instant) -> Self {
        Self::of(libc::RUSAGE_SELF, start)
    }

    /// The usage of all child processes that have ended.
    pub fn of_children(start: Instant) -> Self {
        Self::of(libc::RUSAGE_CHILDREN, start)
    }

    fn of(whose: libc::c_int, start: Instant) -> Self {
        // SAFETY: all bits zero are a valid `rusage`, which contains only numbers.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a local `rusage` with exclusive access.
        unsafe { libc::getrusage(whose, &raw mut usage) };
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

/// Touches `bytes` bytes of memory and frees them. A virtual machine's host then has pages for the
/// next program, which would otherwise pay for them.
pub fn touch_memory(bytes: usize) {
    let mut memory = vec![0u8; bytes];
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    std::hint::black_box(&memory);
}

/// The number of a file's pages in the page cache, and the number of all its pages.
///
/// # Errors
/// If the system call fails, or the file is empty.
pub fn cached_pages(file: &File) -> Result<(u64, u64)> {
    let length = usize::try_from(file.metadata()?.len())?;
    let mut held = vec![0u8; length.div_ceil(4096)];
    // SAFETY: a new mapping of an open file, whose memory is never accessed. `mincore` writes one
    // byte per page, and `held` has that length. The mapping is removed here, and no reference to
    // it remains.
    let result = unsafe {
        let (none, shared) = (libc::PROT_NONE, libc::MAP_SHARED);
        let start = libc::mmap(std::ptr::null_mut(), length, none, shared, file.as_raw_fd(), 0);
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        let result = libc::mincore(start, length, held.as_mut_ptr());
        libc::munmap(start, length);
        result
    };
    if result != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok((held.iter().filter(|&&page| page & 1 == 1).count() as u64, held.len() as u64))
}

/// The peak resident memory of this process in bytes.
///
/// # Errors
/// If `/proc/self/status` does not have the value.
pub fn peak_memory() -> Result<u64> {
    status_field("VmHWM:")
}

/// The current resident memory of this process in bytes: its own pages and the touched pages of
/// mapped files.
///
/// # Errors
/// If `/proc/self/status` does not have the value.
pub fn resident_memory() -> Result<u64> {
    status_field("VmRSS:")
}

fn status_field(field: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let value = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = value.with_context(|| format!("no {field}"))?.trim().strip_suffix("kB");
    Ok(kib.with_context(|| format!("{field} is not in kB"))?.trim().parse::<u64>()? * 1024)
}
