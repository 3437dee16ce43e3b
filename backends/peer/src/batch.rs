//! Samples of one request frame, until all are complete.

use std::sync::Arc;

use bytes::Bytes;
use foreread_connection::WireError;
use foreread_connection::frame::RequestedSample;
use foreread_tier::{ErrorKind, Lifetime, ReadRequest, TierError};
use foreread_types::Rank;
use tokio::sync::oneshot;

use crate::tier_error::{NAME, error_of};

/// A requested sample. Its caller is gone if the other end of `answer` was dropped.
pub(crate) struct PendingSample {
    pub(crate) request: Arc<ReadRequest>,
    /// Until it is complete.
    pub(crate) answer: Option<oneshot::Sender<Result<Bytes, TierError>>>,
}

impl PendingSample {
    pub(crate) fn is_dropped(&self) -> bool {
        self.answer.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

/// Samples of one request frame. The position in `samples` is the tag on the wire. Dropping it
/// fails the open samples, so that no read stays open.
pub(crate) struct RequestBatch {
    rank: Rank,
    samples: Vec<PendingSample>,
    /// Samples that are not complete.
    left: usize,
}

impl RequestBatch {
    pub(crate) fn new(rank: Rank, samples: Vec<PendingSample>) -> Self {
        Self { rank, left: samples.len(), samples }
    }

    /// Samples that are not complete.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// How long the memory of a sample will be in use.
    pub(crate) fn lifetime(&self, tag: u32) -> Lifetime {
        self.samples.get(tag as usize).map_or(Lifetime::Passing, |sample| sample.request.lifetime)
    }

    /// Completes a sample, unless it is complete.
    pub(crate) fn answer(&mut self, position: usize, result: Result<Bytes, TierError>) {
        let Some(sample) = self.samples.get_mut(position) else { return };
        let Some(answer) = sample.answer.take() else { return };
        self.left -= 1;
        let result = result.map_err(|error| error.with_object(&*sample.request.object.path));
        let _ = answer.send(result); // the caller may be gone
    }

    /// Takes out the samples whose caller is gone.
    pub(crate) fn take_dropped(&mut self) -> Vec<u32> {
        let mut dropped = Vec::new();
        for (sample, tag) in self.samples.iter_mut().zip(0..) {
            if sample.is_dropped() {
                sample.answer = None;
                self.left -= 1;
                dropped.push(tag);
            }
        }
        dropped
    }

    fn answer_all(&mut self, error: &TierError) {
        for position in 0..self.samples.len() {
            self.answer(position, Err(error.clone()));
        }
    }

    /// Fails all open samples.
    pub(crate) fn fail(mut self, why: &WireError) {
        self.answer_all(&error_of(self.rank, why));
    }

    /// The samples as they are encoded on the wire.
    pub(crate) fn sample_requests(&self) -> impl Iterator<Item = RequestedSample> {
        let sample_request = |request: &ReadRequest| RequestedSample {
            key: request.key,
            due: request.due,
            length: request.len(),
        };
        self.samples.iter().map(move |sample| sample_request(&sample.request))
    }
}

impl Drop for RequestBatch {
    fn drop(&mut self) {
        if self.left > 0 {
            let detail = format!("rank {}: this process ends", self.rank);
            self.answer_all(&TierError::new(ErrorKind::Closed, NAME).with_detail(detail));
        }
    }
}
