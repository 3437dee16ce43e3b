//! The settings of one invocation: arguments, then `FOREREAD_*`, then `foreread.toml`, then
//! defaults.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use foreread_settings::{COMMAND_KNOBS, Knobs};

use crate::output;

/// Gathers all settings. `arguments` are those of the command line.
pub fn gather(arguments: Vec<(&'static str, Option<String>)>) -> Result<Knobs> {
    let given = arguments.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let environment = |name: &str| std::env::var(name).ok();
    Ok(Knobs::gather(COMMAND_KNOBS, given, environment, Path::new("foreread.toml"))?)
}

/// Prints every setting with its source.
pub fn explain(knobs: &Knobs) -> Result<()> {
    let mut out = output::stdout();
    for (name, value, from) in knobs.iter() {
        writeln!(out, "{name:20} {:24} {from}", value.replace('\n', ","))?;
    }
    for name in knobs.unset() {
        writeln!(out, "{name:20} {:24} unset", "")?;
    }
    Ok(out.flush()?)
}

/// Whether the report is JSON.
pub fn is_json(knobs: &Knobs) -> Result<bool> {
    match knobs.get("report").map_or("text", |(value, _)| value) {
        "text" => Ok(false),
        "json" => Ok(true),
        _ => Err(knobs.refuse("report", "expected text or json").into()),
    }
}

/// Whether a setting that is `auto` or `off` is on.
pub fn is_on(knobs: &Knobs, name: &str) -> Result<bool> {
    match knobs.get(name).map_or("auto", |(value, _)| value) {
        "auto" => Ok(true),
        "off" => Ok(false),
        _ => Err(knobs.refuse(name, "expected auto or off").into()),
    }
}

/// A setting that is a list, with one entry per line.
pub fn list(knobs: &Knobs, name: &str) -> Vec<String> {
    knobs.get(name).map_or_else(Vec::new, |(value, _)| value.lines().map(str::to_owned).collect())
}
