//! A rank that answers each request with one sample, and the memory of this process.

use std::sync::Arc;

use foreread_tier::{PeerReplies, PeerReply, PeerRequest, PeerService};
use foreread_tier_testing::KnownSample;
use foreread_types::Rank;
use futures::{StreamExt, stream};

#[derive(Debug)]
pub struct FixedSample(pub KnownSample);

impl FixedSample {
    /// A sample of this length.
    pub fn bytes(length: u64) -> (KnownSample, Arc<dyn PeerService>) {
        let known = KnownSample::generate(1, [("a", length)]).remove(0);
        (known.clone(), Arc::new(Self(known)))
    }
}

impl PeerService for FixedSample {
    fn serve(&self, _: Rank, requested: Vec<PeerRequest>) -> PeerReplies {
        let content = self.0.content.clone();
        let answer =
            move |requested: PeerRequest| PeerReply::Done { tag: requested.tag, result: Ok(content.clone()) };
        stream::iter(requested).map(answer).boxed()
    }
}

/// Resident memory of this process, in bytes.
pub fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
