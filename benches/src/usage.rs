//! What this process has used so far.

use std::ops::Sub;
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

/// Resident memory of this process now, in bytes: its own pages and the mapped files' that it has touched.
///
/// # Errors
/// If the kernel does not say.
pub fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib = line.trim().strip_suffix("kB").context("VmRSS is not in kB")?;
    Ok(kib.trim().parse::<u64>()? * 1024)
}
