//! Throughput of a tier by the number of parallel reads.
//!
//! The number doubles from step to step. A step keeps that many reads in flight for a while, and
//! divides the received bytes by the time. The first generation of answers measures the start and
//! is left out. The rest is cut into parts, whose differences give the uncertainty.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foreread::calibration::Point;
use foreread_tier::{ReadRequest, Tier, TierError};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

/// The number of parts of a measurement.
const PARTS: usize = 5;

/// The second doubling in a row that gains less than this ends the search.
const MIN_GAIN: f64 = 1.05;

/// The limits of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeLimits {
    pub(crate) time: Duration,
    pub(crate) bytes: u64,
    /// The user's limit in bytes per second. No figure exceeds it, although the first answers may
    /// come faster.
    pub(crate) bytes_per_second: Option<u64>,
}

/// Measures `tier` with 1, 2, 4, ... parallel reads, at most `most`. `next` makes requests.
///
/// # Errors
/// The first read that fails.
pub(crate) async fn curve<T: Tier + ?Sized>(
    tier: &Arc<T>,
    most: u32,
    mut budget: ProbeLimits,
    mut next: impl FnMut() -> ReadRequest,
    mut report: impl FnMut(Point),
) -> Result<Vec<Point>, TierError> {
    let mut points: Vec<Point> = Vec::new();
    let mut flat = 0;
    let mut parallelism = 1;
    while parallelism <= most && flat < 2 && budget.bytes > 0 && !budget.time.is_zero() {
        let left = (most / parallelism).ilog2() + 1;
        let (time, bytes) = (budget.time / left, budget.bytes.div_ceil(left.into()));
        let share = ProbeLimits { time, bytes, ..budget };
        let measured = at(tier, parallelism, share, &mut next).await?;
        budget.time = budget.time.saturating_sub(measured.took);
        budget.bytes = budget.bytes.saturating_sub(measured.bytes);
        if let Some(mut point) = measured.point(parallelism) {
            point.bytes_per_second = budget
                .bytes_per_second
                .map_or(point.bytes_per_second, |most| point.bytes_per_second.min(most));
            let highest = points.iter().map(|point| point.bytes_per_second).max().unwrap_or(0);
            flat = if point.bytes_per_second as f64 >= MIN_GAIN * highest as f64 { 0 } else { flat + 1 };
            report(point);
            points.push(point);
        }
        parallelism *= 2;
    }
    Ok(points)
}

/// The time and bytes of each answer.
struct ProbeAnswers {
    took: Duration,
    /// All requested bytes, with those still in flight at the end.
    bytes: u64,
    came: Vec<(Duration, u64)>,
}

async fn at<T: Tier + ?Sized>(
    tier: &Arc<T>,
    parallelism: u32,
    share: ProbeLimits,
    next: &mut impl FnMut() -> ReadRequest,
) -> Result<ProbeAnswers, TierError> {
    let mut reads = FuturesUnordered::new();
    let (mut requested_bytes, mut is_full, mut requests) = (0, false, 0u64);
    let mut came = Vec::new();
    let began = Instant::now();
    loop {
        // At least one read, for samples that are longer than the share.
        while reads.len() < parallelism as usize
            && !is_full
            && (requested_bytes < share.bytes || requests == 0)
        {
            let request = next();
            let bytes = request.len();
            // The last one must fit, too.
            is_full = requests > 0 && requested_bytes.saturating_add(bytes) > share.bytes;
            if !is_full {
                (requested_bytes, requests) = (requested_bytes + bytes, requests + 1);
                reads.push(tier.read(Arc::new(request)).map(move |result| (bytes, result)));
            }
        }
        tier.submit();
        // A read without an answer is cancelled at the end of the time.
        let left = share.time.saturating_sub(began.elapsed());
        let Ok(Some((bytes, result))) = tokio::time::timeout(left, reads.next()).await else { break };
        result?;
        let now = began.elapsed();
        came.push((now, bytes));
        if now >= share.time {
            break;
        }
    }
    Ok(ProbeAnswers { took: began.elapsed(), bytes: requested_bytes, came })
}

impl ProbeAnswers {
    /// Throughput without the first generation of answers. `None` without other answers.
    fn point(&self, parallelism: u32) -> Option<Point> {
        let first = (parallelism as usize).min(self.came.len());
        let (begin, rest) = match first.checked_sub(1).and_then(|last| self.came.get(last)) {
            Some(&(begin, _)) if self.came.len() > first => (begin, &self.came[first..]),
            // With a single generation, the figure includes the start.
            _ => (Duration::ZERO, &self.came[..]),
        };
        let rate = |from: Duration, answers: &[(Duration, u64)]| {
            let bytes: u64 = answers.iter().map(|(_, bytes)| bytes).sum();
            let until = answers.last().map_or(from, |(when, _)| *when);
            bytes as f64 / until.saturating_sub(from).as_secs_f64().max(1e-9)
        };
        let whole = rate(begin, rest);
        if rest.is_empty() || whole < 1.0 {
            return None;
        }
        let spread = if rest.len() < 2 * PARTS {
            1.0
        } else {
            let length = rest.len() / PARTS;
            let mut from = begin;
            let rates = rest.chunks_exact(length).map(|part| {
                let rate = rate(from, part);
                from = part.last().map_or(from, |(when, _)| *when);
                rate
            });
            let (low, high) =
                rates.fold((f64::MAX, 0f64), |(low, high), rate| (low.min(rate), high.max(rate)));
            ((high - low) / 2.0 / whole).min(1.0)
        };
        Some(Point { parallelism, bytes_per_second: whole as u64, spread, samples: self.came.len() as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(came: Vec<(Duration, u64)>) -> ProbeAnswers {
        ProbeAnswers { took: Duration::ZERO, bytes: 0, came }
    }

    #[test]
    fn first_generation_is_left_out_and_parts_give_the_spread() {
        // Two in flight: the first two arrive after a second, the others every tenth of a second.
        let later = (1..=20).map(|tenth| (Duration::from_millis(1000 + 100 * tenth), 10));
        let start = [(Duration::from_secs(1), 10); 2];
        let point = answers(start.into_iter().chain(later).collect()).point(2).unwrap();
        assert_eq!((point.bytes_per_second, point.samples), (100, 22));
        assert!(point.spread < 1e-6, "{point:?}");
        let uneven = (1..=20).map(|tenth| (Duration::from_millis(100 * tenth * tenth), 10));
        assert!(answers(uneven.collect()).point(1).unwrap().spread > 0.3);
    }

    #[test]
    fn too_few_answers_have_no_point_or_full_spread() {
        assert!(answers(Vec::new()).point(4).is_none());
        let once = answers(vec![(Duration::from_secs(1), 10); 4]).point(4).unwrap();
        assert_eq!((once.bytes_per_second, once.spread), (40, 1.0));
    }
}
