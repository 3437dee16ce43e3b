//! The machine and the day of a run, for the record.

use std::process::Command;

use anyhow::{Context, Result};

/// Processors, memory, kernel and load of this machine.
pub fn description() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (cpu, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    let model = field(&cpu, "model name").unwrap_or_else(|| "unknown model".to_owned());
    let kilobytes = field(&memory, "MemTotal").and_then(|value| value.split(' ').next()?.parse::<f64>().ok());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let (kernel, load) = (read("/proc/sys/kernel/osrelease"), read("/proc/loadavg"));
    format!(
        "{cores} cores ({model}), {:.0} GB of memory, Linux {}, load {} at the start",
        kilobytes.unwrap_or_default() * 1024.0 / 1e9,
        kernel.trim(),
        load.split(' ').next().unwrap_or_default()
    )
}

/// Today in UTC, as `22 November 2026`.
pub fn today() -> Result<String> {
    let mut date = Command::new("date");
    let output = date.env("LC_ALL", "C").args(["-u", "+%-d %B %Y"]).output().context("date")?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
