use foreread_tier::{Object, Span};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
use futures::Future;
use futures::future::join_all;

use super::*;

/// A server whose reads end when it may answer. Counts the reads that have begun.
#[derive(Clone, Debug, Default)]
struct Server(Arc<(Mutex<(usize, bool)>, Condvar)>);

impl BlockingRead for Server {
    const NAME: &'static str = "server";
    const THREAD: &'static str = "server";
    const ALWAYS_WAITS: bool = false;

    fn describe(_: &ReadRequest) -> String {
        String::new()
    }

    fn read(
        &self,
        _: &Arc<ReadJob>,
        steps: &mut impl ReadSteps,
    ) -> (Result<Bytes, TierError>, Option<OpenFile>) {
        steps.wait(ReadStep::Reading);
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        state.0 += 1;
        changed.notify_all();
        while !state.1 {
            state = changed.wait(state).unwrap();
        }
        (Ok(Bytes::new()), None)
    }
}

/// Asserts that so many of 60 reads of `size` bytes begin before any has ended.
#[track_caller]
fn assert_begun(bounds: PoolBounds, size: u64, expected: usize) {
    let server = Server::default();
    let pool = ReadPool::new(server.clone(), "server", bounds, None);
    let reads = (0..60).map(|number: u64| {
        let object = Object { path: format!("file-{number}").into(), size, version: None };
        let key = SampleKey::new(DatasetId(0), SampleId(number));
        pool.read(Arc::new(ReadRequest::new(key, object, Span::Whole, Tick(number))))
    });
    let mut all = Box::pin(join_all(reads.collect::<Vec<_>>()));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(all.as_mut().poll(&mut context).is_pending());
    pool.submit();
    let (state, changed) = &*server.0;
    let mut state = changed.wait_while(state.lock().unwrap(), |state| state.0 < expected).unwrap();
    {
        let pool = lock(&pool.0.state);
        assert!(pool.reads == expected && (!pool.may_begin(bounds, None) || pool.threads == bounds.reads));
    }
    state.1 = true;
    changed.notify_all();
    drop(state);
    assert!(futures::executor::block_on(all).iter().all(Result::is_ok));
    assert_eq!(server.0.0.lock().unwrap().0, 60);
}

#[test]
// semantics: FAIL-6
fn bytes_bound_large_reads_but_for_a_few() {
    let bounds = PoolBounds { reads: 32, bytes: 64 << 20 };
    assert_begun(bounds, 100 << 10, 32);
    assert_begun(bounds, 6 << 20, 11);
    assert_begun(bounds, 1 << 30, 8);
    assert_begun(PoolBounds { reads: 20, bytes: u64::MAX }, 1 << 30, 20);
    // Sizes that only damaged catalogs have.
    assert_begun(bounds, u64::MAX, 8);
    assert_begun(PoolBounds { reads: 3, bytes: 64 << 20 }, 1 << 30, 3);
}
