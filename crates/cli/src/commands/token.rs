//! `foreread token`: prints a new secret for one job.

use std::io::Write;

use anyhow::{Context, Result};
use foreread::ranks::Token;

use crate::output;

pub fn run() -> Result<()> {
    let token = Token::random().context("the operating system has no random bytes for a token")?;
    let mut out = output::stdout();
    out.write_all(token.expose())?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}
