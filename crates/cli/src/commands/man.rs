//! `foreread man`: prints the manual page, or writes one page per command.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use clap_mangen::Man;

use crate::output;

pub fn run(directory: Option<&Path>, command: Command) -> Result<()> {
    let mut out = output::stdout();
    let Some(directory) = directory else {
        Man::new(command).render(&mut out)?;
        return Ok(out.flush()?);
    };
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    for page in pages(command) {
        let path = directory.join(page.get_filename());
        let mut text = Vec::new();
        page.render(&mut text)?;
        fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))?;
        writeln!(out, "{}", path.display())?;
    }
    Ok(out.flush()?)
}

/// The pages of a command and all commands below it.
fn pages(mut command: Command) -> Vec<Man> {
    // Commands of the tree get their full names and the options that all have.
    command.build();
    let mut pages = Vec::new();
    add_pages(command, &mut pages);
    pages
}

fn add_pages(command: Command, pages: &mut Vec<Man>) {
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        let name = inner.get_display_name().unwrap_or_else(|| inner.get_name()).to_owned();
        add_pages(inner.clone().name(name), pages);
    }
    pages.push(Man::new(command.disable_help_subcommand(true)));
}
