//! A store for other processes: generated objects in the bucket `bench`, and the files of a
//! directory in the bucket `files`, until standard input ends.
//!
//! ```text
//! cargo run --release -p foreread-tier-testing --features http --example store -- \
//!     --objects 20000 --size 110000
//! ```
//!
//! It prints its endpoint, and its request counts at the end. `--port 0` (the default) takes any
//! free port.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use foreread_tier_testing::store::{Fault, HttpStore, Kind, NumberedObjects, When};

/// Serves generated objects over S3's protocol.
#[derive(Debug, Parser)]
struct Options {
    /// Number of objects
    #[arg(long, default_value_t = 20_000)]
    objects: u64,
    /// Bytes per object
    #[arg(long, default_value_t = 110_000)]
    size: u64,
    /// A directory whose files are the objects of the bucket `files`
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Latency of every answer, in milliseconds
    #[arg(long, default_value_t = 0.0)]
    latency_ms: f64,
    /// Requests per second above which it answers 503
    #[arg(long)]
    ceiling: Option<f64>,
    /// The fraction of reads that fail with 500
    #[arg(long, default_value_t = 0.0)]
    faults: f64,
    /// Admitted access keys. Without any, every client is admitted
    #[arg(long)]
    allow: Vec<String>,
    #[arg(long, default_value_t = 0)]
    port: u16,
    #[arg(long, default_value_t = 1)]
    threads: usize,
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> std::io::Result<()> {
    let options = Options::parse();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, options.port));
    let store = HttpStore::start_at(address, options.threads, options.seed);
    store.numbered("bench", NumberedObjects::new(options.objects, options.size));
    if let Some(directory) = &options.directory {
        store.bucket("files");
        put_files(&store, directory, directory)?;
    }
    store.set_latency(Duration::from_secs_f64(options.latency_ms / 1000.0));
    store.set_ceiling(options.ceiling);
    if options.faults > 0.0 {
        store.on(Kind::Get, When::Chance(options.faults), Fault::Internal);
    }
    options.allow.iter().for_each(|key| store.allow(key));
    println!("{}", store.endpoint());
    // The parent process ends it by closing its input.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    println!("{:?}", store.requests());
    Ok(())
}

/// Puts all files below `directory` into the store, under their paths below `root`.
fn put_files(store: &HttpStore, root: &Path, directory: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        match (path.is_dir(), path.strip_prefix(root).ok().and_then(Path::to_str)) {
            (true, _) => put_files(store, root, &path)?,
            (false, Some(key)) => store.put("files", key, std::fs::read(&path)?),
            (false, None) => eprintln!("{} is left out: its name is not UTF-8", path.display()),
        }
    }
    Ok(())
}
