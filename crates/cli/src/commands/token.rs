//! `foreread token`: prints a new secret for one job.

use std::io::Write;

use anyhow::{Context, Result};
use foreread::ranks::Token;
use serde_json::json;

use crate::{arguments, output, settings};

pub fn run(options: &arguments::Token) -> Result<()> {
    let Some(_) = settings::gather(&options.settings)? else { return Ok(()) };
    let token = Token::random().context("the operating system has no random bytes for a token")?;
    // Only an argument sets the form. With report = "json" in a file, `$(foreread token)` would
    // become another secret without notice.
    if options.settings.get("report") == Some("json") {
        return settings::print_json(&json!({"token": String::from_utf8_lossy(token.expose())}));
    }
    let mut out = output::stdout();
    out.write_all(token.expose())?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}
