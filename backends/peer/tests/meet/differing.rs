//! Ranks with different settings.

use std::time::Duration;

use foreread_peer::meet::{MeetErrorKind, RendezvousSettings, RendezvousSteps};
use tokio::time::Instant;

use crate::support::{DEADLINE, Job, all, compare, context, words};

/// Every rank's error. All must have one.
async fn errors<F: Future<Output = Option<String>> + Send + 'static>(
    ranks: impl IntoIterator<Item = F>,
) -> Vec<String> {
    let began = Instant::now();
    let ranks: Vec<_> = ranks.into_iter().map(|rank| tokio::spawn(rank)).collect();
    let errors: Vec<_> = all(ranks).await.into_iter().map(|error| error.expect("every rank ends")).collect();
    assert!(began.elapsed() < DEADLINE + Duration::from_secs(11), "{:?}", began.elapsed());
    assert!(errors.iter().all(|error| !error.contains('\n')), "{errors:?}");
    errors
}

#[tokio::test(start_paused = true)]
// semantics: RANK-6
async fn different_world_size_or_version_is_reported_on_every_rank() {
    for (size, version, expected) in [
        (8, "1.0", "differs from rank 0: world size is 8, rank 0's is 4"),
        (4, "2.0", "differs from rank 0: version is 2.0, rank 0's is 1.0"),
    ] {
        let job = Job::new(4);
        let ranks = (0..4).map(|rank| {
            let (mut launched, mut of_rank) = (job.launched(rank), "1.0");
            if rank == 2 {
                (launched.world_size, of_rank) = (size, version);
            }
            let settings = RendezvousSettings { version: of_rank.to_owned(), ..job.settings_of(launched) };
            async move {
                // The last rank comes after the difference is known.
                tokio::time::sleep(Duration::from_secs(u64::from(rank))).await;
                RendezvousSteps::join(settings).await.err().map(|error| error.to_string())
            }
        });
        for error in errors(ranks).await {
            assert!(error.contains("rank 2 (process ") && error.contains(expected), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn different_seed_is_reported_on_every_rank() {
    let job = Job::new(5);
    let ranks = (0..5).map(|rank| {
        let settings = job.settings(rank);
        async move {
            let mut joining = RendezvousSteps::join(settings).await.unwrap();
            let seed = if rank == 3 { "7" } else { "5" };
            let error = compare(&mut joining, words(seed, "plan")).await.err()?;
            assert_eq!(error.kind(), MeetErrorKind::Differs);
            Some(error.to_string())
        }
    });
    for error in errors(ranks).await {
        assert_eq!(error, "rank 3 differs from rank 0: seed is 7, rank 0's is 5");
    }
}

#[tokio::test(start_paused = true)]
async fn differing_rank_0_is_reported() {
    let job = Job::new(4);
    let ranks = (0..4).map(|rank| {
        let settings = job.settings(rank);
        async move {
            let mut joining = RendezvousSteps::join(settings).await.unwrap();
            // Equal before planning, not after.
            compare(&mut joining, words("5", "")).await.unwrap();
            let plan = if rank == 0 { "a" } else { "b" };
            compare(&mut joining, words("5", plan)).await.err().map(|error| error.to_string())
        }
    });
    for error in errors(ranks).await {
        assert_eq!(error, "ranks 1, 2 and 3 differ from rank 0: plan is b, rank 0's is a");
    }
}

/// A difference is reported although another rank hangs.
#[tokio::test(start_paused = true)]
async fn difference_is_reported_although_another_rank_hangs() {
    let job = Job::new(4);
    let began = Instant::now();
    let ranks = (0..4).map(|rank| {
        let settings = job.settings(rank);
        async move {
            let mut joining = RendezvousSteps::join(settings).await.unwrap();
            if rank == 1 {
                tokio::time::sleep(DEADLINE / 3).await;
            }
            let seed = if rank == 3 { "7" } else { "5" };
            let error = compare(&mut joining, words(seed, "plan")).await.err().map(|error| error.to_string());
            if rank != 1 {
                assert!(began.elapsed() < DEADLINE / 6, "{:?}", began.elapsed());
            }
            error
        }
    });
    for error in errors(ranks).await {
        assert_eq!(error, "rank 3 differs from rank 0: seed is 7, rank 0's is 5");
    }
}

#[tokio::test(start_paused = true)]
async fn ranks_with_conflicting_steps_fail_with_the_reason() {
    let job = Job::new(3);
    let ranks = (0..3).map(|rank| {
        let settings = job.settings(rank);
        async move {
            let mut joining = RendezvousSteps::join(settings).await.unwrap();
            let error = match rank {
                2 => joining.start(Vec::new(), &[], &context()).await.err(),
                _ => compare(&mut joining, Vec::new()).await.err(),
            };
            error.map(|error| error.to_string())
        }
    });
    for error in errors(ranks).await {
        assert!(error.contains("same steps"), "{error}");
    }
}
