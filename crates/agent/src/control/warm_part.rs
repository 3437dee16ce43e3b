//! An agent that fills its memory with a part of a dataset, as the control process requests.
//!
//! It becomes a client of itself, as `foreread warm` would be. So it opens the dataset with its own
//! environment, and no credentials pass through the control process. The price is that each node
//! lists the dataset, unless the target is a catalog.

use std::path::PathBuf;
use std::thread::Builder;

use foreread::{AgentChoice, Config, Loader, Memory, RankOf};

use super::messages::WarmPart;

/// The name of the agent as its own client.
const JOB: &str = "warm";

/// The settings by which an agent connects to itself.
#[derive(Clone, Debug)]
pub(crate) struct OwnAgent {
    pub(crate) socket: PathBuf,
    pub(crate) config: Config,
}

/// Begins to fill the memory.
pub(super) fn warm(own: OwnAgent, part: WarmPart) {
    let spawned = Builder::new().name("foreread-warm".to_owned()).spawn(move || {
        let target = part.target.clone();
        match begin(own, &part) {
            Ok(true) => {}
            Ok(false) => tracing::warn!(target, "this agent does not keep the dataset"),
            Err(error) => tracing::warn!(target, %error, "the memory is not filled"),
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "the memory is not filled");
    }
}

/// Whether the agent keeps the dataset.
fn begin(own: OwnAgent, part: &WarmPart) -> foreread::Result<bool> {
    let mut config = own.config;
    config.agent = AgentChoice::At(own.socket);
    (config.memory, config.disk, config.job_name) = (Memory::Auto, Vec::new(), Some(JOB.to_owned()));
    // Blocks of shards are for samples that are used again.
    let ready = Loader::builder_with(&part.target, config).epochs(2).prepare()?;
    Ok(ready.warm_agent_part(RankOf { rank: part.part, ranks: part.parts })?.is_some())
}
