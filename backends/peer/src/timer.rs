//! The timer of a task that looks again and again for when it has to look next.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer, which is there once it was needed.
#[derive(Default)]
pub(crate) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Whether it has rung, by `next` at the latest. One that rings earlier is let ring: putting it off at each frame would
    /// cost more.
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
