//! Catalog transfers with broken connections, slow ranks, or a rank 0 that has lost its file.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use foreread_peer::PeerCounters;
use foreread_peer::meet::{MeetError, MeetErrorKind, RendezvousSettings, RendezvousSteps, SharedCatalog};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::support::{Job, all, compare};

const ON_NODE: u32 = 4;

/// The second node's first rank, the relay of its node.
const RELAY: u32 = ON_NODE;

fn catalog() -> Bytes {
    (0..4 << 20).map(|at| (at % 251) as u8).collect::<Vec<_>>().into()
}

/// The ranks of such a job and rank 0's counters, starting with the share of rank 0's `bulks`.
fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    job: &Job,
    bulks: &[SharedCatalog],
    act: impl Fn(RendezvousSteps) -> F + Clone + Send + 'static,
) -> (Vec<JoinHandle<T>>, Arc<PeerCounters>) {
    let counters: Arc<PeerCounters> = Arc::default();
    let ranks = (0..job.size).map(|rank| {
        let counters = if rank == 0 { Arc::clone(&counters) } else { Arc::default() };
        let settings =
            RendezvousSettings { node: format!("n{}", rank / ON_NODE), counters, ..job.settings(rank) };
        let (act, bulks) = (act.clone(), if rank == 0 { bulks.to_vec() } else { Vec::new() });
        tokio::spawn(async move {
            let mut joining = RendezvousSteps::join(settings).await.unwrap();
            joining.share_with(Some("head".into()), bulks).await.unwrap();
            act(joining).await
        })
    });
    (ranks.collect(), counters)
}

/// Takes the catalog and continues to a common step.
async fn take(mut joining: RendezvousSteps) -> Result<RendezvousSteps, MeetError> {
    let bulks = joining.bulks(vec![None]).await?;
    assert!(joining.rank().0 == 0 || bulks == [Some(catalog())]);
    compare(&mut joining, Vec::new()).await?;
    Ok(joining)
}

#[tokio::test(start_paused = true)]
// semantics: RANK-25
async fn relay_that_loses_its_connection_gets_the_catalog_again() {
    let job = Job::new(2 * ON_NODE);
    let relay = format!("r{RELAY}");
    job.network.delay("r0", &relay, Duration::from_millis(10));
    let network = job.network.clone();
    let (ranks, counters) = spawn(&job, &[SharedCatalog::needed(catalog())], move |joining| {
        if joining.rank().0 == RELAY {
            let (network, relay) = (network.clone(), relay.clone());
            tokio::spawn(async move {
                // Of the 640 ms that the transfer takes.
                sleep(Duration::from_millis(200)).await;
                network.sever("r0", &relay);
            });
        }
        async move { take(joining).await.unwrap() }
    });
    all(ranks).await;
    assert_eq!(counters.read().bulks, 2 + 1, "one for each node, and the one that was lost");
}

/// The transfer takes longer than the relay timeout.
#[tokio::test(start_paused = true)]
// semantics: RANK-25
async fn relay_that_gets_the_catalog_slowly_is_waited_for() {
    let job = Job::new(2 * ON_NODE);
    job.network.delay("r0", &format!("r{RELAY}"), Duration::from_secs(1));
    let (ranks, counters) = spawn(&job, &[SharedCatalog::needed(catalog())], |joining| async move {
        let began = Instant::now();
        let joining = take(joining).await.unwrap();
        assert!(began.elapsed() > Duration::from_secs(60));
        joining
    });
    all(ranks).await;
    assert_eq!(counters.read().bulks, 2);
}

/// A rank whose connection to rank 0 broke while it waited at its relay counted as gone, and ended
/// the rendezvous.
#[tokio::test(start_paused = true)]
// semantics: RANK-25
async fn rank_that_waits_at_its_relay_keeps_its_connection_to_rank_0() {
    let job = Job::new(2 * ON_NODE);
    job.network.delay("r0", &format!("r{RELAY}"), Duration::from_secs(1));
    let network = job.network.clone();
    let (ranks, _) = spawn(&job, &[SharedCatalog::needed(catalog())], move |joining| {
        let rank = joining.rank().0;
        if rank > RELAY {
            let network = network.clone();
            tokio::spawn(async move {
                sleep(Duration::from_secs(5)).await;
                network.sever("r0", &format!("r{rank}"));
            });
        }
        async move { take(joining).await.unwrap() }
    });
    all(ranks).await;
}

#[tokio::test(start_paused = true)]
// semantics: RANK-25
async fn unreadable_catalog_ends_the_rendezvous_with_the_reason() {
    let job = Job::new(2 * ON_NODE);
    let bulk = SharedCatalog::on_request(9, || Err(io::Error::other("it was overwritten")));
    let (ranks, _) = spawn(&job, &[bulk], |mut joining| async move {
        let error = match joining.rank().0 {
            RELAY => take(joining).await.unwrap_err(),
            _ => compare(&mut joining, Vec::new()).await.unwrap_err(),
        };
        assert_eq!(error.kind(), MeetErrorKind::Broken);
        assert!(error.to_string().contains("can no longer read its catalog: it was overwritten"), "{error}");
    });
    all(ranks).await;
}

#[tokio::test(start_paused = true)]
// semantics: RANK-25
async fn concurrent_requests_share_one_read_of_the_catalog() {
    let job = Job::new(5 * ON_NODE);
    for rank in 1..job.size {
        job.network.delay("r0", &format!("r{rank}"), Duration::from_millis(10));
    }
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let bulk = SharedCatalog::on_request(4 << 20, move || {
        counted.fetch_add(1, Relaxed);
        Ok(catalog())
    });
    let (ranks, counters) = spawn(&job, &[bulk], |joining| async move { take(joining).await.unwrap() });
    all(ranks).await;
    assert_eq!((reads.load(Relaxed), counters.read().bulks), (1, 5));
}

