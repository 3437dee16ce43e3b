//! Other events around linked caches: ranks that are not in step or end early, other runs of the
//! process, and a program's own backend.

use std::sync::Arc;
use std::time::Duration;

use foreread::Registry;
use foreread::report::Report;
use foreread_tier::{Backend, OpenContext, OpenOptions, OriginTier, TierError};

use crate::rig::{Job, SAMPLES, read, samples_read, store};

/// Samples that were not read through a cache.
fn direct(reports: &[Report]) -> u64 {
    reports.iter().map(|report| report.agent.as_ref().map_or(u64::MAX, |agent| agent.direct_samples)).sum()
}

/// The first rank of a node hosts its cache, and may be the first that is done.
#[test]
// semantics: RANK-1, RANK-22, RANK-39
fn host_that_is_done_first_serves_the_others() {
    let (store, meet) = (store(), tempfile::tempdir().unwrap());
    for nodes in [&[0, 0, 0, 0][..], &[0, 0, 1, 1], &[0, 1, 2]] {
        let compute = |rank, _| Duration::from_millis(if rank == 0 { 0 } else { 4 });
        let job = Job { memory: SAMPLES, compute, ..Job::new(&store, meet.path(), nodes) };
        let reports = job.run();
        assert_eq!((samples_read(&reports), direct(&reports)), (SAMPLES, 0), "{nodes:?}");
    }
}

#[test]
// semantics: RANK-1, RANK-2, RANK-39
fn sixteen_ranks_of_two_nodes_that_are_not_in_step_read_once() {
    let (store, meet) = (store(), tempfile::tempdir().unwrap());
    let nodes: Vec<u32> = (0..16).map(|rank| rank / 8).collect();
    // Each rank is the slowest at some time.
    let compute = |rank, batch| Duration::from_millis(if (batch + u64::from(rank)) % 4 == 0 { 9 } else { 0 });
    let job = Job { epochs: 6, memory: SAMPLES / 8, compute, ..Job::new(&store, meet.path(), &nodes) };
    let reports = job.run();
    assert_eq!((samples_read(&reports), direct(&reports)), (SAMPLES, 0));
}

/// Two programs of a user, or two loaders of one, of which the first is closed before the other.
#[test]
// semantics: RANK-7, RANK-12, RANK-39
fn runs_at_the_same_time_share_nothing_and_end_apart() {
    let (store, [one, other]) = (store(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let nodes = [0, 0, 1, 1];
    let first = Job { epochs: 1, memory: SAMPLES, ..Job::new(&store, one.path(), &nodes) };
    let compute = |_, _| Duration::from_millis(3);
    let second = Job { epochs: 4, memory: SAMPLES, compute, ..Job::new(&store, other.path(), &nodes) };
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| first.run());
        (second.run(), first.join().unwrap())
    });
    for reports in [&first, &second] {
        assert_eq!((samples_read(reports), direct(reports)), (SAMPLES, 0));
    }
    // A second request may be cancelled before it has left.
    let most = read(&first) + read(&second);
    assert!((2 * SAMPLES..=most).contains(&store.requests().get), "{most}");
}

/// A backend that the program has made: buckets by another name.
#[derive(Debug)]
struct Mine;

#[async_trait::async_trait]
impl Backend for Mine {
    fn schemes(&self) -> &[&str] {
        &["mine"]
    }

    async fn open(
        &self,
        url: &str,
        options: &OpenOptions,
        context: &OpenContext,
    ) -> Result<Arc<dyn OriginTier>, TierError> {
        let bucket = url.replace("mine://", "s3://");
        Registry::with_defaults().find(&bucket).unwrap().open(&bucket, options, context).await
    }
}

/// Guards against this fault: the cache of a node could not open storage of a program's own
/// backend, and its ranks had caches of their own.
#[test]
// semantics: RANK-39
fn storage_of_a_programs_backend_is_read_through_linked_caches() {
    let (store, meet) = (store(), tempfile::tempdir().unwrap());
    for nodes in [&[0, 0][..], &[0, 0, 1, 1]] {
        let registry = Some(Registry::empty().register(Mine));
        let job = Job { memory: SAMPLES, registry, ..Job::new(&store, meet.path(), nodes) };
        let reports = job.run();
        assert_eq!((samples_read(&reports), direct(&reports)), (SAMPLES, 0), "{nodes:?}");
    }
}
