//! Processes that meet several times: one after another, concurrently, and one ahead of another.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use foreread_peer::meet::{
    LoaderDirectory, MeetErrorKind, Rendezvous, RendezvousSettings, RendezvousSteps, RunEnd, RunGroup,
};
use tokio::time::sleep;

use crate::support::{DEADLINE, Job, all, begin, launched};

const SECOND: Duration = Duration::from_secs(1);

/// A job whose ranks make several loaders. Rank 0's process has one board for them.
#[derive(Clone)]
struct Several {
    job: Job,
    board: Arc<LoaderDirectory>,
}

impl Several {
    fn new(size: u32) -> Self {
        Self { job: Job::new(size), board: Arc::default() }
    }
}

impl std::ops::Deref for Several {
    type Target = Job;

    fn deref(&self) -> &Job {
        &self.job
    }
}

/// The settings of a rank's loader of this number, with the rendezvous `place`.
fn settings(job: &Several, rank: u32, loader: u16, place: &Rendezvous) -> RendezvousSettings {
    let settings = job.settings_of(launched(rank, job.size, place.clone()));
    RendezvousSettings { loader, board: Arc::clone(&job.board), ..settings }
}

/// All ranks with their loader of this number.
async fn start(job: &Several, meeting: u16, place: &Rendezvous) -> Vec<RunGroup> {
    let ranks: Vec<_> = (0..job.size)
        .map(|rank| {
            let settings = settings(job, rank, meeting, place);
            tokio::spawn(async move { begin(RendezvousSteps::join(settings).await.unwrap()).await.unwrap() })
        })
        .collect();
    all(ranks).await
}

async fn leave(groups: Vec<RunGroup>) {
    let leaving: Vec<_> =
        groups.into_iter().map(|group| tokio::spawn(async move { group.leave(DEADLINE).await })).collect();
    assert!(all(leaving).await.iter().all(|left| *left == RunEnd::Together));
}

/// Rendezvous addresses with ports: one, several, and one for each rank.
fn places(job: &Several) -> [Rendezvous; 3] {
    let host = || "r0".to_owned();
    [
        Rendezvous::Host { host: host(), ports: vec![7000] },
        Rendezvous::Host { host: host(), ports: vec![7000, 7001] },
        Rendezvous::List((0..job.size).map(|rank| (format!("r{rank}"), 7000)).collect()),
    ]
}

/// A loader for training and one for validation.
#[tokio::test(start_paused = true)]
// semantics: RANK-12
async fn second_loader_of_a_process_meets_while_the_first_runs() {
    for number in 0..3 {
        let job = Several::new(3);
        let place = &places(&job)[number];
        let training = start(&job, 0, place).await;
        let validation = start(&job, 1, place).await;
        let third = start(&job, 2, place).await;
        leave(validation).await;
        let fourth = start(&job, 3, place).await;
        for groups in [training, third, fourth] {
            leave(groups).await;
        }
        // Once all have ended, the rendezvous port is free again.
        leave(start(&job, 4, place).await).await;
    }
}

/// A program that makes a new loader each epoch and leaves the old one to the garbage collector.
#[tokio::test(start_paused = true)]
// semantics: RANK-12
async fn new_loader_does_not_meet_an_old_one() {
    for number in 0..3 {
        let job = Several::new(3);
        let place = places(&job)[number].clone();
        let ranks = (0..job.size).map(|rank| {
            let (job, place) = (job.clone(), place.clone());
            tokio::spawn(async move {
                let mut leaving = Vec::new();
                for meeting in 0..20 {
                    let joining = RendezvousSteps::join(settings(&job, rank, meeting, &place)).await.unwrap();
                    let group = begin(joining).await.unwrap();
                    leaving.push(tokio::spawn(async move {
                        sleep(SECOND * ((1 + rank * 7 + u32::from(meeting) * 5) % 11)).await;
                        group.leave(DEADLINE).await
                    }));
                    sleep(SECOND * 2).await;
                }
                all(leaving).await
            })
        });
        let ranks: Vec<_> = ranks.collect();
        assert!(all(ranks).await.into_iter().flatten().all(|left| left == RunEnd::Together));
    }
}

/// The first rank at the second rendezvous finds ranks of the first and does not mistake them for
/// its own.
#[tokio::test(start_paused = true)]
// semantics: RANK-12
async fn rank_that_is_a_loader_ahead_waits_for_the_others() {
    for late in 0..3 {
        let job = Several::new(3);
        let place = Rendezvous::Host { host: "r0".to_owned(), ports: vec![7000] };
        let shown = Arc::new(Mutex::new(Vec::new()));
        let ranks: Vec<_> = (0..job.size)
            .map(|rank| {
                let (job, place, shown) = (job.clone(), place.clone(), Arc::clone(&shown));
                tokio::spawn(async move {
                    let first = RendezvousSteps::join(settings(&job, rank, 0, &place)).await.unwrap();
                    let first = begin(first).await.unwrap();
                    sleep(SECOND * if rank == late { 20 } else { rank }).await;
                    let progress =
                        move |waiting: &_| shown.lock().unwrap().push(format!("{rank}: {waiting}"));
                    let second = RendezvousSettings {
                        progress: Box::new(progress),
                        ..settings(&job, rank, 1, &place)
                    };
                    let second = begin(RendezvousSteps::join(second).await.unwrap()).await.unwrap();
                    (first.leave(DEADLINE).await, second.leave(DEADLINE).await)
                })
            })
            .collect();
        for left in all(ranks).await {
            assert_eq!(left, (RunEnd::Together, RunEnd::Together));
        }
        let shown = shown.lock().unwrap();
        let waits = |line: &&String| line.contains(&format!("waiting for rank {late} ("));
        assert!(shown.iter().filter(waits).count() > 10, "{shown:?}");
        let why = "rank 0 there has loader 1 of its process, and this is loader 2";
        assert_eq!(shown.iter().any(|line| line.contains(why)), late == 0, "{shown:?}");
    }
}

