//! A thousand ranks in one process. By itself, because it counts the process's memory.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use foreread_peer::{Address, Asker, Identity, PeerTier, Server, Settings, Simulated, Token};
use foreread_tier::{Asked, Completion, Context, HeapBuffers, Serve, Served, Serving, Tier};
use foreread_tier_testing::Known;
use foreread_types::Rank;
use futures::{StreamExt, stream};
use tokio::runtime::Handle;

#[derive(Debug)]
struct Has(Known);

impl Serve for Has {
    fn serve(&self, _: Rank, asked: Vec<Asked>) -> Serving {
        let content = self.0.content.clone();
        let answer =
            move |asked: Asked| Served::Done(Completion { tag: asked.tag, result: Ok(content.clone()) });
        stream::iter(asked).map(answer).boxed()
    }
}

/// KiB of memory that this process holds.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_rests_takes_a_few_kilobytes() {
    const RANKS: u32 = 1000;
    let world = Simulated::new(3);
    let known = Known::generate(1, [("a", 10_000)]).remove(0);
    let identity = |rank| {
        let token = Token::new("the token of these tests").unwrap();
        Identity { rank: Rank(rank), job: 1, token }
    };
    let listener = world.host("one").listen(&Address::tcp("one", 0)).await.unwrap();
    let server =
        Server::start(&Handle::current(), identity(0), vec![listener], Settings::default(), Arc::default());
    let source: Arc<dyn Serve> = Arc::new(Has(known.clone()));
    server.serve(Arc::downgrade(&source));
    let context = Context { buffers: Arc::new(HeapBuffers), runtime: Handle::current(), seed: 1 };
    let before = resident();
    let mut tiers = Vec::new();
    for rank in 1..=RANKS {
        let network = world.host(format!("h{rank}"));
        let asker = Asker::new(identity(rank), network, &context, Arc::default());
        let tier = PeerTier::new(vec![asker.remote(Rank(0), server.addresses().to_vec())]);
        let answers: Vec<_> = tier.read((0..10).map(|tag| known.whole(tag)).collect()).collect().await;
        assert!(answers.iter().all(|answer| answer.result.as_ref().is_ok_and(|got| *got == known.content)));
        tiers.push(tier);
    }
    assert_eq!(world.connections(), RANKS as usize);
    let each = resident().saturating_sub(before) / u64::from(RANKS);
    println!("{each} KiB for each connection, both ends and its rank");
    assert!(each <= 24, "{each} KiB");
}
