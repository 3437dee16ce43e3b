//! A trainer and its engine, as an origin sees them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use foreread_tier::{ReadRequest, Tier, TierError};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep_until};

/// Reads samples in order, ahead of a trainer by a look-ahead in bytes, in bursts of a sixteenth of
/// it. The trainer takes a batch as soon as it wants one and the batch is complete.
#[derive(Clone, Debug)]
pub struct Trainer {
    /// The look-ahead, in bytes.
    pub look_ahead: u64,
    /// Samples per batch.
    pub batch: usize,
    /// The compute time per batch.
    pub compute: Duration,
    /// The length of each entry of [`TrainerReport::course`].
    pub step: Duration,
}

/// The events of one step of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainerStep {
    /// Samples that the trainer took.
    pub taken: u64,
    /// Samples that arrived.
    pub arrived: u64,
    /// How long the trainer waited for incomplete batches.
    pub stalled: Duration,
    /// The value of the caller's probe at the end of the step.
    pub probe: usize,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct TrainerReport {
    /// Samples that the trainer took.
    pub taken: u64,
    /// The errors of samples that could not be read.
    pub failed: Vec<TierError>,
    /// Time from the first read to the last batch.
    pub took: Duration,
    /// The trainer's wait for the first batch.
    pub first_batch: Duration,
    /// Its wait for all other batches together.
    pub stalled: Duration,
    /// The run in steps of time.
    pub course: Vec<TrainerStep>,
}

impl TrainerReport {
    /// Samples per second that the trainer took between two moments, in whole steps of `step`.
    pub fn rate(&self, step: Duration, from: Duration, to: Duration) -> f64 {
        let at = |time: Duration| (time.as_nanos() / step.as_nanos()) as usize;
        let (from, to) = (at(from), at(to).min(self.course.len()));
        let taken: u64 = self.course[from..to].iter().map(|course| course.taken).sum();
        taken as f64 / ((to - from) as f64 * step.as_secs_f64())
    }
}

impl Trainer {
    /// Batches of 32 with the compute time `compute`, 256 MiB of look-ahead, and steps of 10 ms.
    pub fn new(compute: Duration) -> Self {
        Self { look_ahead: 256 << 20, batch: 32, compute, step: Duration::from_millis(10) }
    }

    /// Reads with `request` (by sample, from 0 on) until `samples` have been taken or `until` has
    /// passed. `probe` is called with the time after each step, and its value is recorded.
    ///
    /// # Panics
    /// If an answer has the wrong length.
    pub async fn run(
        &self,
        tier: Arc<dyn Tier>,
        samples: u64,
        until: Duration,
        request: impl Fn(u64) -> ReadRequest,
        mut probe: impl FnMut(Duration) -> usize,
    ) -> TrainerReport {
        let began = Instant::now();
        let (mut fared, mut course) = (TrainerReport::default(), TrainerStep::default());
        let mut reads = FuturesUnordered::new();
        // The bytes of each sample in the look-ahead, and whether it has arrived.
        let mut window: VecDeque<(u64, bool)> = VecDeque::new();
        let (mut first, mut next, mut held) = (0u64, 0u64, 0u64);
        let mut wants = began;
        let mut step_ends = began + self.step;
        loop {
            // Reads leave when a sixteenth of the look-ahead is free.
            if held <= self.look_ahead - self.look_ahead / 16 {
                while next < samples && held < self.look_ahead {
                    let request = request(next);
                    held += request.len();
                    window.push_back((request.len(), false));
                    let sample = next;
                    reads.push(tier.read(Arc::new(request)).map(move |result| (sample, result)));
                    next += 1;
                }
                tier.submit();
            }
            let ready = |window: &VecDeque<(u64, bool)>| {
                let wanted = (self.batch as u64).min(samples - first) as usize;
                window.len() >= wanted && window.iter().take(wanted).all(|(_, there)| *there)
            };
            let now = Instant::now();
            let waits = now >= wants;
            if waits && ready(&window) {
                let late = now - wants;
                // Timers are exact to a millisecond or two. Below that, the trainer did not wait.
                if late > Duration::from_millis(2) {
                    if first == 0 {
                        fared.first_batch = late;
                    } else {
                        fared.stalled += late;
                        course.stalled += late;
                    }
                    wants = now;
                }
                for _ in 0..self.batch {
                    let Some((bytes, _)) = window.pop_front() else { break };
                    held -= bytes;
                    first += 1;
                    course.taken += 1;
                }
                wants += self.compute;
                if first >= samples {
                    break;
                }
                continue;
            }
            tokio::select! {
                biased;
                answer = reads.next(), if !reads.is_empty() => {
                    let Some((sample, result)) = answer else { continue };
                    let (bytes, there) = &mut window[(sample - first) as usize];
                    *there = true;
                    match result {
                        Ok(data) => assert_eq!(data.len() as u64, *bytes, "sample {sample}"),
                        Err(error) => fared.failed.push(error),
                    }
                    course.arrived += 1;
                }
                () = sleep_until(wants), if !waits => {}
                () = sleep_until(step_ends) => {}
            }
            let now = Instant::now();
            while now >= step_ends {
                course.probe = probe(step_ends - began);
                fared.course.push(std::mem::take(&mut course));
                step_ends += self.step;
            }
            if now - began >= until {
                break;
            }
        }
        fared.taken = first - fared.failed.len() as u64;
        fared.took = began.elapsed();
        fared
    }
}
