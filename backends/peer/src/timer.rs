//! A timer for tasks that poll state machines with deadlines.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer that is allocated by its first use.
#[derive(Default)]
pub(crate) struct PollTimer(Option<Pin<Box<Sleep>>>);

impl PollTimer {
    /// Ready at `next` at the latest. An earlier deadline is kept, because resetting the timer at
    /// each frame would cost more than a spurious wake-up.
    pub(crate) fn poll(&mut self, next: Instant, now: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let timer = match &mut self.0 {
            Some(timer) if timer.deadline() <= now || timer.deadline() > next => {
                timer.as_mut().reset(next);
                timer
            }
            Some(timer) => timer,
            None => self.0.insert(Box::pin(sleep_until(next))),
        };
        Future::poll(timer.as_mut(), cx)
    }
}
