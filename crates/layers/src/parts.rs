//! A read with several waiters: each has a part of it, and it is dropped with its last part.
//!
//! One of the parts polls it, so a wake-up costs one poll, whatever the number of parts.
//! `futures::future::Shared` wakes all of them: an answer in a hundred pieces for eight thousand
//! parts would be polled a million times. The other parts are woken by the answer alone. A part
//! that is dropped passes the polling on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};

use foreread_tier::lock;
use futures::FutureExt;
use futures::future::BoxFuture;

/// Makes an answer for all parts from a panic of the read.
type PanicHandler<T> = Box<dyn Fn(&str) -> T + Send>;

struct SharedRead<T>(Mutex<SharedReadState<T>>);

struct SharedReadState<T> {
    /// `None` after its end.
    read: Option<BoxFuture<'static, T>>,
    answer: Option<T>,
    /// The part that polls.
    poller: Option<usize>,
    wakers: Vec<Option<Waker>>,
    panicked: PanicHandler<T>,
}

impl<T> SharedRead<T> {}

/// One waiter of a shared read.
pub(crate) struct ReadPart<T> {
    whole: Arc<SharedRead<T>>,
    number: usize,
}

/// Splits `read` into `count` parts. If it panics, all of them get the answer of `panicked`.
pub(crate) fn parts<T>(
    read: BoxFuture<'static, T>,
    count: usize,
    panicked: impl Fn(&str) -> T + Send + 'static,
) -> impl Iterator<Item = ReadPart<T>> {
    let panicked = Box::new(panicked);
    let state =
        SharedReadState { read: Some(read), answer: None, poller: None, wakers: vec![None; count], panicked };
    let whole = Arc::new(SharedRead(Mutex::new(state)));
    (0..count).map(move |number| ReadPart { whole: Arc::clone(&whole), number })
}

impl<T: Clone> Future for ReadPart<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let (answer, wakers) = {
            let mut state = lock(&self.whole.0);
            let state = &mut *state;
            if let Some(answer) = &state.answer {
                return Poll::Ready(answer.clone());
            }
            if *state.poller.get_or_insert(self.number) != self.number {
                state.wakers[self.number] = Some(cx.waker().clone());
                return Poll::Pending;
            }
            // It exists until the answer.
            let Some(read) = &mut state.read else { return Poll::Pending };
            let answer = match catch_unwind(AssertUnwindSafe(|| read.poll_unpin(cx))) {
                Ok(answer) => ready!(answer),
                Err(panic) => {
                    let text = panic.downcast_ref::<&str>().copied();
                    let text = text.or_else(|| panic.downcast_ref::<String>().map(|text| &**text));
                    (state.panicked)(text.unwrap_or("without a message"))
                }
            };
            (state.answer, state.read) = (Some(answer.clone()), None);
            (answer, std::mem::take(&mut state.wakers))
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
        Poll::Ready(answer)
    }
}

impl<T> Drop for ReadPart<T> {
    fn drop(&mut self) {
        let next = {
            let mut state = lock(&self.whole.0);
            if let Some(waker) = state.wakers.get_mut(self.number) {
                *waker = None;
            }
            // Without a poller, this part may have been woken to poll and not have done so.
            if state.answer.is_some() || state.poller.is_some_and(|poller| poller != self.number) {
                return;
            }
            state.poller = None;
            // The next part to be polled becomes the poller. A part that was polled before is
            // woken.
            state.wakers.iter_mut().find_map(Option::take)
        };
        next.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::poll_fn;
    use futures::stream::FuturesUnordered;
    use futures::{StreamExt, poll};
    use tokio::sync::Notify;

    use super::*;

    /// A read that ends at the given number of wake-ups, and how often it was polled.
    fn read(wakes: usize) -> (Arc<Notify>, Arc<AtomicUsize>, BoxFuture<'static, usize>) {
        let (notify, polls) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (wake, counted) = (Arc::clone(&notify), Arc::clone(&polls));
        let mut work = Box::pin(async move {
            for _ in 0..wakes {
                wake.notified().await;
            }
            wakes
        });
        let read = poll_fn(move |cx| {
            counted.fetch_add(1, Ordering::Relaxed);
            work.as_mut().poll(cx)
        });
        (notify, polls, read.boxed())
    }

    fn never(_: &str) -> usize {
        unreachable!()
    }

    #[tokio::test(start_paused = true)]
    // semantics: FAIL-13
    async fn read_is_polled_once_per_wake() {
        for count in [1, 10, 1000] {
            let (notify, polls, read) = read(100);
            let all: FuturesUnordered<_> = parts(read, count, never).collect();
            let all = tokio::spawn(all.collect::<Vec<_>>());
            while !all.is_finished() {
                notify.notify_one();
                tokio::task::yield_now().await;
            }
            assert_eq!(all.await.unwrap(), vec![100; count]);
            assert!(polls.load(Ordering::Relaxed) <= 102, "{polls:?} polls for {count} parts");
        }
    }

    /// The part that was woken to take over polling was dropped before it did.
    #[tokio::test(start_paused = true)]
    async fn polling_passes_on_when_a_part_is_dropped() {
        let (notify, _, read) = read(1);
        let mut all: Vec<_> =
            parts(read, 4, never).map(|part| ManualPart(Box::pin(part), Arc::default())).collect();
        for part in &mut all {
            assert!(part.poll_once());
        }
        let mut last = all.pop().unwrap();
        // The poller, then the part that it has woken, before that is polled.
        all.into_iter().for_each(drop);
        assert!(last.woken(), "no part polls");
        assert!(last.poll_once());
        notify.notify_one();
        assert!(!last.poll_once());
    }

    /// A part that is polled by hand, with a separate waker.
    struct ManualPart(Pin<Box<ReadPart<usize>>>, Arc<WakeFlag>);

    #[derive(Default)]
    struct WakeFlag(std::sync::atomic::AtomicBool);

    impl std::task::Wake for WakeFlag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    impl ManualPart {
        /// Whether it still waits.
        fn poll_once(&mut self) -> bool {
            let waker = Waker::from(Arc::clone(&self.1));
            self.0.as_mut().poll(&mut Context::from_waker(&waker)).is_pending()
        }

        fn woken(&self) -> bool {
            self.1.0.load(Ordering::Relaxed)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn panic_is_the_answer_of_all_parts() {
        let read = async { panic!("the origin's own words") };
        let mut all: Vec<_> = parts(read.boxed(), 3, str::to_owned).collect();
        for part in &mut all {
            assert_eq!(poll!(part), Poll::Ready("the origin's own words".to_owned()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn read_ends_with_its_last_part() {
        let (notify, _, read) = read(1);
        let mut all: Vec<_> = parts(read, 3, never).collect();
        assert!(poll!(&mut all[0]).is_pending());
        all.truncate(1);
        assert_eq!(Arc::strong_count(&notify), 2);
        drop(all);
        assert_eq!(Arc::strong_count(&notify), 1);
    }
}
