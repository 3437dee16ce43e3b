//! Retries of a listing's system calls while a file server is away.
//!
//! The retry layer does not cover listings, and one failed call would end an hour of work. So each
//! call is repeated with growing waits of two minutes in all, the same as for reads. If that fails
//! once, the server counts as lost, and no other call of the listing waits. The price is two
//! minutes until an error is reported.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;

use crate::error::is_of_a_server;

/// The waits before further attempts, in milliseconds.
const WAITS: [u64; 8] = [100, 300, 1_000, 3_000, 10_000, 20_000, 40_000, 45_000];

/// The retry state of a listing.
#[derive(Debug, Default)]
pub(crate) struct ListRetry {
    /// All retries of a call have failed.
    lost: AtomicBool,
}

impl ListRetry {
    /// Calls until success or a permanent error. `wait` returns `false` once the listing was
    /// dropped. `is_device` decides whether `EIO` comes from a disk, which does not recover.
    pub(crate) fn call<T>(
        &self,
        mut call: impl FnMut() -> Result<T, Errno>,
        is_device: impl Fn() -> bool,
        mut wait: impl FnMut(Duration) -> bool,
    ) -> Result<T, Errno> {
        let mut waits = WAITS.iter();
        loop {
            let errno = match call() {
                Err(Errno::INTR) => continue,
                Err(errno) if is_of_a_server(errno) && !(errno == Errno::IO && is_device()) => errno,
                done => return done,
            };
            let next = waits.next().filter(|_| !self.lost.load(Ordering::Relaxed));
            let Some(&milliseconds) = next else {
                self.lost.store(true, Ordering::Relaxed);
                return Err(errno);
            };
            tracing::debug!(%errno, milliseconds, "a call of the listing is repeated");
            if !wait(Duration::from_millis(milliseconds)) {
                return Err(errno);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes calls that fail with `errnos` in order and then succeed. Returns the result and the
    /// total wait.
    fn calls(retry: &ListRetry, errnos: &[Errno], is_device: bool) -> (Result<u32, Errno>, Duration) {
        let (mut errnos, mut waited) = (errnos.iter(), Duration::ZERO);
        let done = retry.call(
            || errnos.next().map_or(Ok(7), |errno| Err(*errno)),
            || is_device,
            |time| {
                waited += time;
                true
            },
        );
        (done, waited)
    }

    #[test]
    // semantics: FAIL-5
    fn listing_outlives_a_file_server_that_restarts() {
        let retry = ListRetry::default();
        let errnos = [Errno::SHUTDOWN, Errno::NOTCONN, Errno::STALE, Errno::INTR, Errno::IO];
        let (done, waited) = calls(&retry, &errnos, false);
        assert_eq!((done, waited), (Ok(7), Duration::from_millis(4_400)));
        assert_eq!(calls(&retry, &[Errno::NOENT], false), (Err(Errno::NOENT), Duration::ZERO));
        assert_eq!(calls(&retry, &[Errno::IO], true), (Err(Errno::IO), Duration::ZERO));
    }

    #[test]
    // semantics: FAIL-5
    fn file_server_that_stays_away_costs_two_minutes_once() {
        let retry = ListRetry::default();
        let (done, waited) = calls(&retry, &[Errno::NOTCONN; 100], false);
        assert_eq!(done, Err(Errno::NOTCONN));
        assert!((100..=120).contains(&waited.as_secs()), "{waited:?}");
        assert_eq!(calls(&retry, &[Errno::NOTCONN; 100], false), (Err(Errno::NOTCONN), Duration::ZERO));
    }

    #[test]
    fn abandoned_listing_does_not_wait() {
        let retry = ListRetry::default();
        let mut waits = 0;
        let done = retry.call(
            || Err::<(), _>(Errno::STALE),
            || false,
            |_| {
                waits += 1;
                false
            },
        );
        assert_eq!((done, waits), (Err(Errno::STALE), 1));
    }
}