/// The first loader has the rendezvous port, and ends before the second's ranks have come.
#[tokio::test(start_paused = true)]
async fn later_loader_is_found_although_the_earlier_one_has_ended() {
    let job = Several::new(2);
    let place = Rendezvous::Host { host: "r0".to_owned(), ports: vec![7000] };
    let training = start(&job, 0, &place).await;
    let join = |rank| {
        let settings = settings(&job, rank, 1, &place);
        tokio::spawn(async move { begin(RendezvousSteps::join(settings).await.unwrap()).await.unwrap() })
    };
    let first = join(0);
    sleep(SECOND * 5).await;
    drop(training);
    sleep(SECOND * 5).await;
    let validation = all([first, join(1)]).await;
    leave(validation).await;
}

/// A restarted process counts its loaders from 0.
#[tokio::test(start_paused = true)]
// semantics: RANK-12
async fn restarted_process_cannot_join_a_later_loader() {
    let job = Several::new(3);
    let place = Rendezvous::Host { host: "r0".to_owned(), ports: vec![7000] };
    leave(start(&job, 0, &place).await).await;
    let mut second = start(&job, 1, &place).await;
    drop(second.pop());
    sleep(SECOND * 5).await;
    let error = RendezvousSteps::join(settings(&job, 2, 0, &place)).await.unwrap_err().to_string();
    let expected = "rank 0 there has loader 2 of its process, and this is loader 1; a process that was \
         started again cannot";
    assert!(error.contains(expected), "{error}");
}

/// A loader that differs on one rank ends, and its address is free for the next.
#[tokio::test(start_paused = true)]
async fn failed_loader_is_removed_from_the_board() {
    let job = Several::new(2);
    let place = Rendezvous::Host { host: "r0".to_owned(), ports: vec![7000] };
    let training = start(&job, 0, &place).await;
    let ranks = [0, 1].map(|rank| {
        let settings = settings(&job, rank, 1, &place);
        tokio::spawn(async move {
            // The other rank may have given up before this one has received the roster.
            if let Ok(joining) = RendezvousSteps::join(settings).await {
                joining.give_up("the disk is full").await;
            }
        })
    });
    all(ranks).await;
    leave(start(&job, 2, &place).await).await;
    leave(training).await;
}

/// Evaluation on rank 0 alone: no other rank will come, and the error names the remedy.
#[tokio::test(start_paused = true)]
// semantics: RANK-13
async fn loader_made_by_rank_0_alone_fails_with_the_remedy() {
    let job = Several::new(2);
    let place = Rendezvous::Host { host: "r0".to_owned(), ports: vec![7000] };
    let training = start(&job, 0, &place).await;
    let shown = Arc::new(Mutex::new(Vec::new()));
    let shown_lines = Arc::clone(&shown);
    let progress = move |waiting: &_| shown_lines.lock().unwrap().push(format!("{waiting}"));
    let alone = RendezvousSettings { progress: Box::new(progress), ..settings(&job, 0, 1, &place) };
    let error = RendezvousSteps::join(alone).await.unwrap_err();
    assert_eq!(error.kind(), MeetErrorKind::Deadline);
    let remedy = "if only some ranks make this loader, set `rank` 0 and `world_size` 1 there";
    assert!(error.to_string().contains(remedy), "{error}");
    let shown = shown.lock().unwrap().clone();
    let has_remedy = |line: &String| line.starts_with("waiting for rank 1 (") && line.contains(remedy);
    assert!(shown.iter().any(has_remedy), "{shown:?}");
    leave(training).await;
}

/// Another run with the same job name may have the next port, and another token.
#[tokio::test(start_paused = true)]
async fn next_port_of_another_run_does_not_end_a_later_rendezvous() {
    let job = Several::new(2);
    let place = Rendezvous::Host { host: "r0".to_owned(), ports: vec![7000] };
    let first = start(&job, 0, &place).await;
    let strange = launched(0, 2, Rendezvous::Host { host: "r0".to_owned(), ports: vec![7001] });
    let token = foreread_peer::Token::new(crate::support::OTHER_TOKEN).unwrap();
    let strange = RendezvousSettings { token: Some(token), ..job.settings_of(strange) };
    let strange = tokio::spawn(async move { RendezvousSteps::join(strange).await.err() });
    let early = {
        let settings = settings(&job, 1, 1, &place);
        tokio::spawn(async move { begin(RendezvousSteps::join(settings).await.unwrap()).await.unwrap() })
    };
    sleep(SECOND * 5).await;
    let rank_0 = RendezvousSteps::join(settings(&job, 0, 1, &place)).await.unwrap();
    let second = vec![begin(rank_0).await.unwrap(), early.await.unwrap()];
    leave(second).await;
    leave(first).await;
    strange.abort();
}
