//! Draws pictures of the documents, for `docs/img/make`: `pictures DIRECTORY`.

mod data_flow;
mod losses;
mod placement;

use std::error::Error;
use std::path::PathBuf;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let directory = PathBuf::from(std::env::args_os().nth(1).ok_or("expected the directory of pictures")?);
    std::fs::write(directory.join("data-flow.svg"), data_flow::svg()?)?;
    std::fs::write(directory.join("placement.svg"), placement::svg()?)?;
    let losses = std::fs::read_to_string(directory.join("losses.csv"))?;
    std::fs::write(directory.join("losses.svg"), losses::svg(&losses)?)?;
    Ok(())
}
