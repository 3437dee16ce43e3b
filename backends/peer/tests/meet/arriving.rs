//! Ranks that come in any order, twice, or never.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use foreread_peer::Token;
use foreread_peer::meet::{MeetErrorKind, RendezvousSettings, RendezvousSteps, RunEnd};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::support::{DEADLINE, Job, all, begin, compare};

const SECOND: Duration = Duration::from_secs(1);

/// A whole run, with ranks that come after `wait`.
async fn run(size: u32, wait: impl Fn(u32) -> Duration) {
    let job = Job::new(size);
    let ranks = (0..size).map(|rank| {
        job.spawn(rank, wait(rank), move |joining| async move {
            let group = begin(joining.unwrap()).await.unwrap();
            group.leave(DEADLINE).await
        })
    });
    let ranks: Vec<_> = ranks.collect();
    assert!(all(ranks).await.iter().all(|left| *left == RunEnd::Together));
}

#[tokio::test(start_paused = true)]
async fn ranks_meet_in_whatever_order_they_come() {
    for seed in 0..20_u64 {
        run(7, |rank| Duration::from_millis((seed * 7919 + u64::from(rank) * 104_729) % 9973)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn rank_0_may_come_last() {
    run(5, |rank| if rank == 0 { SECOND * 20 } else { Duration::ZERO }).await;
}

#[tokio::test(start_paused = true)]
async fn one_rank_meets_itself() {
    run(1, |_| Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
// semantics: RANK-14
async fn missing_rank_is_named_on_every_rank() {
    let job = Job::new(5);
    let began = Instant::now();
    let here = [0, 1, 2, 4].map(|rank| job.spawn(rank, SECOND * rank, |joined| async move { joined.err() }));
    for error in all(here).await {
        let error = error.unwrap();
        assert_eq!(error.kind(), MeetErrorKind::Deadline);
        assert!(error.to_string().contains("rank 3"), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    assert!(began.elapsed() < DEADLINE + SECOND * 7, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn missing_rank_0_error_names_the_searched_address() {
    let job = Job::new(3);
    let began = Instant::now();
    let here = [1, 2].map(|rank| job.spawn(rank, Duration::ZERO, |joined| async move { joined.err() }));
    for error in all(here).await {
        let error = error.unwrap();
        assert_eq!(error.kind(), MeetErrorKind::Deadline);
        assert!(error.to_string().contains("did not find rank 0 at r0:7000-7001 within 30 s"), "{error}");
    }
    assert!(began.elapsed() < DEADLINE + SECOND, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn progress_is_shown_on_every_rank() {
    let job = Job::new(4);
    let shown: Vec<_> = (0..3).map(|_| Arc::new(Mutex::new(Vec::new()))).collect();
    let ranks: Vec<_> = (0..3)
        .map(|rank| {
            let shown = Arc::clone(&shown[rank as usize]);
            let progress = move |waiting: &_| shown.lock().unwrap().push(format!("{waiting}"));
            let settings = RendezvousSettings { progress: Box::new(progress), ..job.settings(rank) };
            tokio::spawn(RendezvousSteps::join(settings))
        })
        .collect();
    let late = job.spawn(3, SECOND * 10, |joining| async move { joining.unwrap() });
    let joined = (all(ranks).await, late.await.unwrap());
    for shown in &shown {
        let lines = shown.lock().unwrap();
        let named = lines.iter().filter(|line| line.starts_with("waiting for rank 3 (")).count();
        assert!((7..=10).contains(&named), "{lines:?}");
        assert!(lines.iter().any(|line| line.ends_with("s of 30 s)")), "{lines:?}");
    }
    drop(joined);
}

#[tokio::test(start_paused = true)]
async fn second_process_of_a_rank_is_refused_and_the_first_continues() {
    let job = Job::new(3);
    let ranks = [0, 1, 2].map(|rank| {
        // The last rank comes late, so that all still wait when the duplicate comes.
        job.spawn(rank, SECOND * 10 * (rank / 2), move |joining| async move {
            let group = begin(joining.unwrap()).await.unwrap();
            tokio::time::sleep(SECOND * 20).await;
            group.leave(DEADLINE).await
        })
    });
    let double = job.spawn(1, SECOND, |joined| async move { joined.err() });
    let error = double.await.unwrap().unwrap();
    assert_eq!(error.kind(), MeetErrorKind::Setting, "{error}");
    assert!(error.to_string().contains(" is rank 1 twice: "), "{error}");
    assert!(all(ranks).await.iter().all(|left| *left == RunEnd::Together));
}

#[tokio::test(start_paused = true)]
async fn second_rank_0_is_refused() {
    let job = Job::new(2);
    let first = job.spawn(0, Duration::ZERO, |joined| async move { joined });
    let second = job.spawn(0, SECOND, |joined| async move { joined.err() });
    let error = second.await.unwrap().unwrap();
    // One process plays both here.
    assert!(
        error.to_string().contains(" is rank 0 twice: another of its loaders meets at the same address"),
        "{error}"
    );
    let other = job.spawn(1, Duration::ZERO, |joined| async move { joined });
    let (first, other) = (first.await.unwrap(), other.await.unwrap());
    assert!(first.is_ok() && other.is_ok());
}

#[tokio::test(start_paused = true)]
async fn port_of_another_program_is_skipped() {
    let job = Job::new(3);
    let taken = foreread_peer::Address::tcp("r0", 7000);
    let mut another = job.network.host("r0").listen(&taken).await.unwrap();
    let answers = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok(connection) = another.accept().await {
            held.push(connection);
        }
    });
    let groups = job.start().await;
    assert_eq!(groups.len(), 3);
    answers.abort();
}

#[tokio::test(start_paused = true)]
// semantics: RANK-15
async fn other_token_is_shown_at_once_and_fails_after_a_minute() {
    let job = Job::new(3);
    let shown = Arc::new(Mutex::new(Vec::new()));
    let began = Instant::now();
    let here = [0, 1].map(|rank| {
        let shown = Arc::clone(&shown);
        let progress = move |waiting: &_| shown.lock().unwrap().push(format!("{rank}: {waiting}"));
        let settings =
            RendezvousSettings { deadline: SECOND * 300, progress: Box::new(progress), ..job.settings(rank) };
        tokio::spawn(async move { RendezvousSteps::join(settings).await.err() })
    });
    // Independent of the deadline, and no longer than that.
    let mut strange = Vec::new();
    for deadline in [SECOND * 300, DEADLINE / 2] {
        let shown_lines = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&shown_lines);
        let progress = move |waiting: &_| lines.lock().unwrap().push((began.elapsed(), format!("{waiting}")));
        let settings = RendezvousSettings {
            token: Some(Token::new(crate::support::OTHER_TOKEN).unwrap()),
            ..job.settings(2)
        };
        let settings = RendezvousSettings { deadline, progress: Box::new(progress), ..settings };
        let joined = async move { (RendezvousSteps::join(settings).await.err(), began.elapsed()) };
        strange.push((deadline, shown_lines, tokio::spawn(joined)));
    }
    for (deadline, shown_lines, joined) in strange {
        let (error, after) = joined.await.unwrap();
        let error = error.unwrap();
        assert_eq!(error.kind(), MeetErrorKind::Secret);
        let line = "rank 2 has another token than rank 0 at r0:7000: give all ranks the same \
             FOREREAD_TOKEN";
        assert_eq!(error.to_string(), line);
        let least = deadline.min(SECOND * 60);
        assert!((least..least + SECOND * 3).contains(&after), "{after:?} of {deadline:?}");
        let lines = shown_lines.lock().unwrap().clone();
        assert!(lines.iter().all(|(_, line)| !line.contains("only some ranks")), "{lines:?}");
        let (first, expected) = lines[0].clone();
        assert!(first < SECOND, "{first:?}: {expected}");
        assert!(expected.contains("the process at r0:7000 has another token (FOREREAD_TOKEN)"), "{expected}");
    }
    let came = "it came with another token (FOREREAD_TOKEN) and claims to be rank 2";
    for error in all(here).await {
        let error = error.unwrap().to_string();
        assert!(error.contains("rank 2"), "{error}");
    }
    assert!(began.elapsed() < SECOND * 307, "{:?}", began.elapsed());
    let shown = shown.lock().unwrap();
    for rank in ["0: ", "1: "] {
        let named = shown.iter().filter(|line| line.starts_with(rank) && line.contains(came));
        assert!(named.count() > 20, "{shown:?}");
    }
    // The reason is known, so other reasons would mislead.
    let misled = shown.iter().find(|line| line.contains(came) && line.contains("only some ranks"));
    assert_eq!(misled, None);
}

/// A process without the token that listens at a port before rank 0 does.
async fn unauthenticated_peer(mut stream: foreread_peer::BoxedStream, reply: &str) {
    let mut hello = [0; 100];
    let Ok(1..) = stream.read(&mut hello).await else { return };
    let mut challenge = [0; 40];
    challenge[..5].copy_from_slice(b"FRDH\x05");
    match reply {
        "another version" => challenge[4] = 9,
        "another token" => challenge[5] = 3,
        "nonsense" => challenge.fill(7),
        "nothing" => return tokio::time::sleep(SECOND * 1000).await,
        _ => {}
    }
    // The other end may be closed.
    let _ = stream.write_all(&challenge).await;
    let _ = stream.read(&mut hello).await;
}

/// Its replies can be forged. A rank fails only if rank 0 cannot be found before the deadline.
#[tokio::test(start_paused = true)]
// semantics: RANK-15
async fn unauthenticated_listener_before_rank_0_ends_no_rank() {
    for reply in ["another version", "another token", "nonsense", "nothing", "good-bye"] {
        for port in [7000, 7001] {
            let job = Job::new(3);
            let at = foreread_peer::Address::tcp("r0", port);
            let mut listener = job.network.host("r0").listen(&at).await.unwrap();
            let sits = tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(unauthenticated_peer(stream, reply));
                }
            });
            let ranks: Vec<_> = (0..3)
                .map(|rank| {
                    let wait = if rank == 0 { SECOND * 20 } else { Duration::ZERO };
                    job.spawn(rank, wait, move |joining| async move {
                        let joining = joining.map_err(|error| format!("{reply} at {port}: {error}"));
                        begin(joining.unwrap()).await.unwrap().leave(DEADLINE).await
                    })
                })
                .collect();
            assert!(all(ranks).await.iter().all(|left| *left == RunEnd::Together), "{reply}");
            sits.abort();
        }
    }
}

#[tokio::test(start_paused = true)]
// semantics: RANK-15
async fn other_version_in_rank_0s_place_is_named_at_the_deadline() {
    let job = Job::new(2);
    let at = foreread_peer::Address::tcp("r0", 7000);
    let mut listener = job.network.host("r0").listen(&at).await.unwrap();
    let sits = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(unauthenticated_peer(stream, "another version"));
        }
    });
    let began = Instant::now();
    let error = RendezvousSteps::join(job.settings(1)).await.unwrap_err();
    assert!(began.elapsed() >= DEADLINE, "{:?}", began.elapsed());
    let expected = "the last attempt: r0:7000: it speaks version 9 between ranks, this program 5: run one \
         version on all ranks";
    assert!(error.to_string().contains(expected), "{error}");
    sits.abort();
}

#[tokio::test(start_paused = true)]
// semantics: RANK-15
async fn rank_of_another_version_is_named_by_rank_0() {
    let job = Job::new(2);
    let first = job.spawn(0, Duration::ZERO, |joining| async { joining.unwrap_err().to_string() });
    tokio::time::sleep(SECOND).await;
    let at = foreread_peer::Address::tcp("r0", 7000);
    let mut stream = job.network.host("r1").connect(&at).await.unwrap();
    let of_job = job.launched(1).job_hash().to_le_bytes();
    let hello = [b"FRDH\x04\x02\0\0\x01\0\0\0", &of_job[..], &[7; 72]].concat();
    stream.write_all(&hello).await.unwrap();
    let error = first.await.unwrap();
    let expected = "it speaks version 4 between ranks, this program 5: run one version on all ranks";
    assert!(error.contains("rank 1 of 2 did not come") && error.contains(expected), "{error}");
}

/// A process that once claimed a rank does not make the rank's own restart a duplicate.
#[tokio::test(start_paused = true)]
async fn restarted_rank_is_admitted_after_another_claim() {
    let job = Job::new(3);
    let groups = job.start().await;
    let double = job.spawn(1, Duration::ZERO, |joined| async move { joined.err() });
    tokio::time::sleep(SECOND * 3).await;
    double.abort();
    tokio::time::sleep(SECOND * 60).await;
    // Its machine dies without notice, and another one restarts the rank before that is detected.
    job.network.cut("r0", "r1");
    tokio::time::sleep(SECOND).await;
    let settings = RendezvousSettings { network: job.network.host("another"), ..job.settings(1) };
    let again = begin(RendezvousSteps::join(settings).await.unwrap()).await.unwrap();
    assert_eq!(again.run(), groups[0].run());
}

/// Another job's rank 0 has the first port of the same name: the ranks try the next.
#[tokio::test(start_paused = true)]
async fn port_of_a_job_with_another_token_is_skipped() {
    let job = Job::new(3);
    let other = RendezvousSettings {
        token: Some(Token::new(crate::support::OTHER_TOKEN).unwrap()),
        ..job.settings(0)
    };
    let other = tokio::spawn(async move { RendezvousSteps::join(other).await.err() });
    tokio::time::sleep(SECOND / 2).await;
    let groups = job.start().await;
    assert_eq!(groups.len(), 3);
    other.abort();
}

#[tokio::test(start_paused = true)]
// semantics: RANK-9
async fn broken_connections_of_a_rendezvous_are_reconnected() {
    let job = Job::new(4);
    let ranks: Vec<_> = (0..4)
        .map(|rank| {
            job.spawn(rank, SECOND * 3 * rank, move |joining| async move {
                let group = begin(joining.unwrap()).await.unwrap();
                group.leave(DEADLINE).await
            })
        })
        .collect();
    for step in 0..40 {
        tokio::time::sleep(Duration::from_millis(230)).await;
        job.network.sever("r0", &format!("r{}", 1 + step % 3));
    }
    assert!(all(ranks).await.iter().all(|left| *left == RunEnd::Together));
}

#[tokio::test(start_paused = true)]
async fn rank_that_gives_up_ends_all_ranks_with_its_reason() {
    let job = Job::new(4);
    let ranks: Vec<_> = (0..4)
        .map(|rank| {
            job.spawn(rank, Duration::ZERO, move |joining| async move {
                let mut joining = joining.unwrap();
                if rank == 2 {
                    joining.give_up("its disk is full").await;
                    return None;
                }
                compare(&mut joining, Vec::new()).await.err()
            })
        })
        .collect();
    let errors: Vec<_> = all(ranks).await.into_iter().flatten().map(|error| error.to_string()).collect();
    assert_eq!(errors.len(), 3);
    assert!(
        errors.iter().all(|e| e.starts_with("rank 2 (process ") && e.ends_with("gave up: its disk is full")),
        "{errors:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn rank_that_ends_silently_does_not_delay_the_others() {
    for who in [0, 2] {
        let job = Job::new(4);
        let began = Instant::now();
        let ranks: Vec<_> = (0..4)
            .map(|rank| {
                job.spawn(rank, Duration::ZERO, move |joining| async move {
                    match joining {
                        Ok(_) if rank == who => None,
                        Ok(mut joining) => compare(&mut joining, Vec::new()).await.err(),
                        // Rank 0 may be gone before all ranks have received the roster.
                        Err(error) => Some(error),
                    }
                })
            })
            .collect();
        let errors: Vec<_> = all(ranks).await.into_iter().flatten().collect();
        assert_eq!(errors.len(), 3);
        for error in errors {
            assert!(error.to_string().contains(&format!("rank {who} ")), "{error}");
            assert!(error.to_string().contains("it ended before the start"), "{error}");
        }
        assert!(began.elapsed() < SECOND * 5, "{:?}", began.elapsed());
    }
}

/// The process or cable of a rank is gone before the start: the others do not wait for the whole
/// deadline.
#[tokio::test(start_paused = true)]
async fn disconnected_rank_is_named_soon_on_every_rank() {
    let job = Job::new(4);
    let began = Instant::now();
    let shown = Arc::new(Mutex::new(Vec::new()));
    let ranks: Vec<_> = (0..4)
        .map(|rank| {
            let shown = Arc::clone(&shown);
            let progress = move |waiting: &_| shown.lock().unwrap().push(format!("{rank}: {waiting}"));
            let settings = RendezvousSettings {
                deadline: SECOND * 300,
                progress: Box::new(progress),
                ..job.settings(rank)
            };
            tokio::spawn(async move {
                let mut joining = RendezvousSteps::join(settings).await.unwrap();
                tokio::time::sleep(SECOND * if rank == 1 { 5 } else { 1 }).await;
                compare(&mut joining, Vec::new()).await.unwrap_err()
            })
        })
        .collect();
    tokio::time::sleep(SECOND * 2).await;
    job.network.cut("r0", "r1");
    for (rank, error) in all(ranks).await.into_iter().enumerate() {
        assert_eq!(error.kind(), MeetErrorKind::Deadline, "{error}");
        let who = if rank == 1 { "rank 0 (process " } else { "rank 1 (process " };
        assert!(error.to_string().starts_with(who), "{error}");
        assert!(error.to_string().contains("was connected and is gone"), "{error}");
    }
    assert!(began.elapsed() < SECOND * 60, "{:?}", began.elapsed());
    let shown = shown.lock().unwrap();
    for rank in 0..4 {
        let who = if rank == 1 { "rank 0 (process " } else { "rank 1 (process " };
        let start = format!("{rank}: waiting for rank {} (", u32::from(rank != 1));
        let expected =
            |line: &&String| line.starts_with(&start) && line.contains(who) && line.contains("is gone");
        assert!(shown.iter().filter(expected).count() > 10, "{shown:?}");
    }
}

/// A listing may take much longer than the deadline, as long as progress is reported.
#[tokio::test(start_paused = true)]
// semantics: RANK-14
async fn progressing_work_is_waited_for() {
    let job = Job::new(3);
    let ranks: Vec<_> = (0..3)
        .map(|rank| {
            job.spawn(rank, Duration::ZERO, move |joining| async move {
                let mut joining = joining.unwrap();
                for step in 0..10 {
                    if rank == 0 {
                        tokio::time::sleep(DEADLINE / 2).await;
                        joining.working(&format!("listing: {step}")).await;
                    }
                }
                (joining.share(Some("all".into())).await, joining)
            })
        })
        .collect();
    for (shared, _) in all(ranks).await {
        assert_eq!(shared.unwrap(), "all");
    }
}

#[tokio::test(start_paused = true)]
async fn rank_that_hangs_at_a_step_is_named() {
    let job = Job::new(3);
    let ranks: Vec<_> = (0..3)
        .map(|rank| {
            job.spawn(rank, Duration::ZERO, move |joining| async move {
                let mut joining = joining.unwrap();
                if rank == 1 {
                    tokio::time::sleep(DEADLINE * 3).await;
                }
                compare(&mut joining, Vec::new()).await.err().map(|error| error.to_string())
            })
        })
        .collect();
    let errors = all(ranks).await;
    for rank in [0, 2] {
        let error = errors[rank].as_ref().unwrap();
        assert!(error.contains("rank 1"), "{error}");
    }
}

/// Rank 0 is gone when a rank sends again after a long computation.
#[tokio::test(start_paused = true)]
async fn busy_rank_receives_the_reason_of_the_end() {
    let job = Job::new(3);
    let first = job.spawn(0, Duration::ZERO, |joining| async {
        compare(&mut joining.unwrap(), Vec::new()).await.unwrap_err().to_string()
    });
    let busy = job.spawn(1, Duration::ZERO, |joining| async {
        let mut joining = joining.unwrap();
        tokio::time::sleep(SECOND * 20).await;
        joining.working("computes").await;
        compare(&mut joining, Vec::new()).await.unwrap_err().to_string()
    });
    let ends = job.spawn(2, Duration::ZERO, |joining| async {
        joining.unwrap().give_up("its disk is full").await;
        String::new()
    });
    for error in &all([first, busy, ends]).await[..2] {
        assert!(error.ends_with("gave up: its disk is full"), "{error}");
    }
}
