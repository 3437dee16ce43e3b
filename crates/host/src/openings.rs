//! Openings under way, by key: one for all callers that need it.
//!
//! Storage may take long to open, or hang for ever. So each opening is a task of its own, which
//! outlives its callers. A caller waits until its deadline, and for its own keys alone.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use foreread_tier::lock;
use futures::future::{BoxFuture, FutureExt, Shared};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

/// The result of an opening: its value, or the reason of a failure.
type Opened<V> = Result<V, String>;

/// Openings under way.
pub(crate) struct Openings<K, V>(Arc<OpeningTable<K, V>>);

type OpeningTable<K, V> = Mutex<HashMap<K, Shared<BoxFuture<'static, Opened<V>>>>>;

impl<K, V> Clone for Openings<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K, V> Default for Openings<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash + Send + 'static, V: Clone + Send + Sync + 'static> Openings<K, V> {
    /// Waits until `deadline` for the opening of a key, which begins unless it is under way. `None`
    /// after the deadline. `open` returns the work, or `None` if there is nothing to begin.
    pub(crate) async fn wait(
        &self,
        key: &K,
        deadline: Instant,
        runtime: &Handle,
        open: impl FnOnce() -> BoxFuture<'static, Opened<V>>,
    ) -> Option<Opened<V>> {
        let opening = {
            let mut table = lock(&self.0);
            let known = table.get(key).cloned();
            known.unwrap_or_else(|| {
                let (work, ended, of) = (open(), Arc::clone(&self.0), key.clone());
                let task = runtime.spawn(async move {
                    // Made here, not before: a runtime that ends drops the task within this lock.
                    let _under_way = UnderWay(ended, of);
                    work.await
                });
                let opening = async move { task.await.unwrap_or_else(|error| Err(error.to_string())) };
                let opening = opening.boxed().shared();
                table.insert(key.clone(), opening.clone());
                opening
            })
        };
        timeout_at(deadline, opening).await.ok()
    }

    /// Whether a key is being opened.
    pub(crate) fn contains(&self, key: &K) -> bool {
        lock(&self.0).contains_key(key)
    }
}

/// Removes an opening that has ended, by a panic, too.
struct UnderWay<K: Eq + Hash, V>(Arc<OpeningTable<K, V>>, K);

impl<K: Eq + Hash, V> Drop for UnderWay<K, V> {
    fn drop(&mut self) {
        lock(&self.0).remove(&self.1);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    // semantics: AGENT-28
    async fn opening_that_hangs_delays_its_own_key_alone() {
        let (openings, runtime) = (Openings::<u32, u32>::default(), Handle::current());
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        for _ in 0..2 {
            assert_eq!(openings.wait(&1, now, &runtime, || Box::pin(pending())).await, None);
        }
        assert!(openings.contains(&1));
        let other = openings.wait(&2, later, &runtime, || Box::pin(ready(Ok(7))));
        assert_eq!(other.await, Some(Ok(7)));
        assert!(!openings.contains(&2), "it is opened again after a failure");
    }

    #[tokio::test]
    async fn opening_that_panics_is_begun_again() {
        let (openings, runtime) = (Openings::<u32, u32>::default(), Handle::current());
        let later = Instant::now() + Duration::from_secs(60);
        let failed = openings.wait(&1, later, &runtime, || Box::pin(async { panic!("a fault") })).await;
        assert!(matches!(failed, Some(Err(_))), "{failed:?}");
        assert_eq!(openings.wait(&1, later, &runtime, || Box::pin(ready(Ok(7)))).await, Some(Ok(7)));
    }

    #[tokio::test]
    async fn opening_is_shared_and_outlives_its_callers() {
        let (openings, runtime) = (Openings::<u32, u32>::default(), Handle::current());
        let (done, result) = tokio::sync::oneshot::channel();
        let work = Box::pin(async move { result.await.map_err(|_| "gone".to_owned()) });
        assert_eq!(openings.wait(&1, Instant::now(), &runtime, || work).await, None);
        let later = Instant::now() + Duration::from_secs(60);
        let second = openings.wait(&1, later, &runtime, || unreachable!("it is under way"));
        done.send(5).unwrap();
        assert_eq!(second.await, Some(Ok(5)));
    }
}
