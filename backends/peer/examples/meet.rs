//! Ranks of a launcher meet and print which ranks share a node:
//!
//! ```text
//! cargo build -p foreread-peer --example meet
//! mpirun -n 4 target/debug/examples/meet
//! ```

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_peer::meet::{Launched, LauncherEnv, RendezvousSettings, RendezvousSteps, RunEnd, given_token};
use foreread_tier::{HeapBuffers, OpenContext};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let variable = |name: &str| std::env::var(name).ok();
    let surroundings = LauncherEnv::of_this_process(&variable);
    let Some(launched) = Launched::by(&surroundings)? else {
        println!("no launcher started this process");
        return Ok(());
    };
    let (rank, launcher, place) = (launched.rank, launched.launcher, launched.meet()?.to_string());
    let settings = RendezvousSettings {
        token: given_token(&surroundings)?,
        deadline: Duration::from_secs(20),
        progress: Box::new(|waiting| eprintln!("{waiting}")),
        ..RendezvousSettings::new(launched, env!("CARGO_PKG_VERSION"))
    };
    let mut joining = RendezvousSteps::join(settings).await?;
    let greeting = (rank.0 == 0).then(|| Bytes::from(format!("{launcher}, at {place}")));
    let greeting = joining.share(greeting).await?;
    let nodes = joining.nodes().to_vec();
    let runtime = tokio::runtime::Handle::current();
    let context = OpenContext { buffers: Arc::new(HeapBuffers), runtime, seed: 0 };
    let words = vec![("greeting".to_owned(), String::from_utf8_lossy(&greeting).into_owned())];
    let group = joining.start(words, &[], &context).await?;
    println!("rank {rank} of {}: {}; nodes {nodes:?}", nodes.len(), String::from_utf8_lossy(&greeting));
    match group.leave(Duration::from_secs(20)).await {
        RunEnd::Together => Ok(()),
        left => Err(format!("{left:?}").into()),
    }
}