/// The relay has opened the catalog's file, which the others of its node cannot. It is busy until
/// long after.
#[tokio::test(start_paused = true)]
// semantics: RANK-25
async fn relay_that_has_the_catalog_file_serves_its_node() {
    let job = Job::new(2 * ON_NODE);
    let bulk = SharedCatalog::on_request(4 << 20, || Ok(catalog()));
    let (ranks, counters) = spawn(&job, &[bulk], |mut joining| async move {
        if joining.rank().0 == RELAY {
            let own = SharedCatalog::on_request(4 << 20, || Ok(catalog()));
            assert_eq!(joining.bulks(vec![Some(own)]).await.unwrap(), [None]);
            sleep(Duration::from_secs(20)).await;
        } else if joining.rank().0 > RELAY {
            let requested = Instant::now();
            assert!(joining.bulks(vec![None]).await.unwrap() == [Some(catalog())]);
            assert!(requested.elapsed() < Duration::from_secs(1));
        }
        compare(&mut joining, Vec::new()).await.unwrap();
        joining
    });
    all(ranks).await;
    assert_eq!(counters.read().bulks, 0, "rank 0 sends none");
}

#[tokio::test(start_paused = true)]
// semantics: RANK-25
async fn relay_whose_catalog_file_vanishes_leaves_its_node_to_rank_0() {
    let job = Job::new(2 * ON_NODE);
    let bulk = SharedCatalog::on_request(4 << 20, || Ok(catalog()));
    let (ranks, counters) = spawn(&job, &[bulk], |mut joining| async move {
        let gone = SharedCatalog::on_request(4 << 20, || Err(io::Error::other("it was removed")));
        let own = (joining.rank().0 <= RELAY).then_some(gone);
        let bulks = joining.bulks(vec![own]).await.unwrap();
        assert!(bulks[0].is_none() || bulks == [Some(catalog())]);
        assert_eq!(bulks[0].is_some(), joining.rank().0 > RELAY);
        compare(&mut joining, Vec::new()).await.unwrap();
        joining
    });
    all(ranks).await;
    assert_eq!(counters.read().bulks, u64::from(ON_NODE) - 1);
}

/// A listed catalog next to one in a file that all ranks but one can open.
#[tokio::test(start_paused = true)]
// semantics: RANK-25
async fn catalog_file_next_to_a_listed_catalog_is_not_sent() {
    let job = Job::new(2 * ON_NODE);
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let file = SharedCatalog::on_request(4 << 20, move || {
        counted.fetch_add(1, Relaxed);
        Ok(catalog())
    });
    let listed = Bytes::from_static(b"listed");
    let (ranks, counters) =
        spawn(&job, &[SharedCatalog::needed(listed.clone()), file], move |mut joining| {
            let listed = listed.clone();
            async move {
                let own = SharedCatalog::on_request(4 << 20, || Ok(catalog()));
                let is_blind = joining.rank().0 == RELAY;
                let bulks = joining.bulks(vec![None, (!is_blind).then_some(own)]).await.unwrap();
                let expected = [Some(listed), is_blind.then(catalog)];
                assert!(joining.rank().0 == 0 || bulks == expected);
                compare(&mut joining, Vec::new()).await.unwrap();
                joining
            }
        });
    all(ranks).await;
    assert_eq!(
        (reads.load(Relaxed), counters.read().bulks),
        (1, 2 + 1),
        "the listed one for each node, and one"
    );
}

/// The first byte of a small catalog takes longer than the relay timeout.
#[tokio::test(start_paused = true)]
// semantics: RANK-25
async fn relay_that_waits_for_its_first_byte_is_waited_for() {
    let job = Job::new(2 * ON_NODE);
    let listed = Bytes::from_static(b"listed");
    let network = job.network.clone();
    let bulk = listed.clone();
    let bulk = SharedCatalog::on_request(6, move || Ok(bulk.clone()));
    let (ranks, counters) = spawn(&job, &[bulk], move |mut joining| {
        if joining.rank().0 == RELAY {
            // The round trip is 14 s. The deadline is 30 s, and the relay timeout 10 s.
            network.delay("r0", &format!("r{RELAY}"), Duration::from_secs(7));
        }
        let listed = listed.clone();
        async move {
            let bulks = joining.bulks(vec![None]).await.unwrap();
            assert!(joining.rank().0 == 0 || bulks == [Some(listed)]);
            compare(&mut joining, Vec::new()).await.unwrap();
            joining
        }
    });
    all(ranks).await;
    assert_eq!(counters.read().bulks, 2, "one for each node");
}

/// The relay is connected, and busy for longer than the relay timeout.
#[tokio::test(start_paused = true)]
// semantics: RANK-25
async fn unresponsive_relay_is_replaced_by_rank_0() {
    let job = Job::new(2 * ON_NODE);
    let (ranks, counters) = spawn(&job, &[SharedCatalog::needed(catalog())], |joining| async move {
        if joining.rank().0 == RELAY {
            sleep(Duration::from_secs(20)).await;
        }
        take(joining).await.unwrap()
    });
    all(ranks).await;
    assert_eq!(counters.read().bulks, 2 + u64::from(ON_NODE) - 1);
}
