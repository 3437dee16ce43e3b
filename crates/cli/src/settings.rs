//! The settings of one invocation: arguments, then `FOREREAD_*`, then `foreread.toml`, then defaults.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use foreread::Format;
use foreread_settings::{COMMAND_KNOBS, Knobs};

use crate::output;

/// Gathers all settings; `arguments` are those given on the command line.
pub fn gather(arguments: Vec<(&'static str, Option<String>)>) -> Result<Knobs> {
    let given = arguments.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let environment = |name: &str| std::env::var(name).ok();
    Ok(Knobs::gather(COMMAND_KNOBS, given, environment, Path::new("foreread.toml"))?)
}

/// Prints every setting with the place that it came from.
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

/// Whether the report is to be JSON.
pub fn is_json(knobs: &Knobs) -> Result<bool> {
    match knobs.get("report").map_or("text", |(value, _)| value) {
        "text" => Ok(false),
        "json" => Ok(true),
        _ => Err(knobs.refuse("report", "it is text or json").into()),
    }
}

/// Whether a setting that is `auto` or `off` is on.
pub fn is_on(knobs: &Knobs, name: &str) -> Result<bool> {
    match knobs.get(name).map_or("auto", |(value, _)| value) {
        "auto" => Ok(true),
        "off" => Ok(false),
        _ => Err(knobs.refuse(name, "it is auto or off").into()),
    }
}

/// How samples lie in objects; `None` where names are to tell.
pub fn format(knobs: &Knobs) -> Result<Option<Format>> {
    match knobs.get("format") {
        None | Some(("auto", _)) => Ok(None),
        Some((name, _)) => match Format::from_name(name) {
            Some(format) => Ok(Some(format)),
            None => Err(knobs.refuse("format", "it is auto, files, tar, tfrecord or zip").into()),
        },
    }
}

/// A knob that holds a list, one entry a line.
pub fn list(knobs: &Knobs, name: &str) -> Vec<String> {
    knobs.get(name).map_or_else(Vec::new, |(value, _)| value.lines().map(str::to_owned).collect())
}
