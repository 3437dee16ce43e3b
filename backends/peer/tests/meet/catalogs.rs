//! Catalogs on their way, where connections break, ranks are slow, or rank 0 has lost its file.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use foreread_peer::Counters;
use foreread_peer::meet::{Bulk, Joining, MeetError, MeetErrorKind};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::support::{Job, all};

const ON_NODE: u32 = 4;

/// The second node's first rank, which gets the catalog for its node.
const RELAY: u32 = ON_NODE;

fn catalog() -> Bytes {
    (0..4 << 20).map(|at| (at % 251) as u8).collect::<Vec<_>>().into()
}

/// The ranks of such a job, each with what it has counted, from the share with rank 0's `bulk` on.
fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    job: &Job,
    bulk: &Bulk,
    act: impl Fn(Joining) -> F + Clone + Send + 'static,
) -> (Vec<JoinHandle<T>>, Arc<Counters>) {
    let counters: Arc<Counters> = Arc::default();
    let ranks = (0..job.size).map(|rank| {
        let counters = if rank == 0 { Arc::clone(&counters) } else { Arc::default() };
        let settings = job
            .settings(rank)
            .with_node(format!("n{}", rank / ON_NODE))
            .with_serving(foreread_peer::Settings::default(), counters);
        let (act, bulk) = (act.clone(), (rank == 0).then(|| bulk.clone()));
        tokio::spawn(async move {
            let mut joining = Joining::join(settings).await.unwrap();
            joining.share_with(Some("head".into()), bulk).await.unwrap();
            act(joining).await
        })
    });
    (ranks.collect(), counters)
}

/// Takes the catalog and goes on to where all come, until when each has to last.
async fn take(mut joining: Joining) -> Result<Joining, MeetError> {
    let bulk = joining.bulk().await?;
    assert!(joining.rank().0 == 0 || bulk.unwrap() == catalog());
    joining.compare(Vec::new()).await?;
    Ok(joining)
}

#[tokio::test(start_paused = true)]
async fn relay_whose_connection_breaks_while_the_catalog_comes_gets_it_again() {
    let job = Job::new(2 * ON_NODE);
    let relay = format!("r{RELAY}");
    job.network.delay("r0", &relay, Duration::from_millis(10));
    let network = job.network.clone();
    let (ranks, counters) = spawn(&job, &Bulk::needed(vec![catalog()]), move |joining| {
        if joining.rank().0 == RELAY {
            let (network, relay) = (network.clone(), relay.clone());
            tokio::spawn(async move {
                // Of the 640 ms that it takes.
                sleep(Duration::from_millis(200)).await;
                network.sever("r0", &relay);
            });
        }
        async move { take(joining).await.unwrap() }
    });
    all(ranks).await;
    assert_eq!(counters.read().bulks, 2 + 1, "one for each node, and the one that was lost");
}

/// It takes longer than a relay may be silent.
#[tokio::test(start_paused = true)]
async fn relay_that_gets_the_catalog_slowly_is_waited_for() {
    let job = Job::new(2 * ON_NODE);
    job.network.delay("r0", &format!("r{RELAY}"), Duration::from_secs(1));
    let (ranks, counters) = spawn(&job, &Bulk::needed(vec![catalog()]), |joining| async move {
        let began = Instant::now();
        let joining = take(joining).await.unwrap();
        assert!(began.elapsed() > Duration::from_secs(60));
        joining
    });
    all(ranks).await;
    assert_eq!(counters.read().bulks, 2);
}

#[tokio::test(start_paused = true)]
async fn catalog_that_rank_0_cannot_read_any_more_ends_the_meeting_with_the_reason() {
    let job = Job::new(2 * ON_NODE);
    let bulk = Bulk::on_request(9, || Err(io::Error::other("it was overwritten")));
    let (ranks, _) = spawn(&job, &bulk, |mut joining| async move {
        let error = match joining.rank().0 {
            RELAY => take(joining).await.unwrap_err(),
            _ => joining.compare(Vec::new()).await.unwrap_err(),
        };
        assert_eq!(error.kind(), MeetErrorKind::Broken);
        assert!(error.to_string().contains("cannot be read any more: it was overwritten"), "{error}");
    });
    all(ranks).await;
}

#[tokio::test(start_paused = true)]
async fn requests_at_about_the_same_time_share_one_read_of_the_catalog() {
    let job = Job::new(5 * ON_NODE);
    for rank in 1..job.size {
        job.network.delay("r0", &format!("r{rank}"), Duration::from_millis(10));
    }
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let bulk = Bulk::on_request(4 << 20, move || {
        counted.fetch_add(1, Relaxed);
        let catalog = catalog();
        Ok(vec![catalog.slice(..9), catalog.slice(9..)])
    });
    let (ranks, counters) = spawn(&job, &bulk, |joining| async move { take(joining).await.unwrap() });
    all(ranks).await;
    assert_eq!((reads.load(Relaxed), counters.read().bulks), (1, 5));
}

/// The relay is busy with something else until long after.
#[tokio::test(start_paused = true)]
async fn ranks_do_not_wait_for_a_relay_that_has_the_catalog_itself() {
    let job = Job::new(2 * ON_NODE);
    let bulk = Bulk::on_request(4 << 20, || Ok(vec![catalog()]));
    let (ranks, counters) = spawn(&job, &bulk, |mut joining| async move {
        if joining.rank().0 == RELAY {
            joining.skip_bulk();
            sleep(Duration::from_secs(20)).await;
        } else if joining.rank().0 > RELAY {
            let asked = Instant::now();
            assert!(joining.bulk().await.unwrap().unwrap() == catalog());
            assert!(asked.elapsed() < Duration::from_secs(1));
        }
        joining.compare(Vec::new()).await.unwrap();
        joining
    });
    all(ranks).await;
    assert_eq!(counters.read().bulks, u64::from(ON_NODE) - 1);
}

/// It is there and has other things to do for longer than a relay may be silent.
#[tokio::test(start_paused = true)]
async fn ranks_get_the_catalog_from_rank_0_where_their_relay_does_not_come_to_it() {
    let job = Job::new(2 * ON_NODE);
    let (ranks, counters) = spawn(&job, &Bulk::needed(vec![catalog()]), |joining| async move {
        if joining.rank().0 == RELAY {
            sleep(Duration::from_secs(20)).await;
        }
        take(joining).await.unwrap()
    });
    all(ranks).await;
    assert_eq!(counters.read().bulks, 2 + u64::from(ON_NODE) - 1);
}
