//! Ranks left over by an earlier run, and ranks of another world size or version, during a new run
//! at the same address.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foreread_peer::Address;
use foreread_peer::meet::{MeetErrorKind, Rendezvous, RendezvousSettings, RendezvousSteps, RunEnd, RunGroup};
use foreread_tier::PeerService;
use foreread_types::Fingerprint;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::running::{RankSamples, read_from};
use crate::support::{DEADLINE, Job, all, begin, compare, context, launched, leave_notice};

const SECOND: Duration = Duration::from_secs(1);

/// The progress lines of one rank.
type Shown = Arc<Mutex<Vec<String>>>;

/// The ranks of a later run: rank 0 at the earlier one's host, the others on their own hosts. Each
/// comes after `wait`.
fn later(job: &Job, wait: impl Fn(u32) -> Duration) -> (Shown, Vec<JoinHandle<Arc<RunGroup>>>) {
    let shown = Shown::default();
    let ranks = (0..job.size).map(|rank| {
        let host = if rank == 0 { "r0".to_owned() } else { format!("b{rank}") };
        let lines = Arc::clone(&shown);
        let progress = move |waiting: &_| lines.lock().unwrap().push(format!("{rank}: {waiting}"));
        let settings = RendezvousSettings { network: job.network.host(host), ..job.settings(rank) };
        let settings = RendezvousSettings { progress: Box::new(progress), ..settings };
        let wait = wait(rank);
        tokio::spawn(async move {
            sleep(wait).await;
            Arc::new(begin(RendezvousSteps::join(settings).await.unwrap()).await.unwrap())
        })
    });
    let ranks = ranks.collect();
    (shown, ranks)
}

async fn leave(groups: Vec<Arc<RunGroup>>) {
    let leaving = groups.into_iter().map(|group| tokio::spawn(async move { group.leave(DEADLINE).await }));
    let leaving: Vec<_> = leaving.collect();
    assert!(all(leaving).await.iter().all(|left| *left == RunEnd::Together));
}

/// Ranks of a new run that have connected and not started are in no run yet.
#[tokio::test(start_paused = true)]
async fn left_over_rank_gets_nothing_before_the_later_run_starts() {
    let job = Job::new(2);
    let mut old = job.start().await;
    drop(old.remove(0));
    sleep(SECOND).await;
    let ranks = [0, 1].map(|rank| {
        let host = if rank == 0 { "r0" } else { "b1" };
        let settings = RendezvousSettings { network: job.network.host(host), ..job.settings(rank) };
        tokio::spawn(async move { RendezvousSteps::join(settings).await.unwrap() })
    });
    let joined = all(ranks).await;
    let error = read_from(&old[0], 0).await.unwrap_err().to_string();
    assert!(error.contains("rank 0 there is in another run, or in none yet"), "{error}");
    drop(joined);
}

#[tokio::test(start_paused = true)]
// semantics: RANK-7
async fn run_id_is_bound_to_what_ranks_agree_on() {
    let job = Job::new(2);
    let start = |of: [u128; 2]| {
        let job = job.clone();
        async move {
            let ranks = [0, 1].map(|rank| {
                let bound = Fingerprint(of[rank as usize]);
                job.spawn(rank, Duration::ZERO, move |joining| async move {
                    let group = joining.unwrap().start(Vec::new(), &[bound], &context()).await.unwrap();
                    let holds: Arc<dyn PeerService> = Arc::new(RankSamples(rank));
                    group.serve(Arc::downgrade(&holds));
                    (group, holds)
                })
            });
            let groups = all(ranks).await;
            let answer = read_from(&groups[1].0, 0).await.map_err(|error| error.to_string());
            sleep(SECOND).await;
            (groups[0].0.run(), groups[1].0.run(), answer)
        }
    };
    let (one, other, answer) = start([5, 5]).await;
    assert_eq!((one, answer.unwrap()), (other, "0:00042".into()));
    let (again, ..) = start([5, 5]).await;
    assert_ne!(one, again, "each run has another id");
    let (one, other, answer) = start([5, 6]).await;
    assert_ne!(one, other);
    assert!(answer.unwrap_err().contains("in another run"));
}

#[tokio::test(start_paused = true)]
// semantics: RANK-6
async fn left_over_ranks_do_not_end_a_later_rendezvous() {
    let job = Job::new(4);
    let mut old = job.start().await;
    // One of them reconnects while the later ranks are between steps.
    job.network.cut("r0", "r3");
    drop(old.remove(0));
    sleep(SECOND).await;

    let (shown, ranks) = later(&job, |rank| SECOND * 5 * rank);
    sleep(SECOND * 12).await;
    job.network.mend("r0", "r3");
    let new = all(ranks).await;
    let shown = shown.lock().unwrap().clone();
    let is_shown = |who: &str, rank: u32| {
        let line = format!("rank 0 was started again while rank {rank} (process ");
        shown.iter().any(|shown| shown.starts_with(who) && shown.contains(&line))
    };
    assert!(is_shown("0: ", 1) && is_shown("0: ", 2) && is_shown("0: ", 3), "{shown:?}");
    assert!(is_shown("1: ", 2), "shown on the others as well: {shown:?}");
    leave(new).await;
    drop(old);
}

