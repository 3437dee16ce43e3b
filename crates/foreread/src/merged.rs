//! The merged report of all ranks: the job's bytes, their sources, and its time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::report::{Report, is_one};

/// The part of a rank's report that is sent to rank 0, and the merged report of all ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Merged {
    /// The number of ranks counted in this report, without lost ranks.
    pub ranks: u32,
    /// Bytes that they have read from the origin. `floor_origin_bytes` of the report is the lower
    /// bound of the same bytes.
    pub origin_bytes: u64,
    /// Requests that they have sent to the origin.
    pub origin_requests: u64,
    /// Uses without a sample, because it could not be read.
    pub skipped: u64,
    /// Uses that got a neighbouring sample as a substitute.
    pub substituted: u64,
    /// Requests that were retried.
    pub retried: u64,
    /// Requests that were hedged because the answer was late.
    pub hedged: u64,
    /// One entry per pass, in order. The middle of a long run is summed up as in
    /// [`Report::epochs`]. If only some ranks have summed up a pass, their sum is a separate entry
    /// at the end.
    pub epochs: Vec<MergedEpoch>,
}

/// One pass on all ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MergedEpoch {
    /// The epoch, from 0. For several passes, the first one.
    pub epoch: u64,
    /// The number of passes in this entry. Left out if it is one.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub passes: u64,
    /// `train` or `validation`.
    pub phase: String,
    /// Samples delivered.
    pub samples: u64,
    /// Bytes delivered.
    pub bytes: u64,
    /// The slowest rank's time.
    pub seconds: f64,
    /// The longest total wait of a rank.
    pub stall_seconds: f64,
    /// Delivered samples, by source.
    pub reads: BTreeMap<String, u64>,
}

fn one() -> u64 {
    1
}

impl Merged {
    /// One rank's part.
    pub fn of(report: &Report) -> Self {
        let epoch = |epoch: &crate::report::EpochReport| {
            let reads = &epoch.reads;
            let reads = [
                ("origin", reads.origin),
                ("memory", reads.memory),
                ("disk", reads.disk),
                ("agent", reads.agent),
            ];
            MergedEpoch {
                epoch: epoch.epoch,
                passes: epoch.passes,
                phase: epoch.phase.clone(),
                samples: epoch.samples,
                bytes: epoch.bytes,
                seconds: epoch.seconds,
                stall_seconds: epoch.stall_seconds,
                reads: reads.map(|(name, count)| (name.to_owned(), count.samples.unwrap_or(0))).into(),
            }
        };
        Self {
            ranks: 1,
            origin_bytes: report.origin_bytes,
            origin_requests: report.origin_requests,
            skipped: report.skipped,
            substituted: report.substituted,
            retried: report.retried,
            hedged: report.hedged,
            epochs: report.epochs.iter().map(epoch).collect(),
        }
    }

    /// Adds another rank's part. Passes that only one of them has reached are kept.
    pub fn add(&mut self, other: &Self) {
        self.ranks += other.ranks;
        self.origin_bytes = self.origin_bytes.saturating_add(other.origin_bytes);
        self.origin_requests = self.origin_requests.saturating_add(other.origin_requests);
        self.skipped = self.skipped.saturating_add(other.skipped);
        self.substituted = self.substituted.saturating_add(other.substituted);
        self.retried = self.retried.saturating_add(other.retried);
        self.hedged = self.hedged.saturating_add(other.hedged);
        for theirs in &other.epochs {
            // A sum of passes is not a pass. Ranks that ended at different passes may have both.
            let same = |mine: &&mut MergedEpoch| {
                (mine.epoch, mine.passes, &mine.phase) == (theirs.epoch, theirs.passes, &theirs.phase)
            };
            match self.epochs.iter_mut().find(same) {
                Some(mine) => mine.add(theirs),
                None => self.epochs.push(theirs.clone()),
            }
        }
    }
}

impl MergedEpoch {
    fn add(&mut self, other: &Self) {
        self.samples = self.samples.saturating_add(other.samples);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.seconds = self.seconds.max(other.seconds);
        self.stall_seconds = self.stall_seconds.max(other.stall_seconds);
        for (source, samples) in &other.reads {
            let mine = self.reads.entry(source.clone()).or_default();
            *mine = mine.saturating_add(*samples);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(origin: u64, seconds: f64, epochs: u64) -> Merged {
        let epoch = |epoch| MergedEpoch {
            epoch,
            passes: 1,
            phase: "train".to_owned(),
            samples: 5,
            seconds,
            reads: [("origin".to_owned(), origin), ("disk".to_owned(), 1)].into(),
            ..MergedEpoch::default()
        };
        Merged {
            ranks: 1,
            origin_bytes: origin,
            epochs: (0..epochs).map(epoch).collect(),
            ..Merged::default()
        }
    }

    /// Guards against this fault: one rank's sum of passes was added to another rank's single pass.
    #[test]
    fn sum_of_passes_is_not_added_to_a_pass() {
        let mut all = rank(3, 1.0, 4);
        let mut sums = rank(4, 1.0, 1);
        sums.epochs[0].passes = 3;
        all.add(&sums);
        let passes: Vec<_> = all.epochs.iter().map(|one| (one.epoch, one.passes, one.samples)).collect();
        assert_eq!(passes, [(0, 1, 5), (1, 1, 5), (2, 1, 5), (3, 1, 5), (0, 3, 5)]);
    }

    #[test]
    fn counts_are_added_and_the_slowest_rank_gives_the_time() {
        let mut all = rank(3, 1.0, 1);
        all.add(&rank(4, 3.0, 2));
        all.add(&rank(0, 2.0, 1));
        assert_eq!((all.ranks, all.origin_bytes, all.epochs.len()), (3, 7, 2));
        assert_eq!((all.epochs[0].samples, all.epochs[0].seconds), (15, 3.0));
        assert_eq!(all.epochs[0].reads["origin"], 7);
        assert_eq!(all.epochs[1].samples, 5);
    }
}
