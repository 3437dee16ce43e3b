//! A thousand ranks in one process, eight per node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use foreread_peer::PeerCounters;
use foreread_peer::meet::{RendezvousSettings, RendezvousSteps, RunEnd, SharedCatalog};
use tokio::time::sleep;

use crate::support::{DEADLINE, Job, all, compare, context, words};

const RANKS: u32 = 1024;
const ON_NODE: u32 = 8;

/// A rank of a job with several nodes.
fn settings(job: &Job, rank: u32, counters: &Arc<PeerCounters>) -> RendezvousSettings {
    RendezvousSettings {
        node: format!("n{}", rank / ON_NODE),
        deadline: Duration::from_secs(300),
        counters: Arc::clone(counters),
        ..job.settings(rank)
    }
}

/// The peak memory of this process, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// The size of the catalog: fifty gigabytes through memory in a soak run.
fn catalog_bytes() -> usize {
    if std::env::var_os("FOREREAD_SOAK").is_some() { 50 << 20 } else { 256 << 10 }
}

fn catalog(bytes: usize) -> Bytes {
    (0..bytes).map(|at| (at % 251) as u8).collect::<Vec<_>>().into()
}

#[tokio::test(start_paused = true)]
// semantics: RANK-24, RANK-25
async fn thousand_ranks_meet_by_8_messages_each_and_a_catalog_a_node() {
    let (began, job, catalog) = (Instant::now(), Job::new(RANKS), catalog(catalog_bytes()));
    let expected = crc32c::crc32c(&catalog);
    let counters: Vec<Arc<PeerCounters>> = (0..RANKS).map(|_| Arc::default()).collect();
    let ranks: Vec<_> = (0..RANKS)
        .map(|rank| {
            let catalog = catalog.clone();
            let settings = settings(&job, rank, &counters[rank as usize]);
            tokio::spawn(async move {
                let mut joining = RendezvousSteps::join(settings).await.unwrap();
                let first = rank == 0;
                let bulks = if first { vec![SharedCatalog::needed(catalog)] } else { Vec::new() };
                let head = joining.share_with(first.then(|| "head".into()), bulks).await.unwrap();
                assert_eq!(head, "head");
                let [bulk] = joining.bulks(vec![None]).await.unwrap().try_into().unwrap();
                assert_eq!(bulk.map(|bulk: Bytes| crc32c::crc32c(&bulk)), (!first).then_some(expected));
                let held = Bytes::from(vec![rank as u8; 4096]);
                let held =
                    joining.exchange(words("5", ""), held, |all| all.len().to_string().into()).await.unwrap();
                assert_eq!(held, RANKS.to_string());
                joining.start(words("5", "plan"), &[], &context()).await.unwrap()
            })
        })
        .collect();
    let groups = all(ranks).await;
    let tallies: Vec<_> = counters.iter().map(|counters| counters.read()).collect();
    let messages: u64 = tallies.iter().map(|tally| tally.messages).sum();
    eprintln!("{RANKS} ranks: {messages} messages, {:?}, {} MiB at most", began.elapsed(), peak() >> 20);
    // Of all ranks, in both directions, including those inside of nodes.
    assert!(messages <= 8 * u64::from(RANKS), "{messages} messages");
    assert_eq!(tallies[0].bulks, u64::from(RANKS / ON_NODE), "catalogs that rank 0 sent");

    let running = groups.into_iter().map(|group| {
        tokio::spawn(async move {
            for step in 1..=10 {
                group.progress(step);
                sleep(Duration::from_millis(10)).await;
            }
            if let Some(mut lowest) = group.lowest() {
                lowest.wait_for(|at| *at == 10).await.unwrap();
            }
            group.report(Bytes::from_static(b"{}"), Duration::from_secs(60)).await;
            let reports = group.reports(Duration::from_secs(60)).await;
            assert!(reports.iter().all(Option::is_some));
            group.leave(Duration::from_secs(60)).await
        })
    });
    let running: Vec<_> = running.collect();
    assert!(all(running).await.iter().all(|left| *left == RunEnd::Together));
    assert!(peak() < 2 << 30);
}

