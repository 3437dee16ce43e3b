//! The settings of one invocation: arguments, then `FOREREAD_*`, then `foreread.toml`, then
//! defaults.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use foreread_settings::{KnobKind, Knobs, find_knob};
use serde::Serialize;

use crate::arguments::SettingArguments;
use crate::output;

/// Gathers all settings. `None` after `--explain`, which prints them.
pub fn gather<const READER: u16>(settings: &SettingArguments<READER>) -> Result<Option<Knobs>> {
    foreread_settings::warn_of_unknown_variables();
    let environment = |name: &str| std::env::var(name).ok();
    let knobs = Knobs::gather(settings.given.clone(), environment, Path::new("foreread.toml"))?;
    if settings.explain {
        explain(&knobs, SettingArguments::<READER>::names())?;
        return Ok(None);
    }
    Ok(Some(knobs))
}

/// Prints the settings of a command with their sources.
fn explain(knobs: &Knobs, names: impl Iterator<Item = &'static str>) -> Result<()> {
    let mut out = output::stdout();
    for name in names {
        match knobs.get(name) {
            Some((value, from)) => writeln!(out, "{name:20} {:24} {from}", value.replace('\n', ","))?,
            None => writeln!(out, "{name:20} {:24} unset", "")?,
        }
    }
    Ok(out.flush()?)
}

/// Whether the report is JSON.
pub fn is_json(knobs: &Knobs) -> Result<bool> {
    match knobs.get("report") {
        Some(("json", _)) => Ok(true),
        Some(("csv", _)) => Err(knobs.refuse("report", "csv is for simulate; expected text or json").into()),
        _ => Ok(false),
    }
}

/// Prints a report as one line of JSON.
pub fn print_json(report: &impl Serialize) -> Result<()> {
    let mut out = output::stdout();
    serde_json::to_writer(&mut out, report)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// Whether a setting that is `auto` or `off` is on.
pub fn is_on(knobs: &Knobs, name: &str) -> bool {
    knobs.get(name).is_none_or(|(value, _)| value.trim() == "auto")
}

/// A setting that is a list, with one entry per line.
pub fn list(knobs: &Knobs, name: &str) -> Vec<String> {
    debug_assert!(find_knob(name).is_some_and(|knob| matches!(knob.kind, KnobKind::List(_))), "{name}");
    knobs.get(name).map_or_else(Vec::new, |(value, _)| value.lines().map(str::to_owned).collect())
}