#[tokio::test(start_paused = true)]
// semantics: RANK-6
async fn left_over_rank_between_steps_changes_nothing() {
    let job = Job::new(3);
    let mut old = job.start().await;
    job.network.cut("r0", "r2");
    drop(old.remove(0));
    sleep(SECOND).await;
    let hosts = ["r0", "b1", "b2"];
    let ranks = [0, 1, 2].map(|rank| {
        let network = job.network.host(hosts[rank as usize]);
        let settings = RendezvousSettings { network, ..job.settings(rank) };
        tokio::spawn(async move {
            let mut joining = RendezvousSteps::join(settings).await.unwrap();
            for _ in 0..15 {
                sleep(SECOND).await;
                compare(&mut joining, vec![("seed".to_owned(), "5".to_owned())]).await.unwrap();
            }
            begin(joining).await.unwrap().leave(DEADLINE).await
        })
    });
    sleep(SECOND * 5).await;
    job.network.mend("r0", "r2");
    assert!(all(ranks).await.iter().all(|left| *left == RunEnd::Together));
    drop(old);
}

#[tokio::test(start_paused = true)]
// semantics: RANK-6
async fn rank_of_another_world_size_or_version_fails_alone() {
    for (size, version, expected) in [
        (5, "1.0", "differs from rank 0: world size is 5, rank 0's is 3"),
        (3, "2.0", "differs from rank 0: version is 2.0, rank 0's is 1.0"),
    ] {
        let job = Job::new(3);
        let mut launched = job.launched(1);
        launched.world_size = size;
        let stray = RendezvousSettings {
            network: job.network.host("stray"),
            token: Some(foreread_peer::Token::new(crate::support::TOKEN).unwrap()),
            deadline: DEADLINE,
            ..RendezvousSettings::new(launched, version)
        };
        let stray = tokio::spawn(async move {
            sleep(SECOND).await;
            (RendezvousSteps::join(stray).await.unwrap_err(), Instant::now())
        });
        let began = Instant::now();
        let (shown, ranks) = later(&job, |rank| SECOND * 10 * u32::from(rank == 1));
        let (error, ended) = stray.await.unwrap();
        assert_eq!(error.kind(), MeetErrorKind::Differs);
        assert!(error.to_string().ends_with(expected), "{error}");
        assert!(ended - began < SECOND * 3);
        leave(all(ranks).await).await;
        let shown = shown.lock().unwrap();
        for rank in ["0: waiting for rank 1 ", "2: waiting for rank 1 "] {
            let named = shown.iter().filter(|line| line.starts_with(rank) && line.contains(expected));
            assert!(named.count() > 5, "{shown:?}");
        }
    }
}

/// A rank of two that meet by a notice in a directory.
fn by_notice(job: &Job, rank: u32, directory: &Path) -> RendezvousSettings {
    let launched = launched(rank, 2, Rendezvous::Directory(directory.to_owned()));
    RendezvousSettings { token: None, ..job.settings_of(launched) }
}

/// The hosts in a dead run's notice neither accept nor refuse connections.
#[tokio::test(start_paused = true)]
// semantics: RANK-10
async fn stale_notice_holds_up_no_rank_when_it_is_replaced() {
    let (base, job) = (tempfile::tempdir().unwrap(), Job::new(2));
    let path = base.path().join("job");
    let mut silent = Vec::new();
    for number in 0..8 {
        let host = format!("silent{number}");
        silent.push(job.network.host(&host).listen(&Address::tcp(&host, 1)).await.unwrap());
    }
    let addresses: Vec<_> = silent.iter().map(|one| one.address().to_string()).collect();
    leave_notice(&path, &addresses.iter().map(String::as_str).collect::<Vec<_>>());
    let early = tokio::spawn(RendezvousSteps::join(by_notice(&job, 1, &path)));
    // The rank has begun to try them.
    let accepted = silent[0].accept().await.unwrap();
    let began = Instant::now();
    let first = RendezvousSteps::join(by_notice(&job, 0, &path)).await.unwrap();
    let early = early.await.unwrap().unwrap();
    // Less than the handshake timeout of one of the eight addresses.
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
    drop((accepted, first, early));
}

/// The reason of an earlier attempt is dropped when later attempts find nothing.
#[tokio::test(start_paused = true)]
async fn reason_of_an_earlier_attempt_is_not_reported_later() {
    let (base, job) = (tempfile::tempdir().unwrap(), Job::new(2));
    let path = base.path().join("meet");
    leave_notice(&path, &["nowhere:1"]);
    let (sender, mut shown_lines) = tokio::sync::mpsc::unbounded_channel();
    let progress = Box::new(move |waiting: &_| drop(sender.send(format!("{waiting}"))));
    let joining =
        tokio::spawn(RendezvousSteps::join(RendezvousSettings { progress, ..by_notice(&job, 1, &path) }));
    let first = shown_lines.recv().await.unwrap();
    assert!(first.contains("cannot connect"), "{first}");
    std::fs::remove_file(path.join("rank0")).unwrap();
    let error = joining.await.unwrap().unwrap_err().to_string();
    let expected = "within 30 s; check whether it was started, and whether it uses the same";
    assert!(error.contains(expected), "{error}");
}
