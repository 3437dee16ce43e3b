//! Open requests of another rank.

use std::time::Duration;

use foreread_connection::frame::RequestedSample;
use foreread_types::SampleKey;

/// A request.
pub(super) struct OpenRequest {
    samples: Vec<OpenSample>,
    pub(super) left: usize,
    pub(super) since: Duration,
    /// Its waiting samples were acknowledged.
    pub(super) is_acknowledged: bool,
}

struct OpenSample {
    key: SampleKey,
    length: u64,
    state: SampleState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SampleState {
    /// It waits to be passed to the store.
    Queued,
    /// The store has it.
    Started,
    /// The store reads it from the origin.
    Reading,
    /// It was answered, or is no longer wanted.
    Closed,
}

impl OpenRequest {
    pub(super) fn new(samples: &[RequestedSample], now: Duration) -> Self {
        let open = |sample: &RequestedSample| OpenSample {
            key: sample.key,
            length: sample.length,
            state: SampleState::Queued,
        };
        let samples: Vec<OpenSample> = samples.iter().map(open).collect();
        Self { left: samples.len(), samples, since: now, is_acknowledged: false }
    }

    /// The key and the length of a sample that is still wanted.
    pub(super) fn wanted(&self, tag: u32) -> Option<(SampleKey, u64)> {
        let sample = self.samples.get(tag as usize)?;
        (sample.state != SampleState::Closed).then_some((sample.key, sample.length))
    }

    /// The store gets a sample.
    pub(super) fn start(&mut self, tag: u32) {
        self.enter(tag, SampleState::Started);
    }

    /// The store reads a sample from the origin. Returns the bytes that it no longer counts. `None`
    /// if it is not open.
    pub(super) fn reads(&mut self, tag: u32) -> Option<u64> {
        self.enter(tag, SampleState::Reading)
    }

    /// Closes a sample, as [`reads`](Self::reads).
    pub(super) fn close(&mut self, tag: u32) -> Option<u64> {
        let freed = self.enter(tag, SampleState::Closed);
        self.left -= usize::from(freed.is_some());
        freed
    }

    fn enter(&mut self, tag: u32, state: SampleState) -> Option<u64> {
        let sample = self.samples.get_mut(tag as usize)?;
        match std::mem::replace(&mut sample.state, state) {
            SampleState::Started => Some(sample.length),
            SampleState::Queued | SampleState::Reading => Some(0),
            SampleState::Closed => {
                sample.state = SampleState::Closed;
                None
            }
        }
    }

    /// Whether the sample is still wanted.
    pub(super) fn is_open(&self, tag: u32) -> bool {
        self.wanted(tag).is_some()
    }

    /// The tags of all samples.
    pub(super) fn tags(&self) -> std::ops::Range<u32> {
        0..self.samples.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use foreread_types::Tick;

    use super::*;

    #[test]
    fn each_sample_is_closed_once_and_no_other() {
        for samples in [1, 63, 64, 65, 128, 4096] {
            let requested = RequestedSample { key: SampleKey::default(), due: Tick(0), length: 7 };
            let mut request = OpenRequest::new(&vec![requested; samples], Duration::ZERO);
            let tags = || (0..samples as u32 + 200).chain([u32::MAX]);
            assert_eq!(tags().filter(|tag| request.is_open(*tag)).count(), samples);
            assert_eq!(tags().filter(|tag| request.close(*tag).is_some()).count(), samples);
            assert!(!tags().any(|tag| request.close(tag).is_some() || request.is_open(tag)));
            assert_eq!(request.left, 0);
        }
    }

    #[test]
    fn started_sample_counts_until_it_is_read_from_the_origin() {
        let requested = RequestedSample { key: SampleKey::default(), due: Tick(0), length: 7 };
        let mut request = OpenRequest::new(&[requested; 3], Duration::ZERO);
        request.start(0);
        request.start(1);
        assert_eq!([request.reads(0), request.reads(0), request.close(0)], [Some(7), Some(0), Some(0)]);
        assert_eq!([request.close(1), request.reads(1), request.close(2)], [Some(7), None, Some(0)]);
    }
}