/// The relay does not send the catalog: the other ranks get it from rank 0 before the deadline.
#[tokio::test(start_paused = true)]
// semantics: RANK-25
async fn catalog_comes_from_rank_0_where_the_nodes_first_rank_hangs() {
    let (job, catalog) = (Job::new(2 * ON_NODE), catalog(1 << 20));
    let counters: Vec<Arc<PeerCounters>> = (0..job.size).map(|_| Arc::default()).collect();
    // Rank 8 is the second node's first. The others of its node cannot reach it.
    for rank in ON_NODE + 1..2 * ON_NODE {
        job.network.cut(&format!("r{ON_NODE}"), &format!("r{rank}"));
    }
    let ranks: Vec<_> = (0..job.size)
        .map(|rank| {
            let (settings, catalog) = (settings(&job, rank, &counters[rank as usize]), catalog.clone());
            tokio::spawn(async move {
                let mut joining =
                    RendezvousSteps::join(RendezvousSettings { deadline: DEADLINE, ..settings })
                        .await
                        .unwrap();
                let bulks = if rank == 0 { vec![SharedCatalog::needed(catalog.clone())] } else { Vec::new() };
                joining.share_with(Some("head".into()), bulks).await.unwrap();
                let [bulk] = joining.bulks(vec![None]).await.unwrap().try_into().unwrap();
                compare(&mut joining, Vec::new()).await.unwrap();
                assert!(rank == 0 || bulk == Some(catalog));
                // Lasts until all have come so far.
                joining
            })
        })
        .collect();
    all(ranks).await;
    // One for each of the two nodes, and seven fallbacks.
    assert_eq!(counters[0].read().bulks, 2 + 7);
}

/// A catalog in a file that some ranks cannot open is read on request, once per node.
#[tokio::test(start_paused = true)]
// semantics: RANK-25
async fn catalog_on_request_is_sent_to_nodes_that_need_it() {
    let (job, catalog) = (Job::new(3 * ON_NODE), catalog(1 << 20));
    let counters: Vec<Arc<PeerCounters>> = (0..job.size).map(|_| Arc::default()).collect();
    let ranks: Vec<_> = (0..job.size)
        .map(|rank| {
            let (settings, catalog) = (settings(&job, rank, &counters[rank as usize]), catalog.clone());
            tokio::spawn(async move {
                let mut joining = RendezvousSteps::join(settings).await.unwrap();
                let read = catalog.clone();
                let bulk = SharedCatalog::on_request(catalog.len() as u64, move || Ok(read.clone()));
                let bulks = if rank == 0 { vec![bulk] } else { Vec::new() };
                joining.share_with(Some("head".into()), bulks).await.unwrap();
                if rank / ON_NODE == 2 {
                    assert_eq!(joining.bulks(vec![None]).await.unwrap(), [Some(catalog)]);
                }
                compare(&mut joining, Vec::new()).await.unwrap();
                joining
            })
        })
        .collect();
    all(ranks).await;
    assert_eq!(counters[0].read().bulks, 1);
}

#[tokio::test(start_paused = true)]
// semantics: RANK-25
async fn catalogs_above_16_gib_end_the_rendezvous_with_the_remedy() {
    let job = Job::new(4);
    // One gibibyte that is never written, six times, for three other nodes.
    let gibibyte = Bytes::from(vec![0; 1 << 30]);
    let ranks = (0..4).map(|rank| {
        let settings = RendezvousSettings { node: format!("n{rank}"), ..job.settings(rank) };
        let bulks = if rank == 0 { vec![SharedCatalog::needed(gibibyte.clone()); 6] } else { Vec::new() };
        tokio::spawn(async move {
            let shared =
                async { RendezvousSteps::join(settings).await?.share_with(Some("head".into()), bulks).await };
            shared.await.unwrap_err().to_string()
        })
    });
    for error in all(ranks.collect::<Vec<_>>()).await {
        assert!(
            error.contains("18 GiB") && error.contains("run `foreread index` into a shared file"),
            "{error}"
        );
    }
}
