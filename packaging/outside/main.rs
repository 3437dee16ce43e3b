//! Reads a directory as a program does that has foreread from a registry: `packaging/outside/run`.

use std::error::Error;
use std::path::Path;

use foreread::{Loader, Memory};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: outside DIRECTORY")?;
    let builder = Loader::builder(&directory).batch_size(16).epochs(2).seed(1);
    let loader = builder.memory(Memory::Bytes(1 << 20)).start()?;
    let mut samples = 0;
    for batch in loader.batches() {
        for sample in batch?.samples() {
            let path = sample.path()?;
            if sample.bytes() != std::fs::read(Path::new(&directory).join(&*path))? {
                return Err(format!("the bytes of {path} differ from the file's").into());
            }
            samples += 1;
        }
    }
    loader.close()?;
    println!("{samples} samples");
    Ok(())
}
