//! Open requests of another rank.

use std::time::Duration;

use foreread_types::{SampleKey, Tick};

/// A request.
pub(super) struct OpenRequest {
    /// Of each sample, whether it is still wanted.
    open: Vec<bool>,
    pub(super) left: usize,
    pub(super) since: Duration,
    /// Its waiting samples were acknowledged.
    pub(super) is_acknowledged: bool,
}

impl OpenRequest {
    pub(super) fn new(samples: usize, now: Duration) -> Self {
        Self { open: vec![true; samples], left: samples, since: now, is_acknowledged: false }
    }

    /// Closes a sample. `false` if it is not open.
    pub(super) fn close(&mut self, tag: u32) -> bool {
        let was_open = self.open.get_mut(tag as usize).is_some_and(std::mem::take);
        self.left -= usize::from(was_open);
        was_open
    }

    /// Whether the sample is still wanted.
    pub(super) fn is_open(&self, tag: u32) -> bool {
        self.open.get(tag as usize).is_some_and(|open| *open)
    }
}

/// A sample that waits to be started. Ordered by due time, then by arrival.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueuedSample {
    pub(super) due: Tick,
    pub(super) request: u64,
    pub(super) tag: u32,
    pub(super) key: SampleKey,
    pub(super) length: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sample_is_closed_once_and_no_other() {
        for samples in [1, 63, 64, 65, 128, 4096] {
            let mut request = OpenRequest::new(samples, Duration::ZERO);
            let tags = || (0..samples as u32 + 200).chain([u32::MAX]);
            assert_eq!(tags().filter(|tag| request.is_open(*tag)).count(), samples);
            assert_eq!(tags().filter(|tag| request.close(*tag)).count(), samples);
            assert!(!tags().any(|tag| request.close(tag) || request.is_open(tag)));
            assert_eq!(request.left, 0);
        }
    }

    #[test]
    fn queue_is_ordered_by_due_time() {
        let queued = |due, request, tag| {
            let key = SampleKey::default();
            QueuedSample { due: Tick(due), request, tag, key, length: 1 }
        };
        let mut all = [queued(5, 1, 0), queued(3, 2, 1), queued(3, 2, 0), queued(3, 1, 7)];
        all.sort();
        assert_eq!(
            all.map(|one| (one.due.0, one.request, one.tag)),
            [(3, 1, 7), (3, 2, 0), (3, 2, 1), (5, 1, 0)]
        );
    }
}
