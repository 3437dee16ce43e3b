//! Measures how long the trainer waits for other ranks.
//!
//! A slow answer of another rank matters only while the trainer waits. After [`HEDGE_AFTER`], and
//! every [`POLL_INTERVAL`] from then on, the core decides which samples are hedged. Only time in
//! which this process ran counts, because a stopped process finds the answers that arrived
//! meanwhile. The price is a timer that fires ten times per second while the trainer waits.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// The wait after which reads may be hedged.
pub(crate) const HEDGE_AFTER: Duration = Duration::from_secs(1);

/// The time between two decisions.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The current wait of the trainer, if any.
#[derive(Debug, Default)]
pub(crate) struct WaitTimer {
    waits: Option<TrainerWait>,
    /// Reused, because waits begin and end all the time.
    timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
struct TrainerWait {
    polled: Instant,
    waited: Duration,
}

impl WaitTimer {
    /// Starts a wait.
    pub(crate) fn begin(&mut self) {
        self.waits = Some(TrainerWait { polled: Instant::now(), waited: Duration::ZERO });
    }

    /// Ends the wait.
    pub(crate) fn end(&mut self) {
        self.waits = None;
    }

    /// The time waited, to a tenth of a second.
    pub(crate) fn waited(&self) -> Duration {
        self.waits.as_ref().map_or(Duration::ZERO, |wait| wait.waited)
    }

    /// Completes after [`HEDGE_AFTER`] of waiting, and then every [`POLL_INTERVAL`].
    pub(crate) async fn fired(&mut self) {
        std::future::poll_fn(|cx| self.poll_fired(cx)).await;
    }

    fn poll_fired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(wait) = &mut self.waits else { return Poll::Pending };
            let next = wait.polled + POLL_INTERVAL;
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(next)));
            // A timer of an earlier wait may fire early and is re-armed.
            if timer.is_elapsed() || timer.deadline() > next {
                timer.as_mut().reset(next);
            }
            ready!(Future::poll(timer.as_mut(), cx));
            let now = Instant::now();
            if now < next {
                continue;
            }
            wait.waited += now.duration_since(wait.polled).min(2 * POLL_INTERVAL);
            wait.polled = now;
            if wait.waited >= HEDGE_AFTER {
                return Poll::Ready(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    // semantics: RANK-18
    async fn wait_timer_fires_after_a_second_and_only_during_a_wait() {
        let mut timer_of_waits = WaitTimer::default();
        assert!(timeout(10 * HEDGE_AFTER, timer_of_waits.fired()).await.is_err());
        for _ in 0..5 {
            timer_of_waits.begin();
            assert!(timeout(HEDGE_AFTER - POLL_INTERVAL / 2, timer_of_waits.fired()).await.is_err());
            timer_of_waits.end();
        }
        timer_of_waits.begin();
        let began = Instant::now();
        for number in 0..8 {
            timer_of_waits.fired().await;
            assert_eq!(began.elapsed(), SECOND + SECOND / 10 * number);
            assert_eq!(timer_of_waits.waited(), began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stopped_time_of_the_process_does_not_count() {
        let mut timer_of_waits = WaitTimer::default();
        timer_of_waits.begin();
        assert!(timeout(HEDGE_AFTER / 2, timer_of_waits.fired()).await.is_err());
        advance(20 * HEDGE_AFTER).await;
        let resumed = Instant::now();
        timer_of_waits.fired().await;
        assert!(resumed.elapsed() >= HEDGE_AFTER / 2 - 2 * POLL_INTERVAL, "{:?}", resumed.elapsed());
        assert!(timer_of_waits.waited() < 2 * HEDGE_AFTER);
    }
}
