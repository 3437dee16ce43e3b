//! The reads that wait for an origin, in a fair order: start-time fair queueing over jobs on the
//! origin's seconds, and earliest due first inside a job.
//!
//! Each job gets a share of the origin's time that is proportional to its weight. Neither longer
//! samples nor more requests give it more. A job without requests loses its share to the others,
//! and has no claim to it later. Jobs in one order (a *convoy*) are one job for the queue, with the
//! sum of their weights. The read that is due first in their order is first. So the job that is
//! furthest behind catches up, and reads of the others find its samples in memory.
//!
//! Source: Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996. The price is a tree
//! operation per read.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;

use foreread_types::{SampleKey, Tick};

use super::store_job::StoreJob;

/// The resolution of tags: parts of a unit of the origin's time, at weight 1.
const TAG_UNITS: u128 = 1 << 20;

/// The reads that wait for one origin.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    members: HashMap<StoreJob, Member>,
    convoys: BTreeMap<u64, Convoy>,
    /// The start tag of the latest read.
    now: u128,
    arrivals: u64,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    convoy: u64,
    weight: NonZeroU32,
}

/// Jobs in one order, or one job.
#[derive(Debug, Default)]
struct Convoy {
    /// The sum of the members' weights.
    weight: u64,
    /// When its last read ends in virtual time.
    finish: u128,
    reads: BTreeMap<(Tick, u64), (SampleKey, StoreJob)>,
}

impl FairQueue {
    /// Adds a job, or moves it and its reads that wait to another convoy, or changes its weight.
    pub(super) fn set_member(&mut self, job: StoreJob, convoy: u64, weight: NonZeroU32) {
        let before = self.members.get(&job).map(|member| member.convoy);
        let mut moved = Vec::new();
        if let Some(before) = before.filter(|before| *before != convoy)
            && let Some(left) = self.convoys.get_mut(&before)
        {
            moved.extend(left.reads.extract_if(.., |_, (_, of)| *of == job));
        }
        self.leave(job);
        self.members.insert(job, Member { convoy, weight });
        let now = self.now;
        let convoy =
            self.convoys.entry(convoy).or_insert_with(|| Convoy { finish: now, ..Convoy::default() });
        convoy.weight += u64::from(weight.get());
        convoy.reads.extend(moved);
    }

    /// Removes a job and its reads that wait, which it returns.
    pub(super) fn remove(&mut self, job: StoreJob) -> Vec<SampleKey> {
        self.leave(job);
        let mut removed = Vec::new();
        for convoy in self.convoys.values_mut() {
            convoy.reads.retain(|_, (key, of)| {
                let stays = *of != job;
                if !stays {
                    removed.push(*key);
                }
                stays
            });
        }
        self.convoys.retain(|_, convoy| convoy.weight > 0 || !convoy.reads.is_empty());
        removed
    }

    fn leave(&mut self, job: StoreJob) {
        let Some(Member { convoy: number, weight }) = self.members.remove(&job) else { return };
        if let Some(convoy) = self.convoys.get_mut(&number) {
            convoy.weight -= u64::from(weight.get());
            if convoy.weight == 0 && convoy.reads.is_empty() {
                self.convoys.remove(&number);
            }
        }
    }

    /// Adds a read for a job. A job that is no member gets nothing.
    pub(super) fn push(&mut self, job: StoreJob, due: Tick, key: SampleKey) {
        let convoy = self.members.get(&job).map(|member| member.convoy);
        if let Some(convoy) = convoy.and_then(|convoy| self.convoys.get_mut(&convoy)) {
            convoy.reads.insert((due, self.arrivals), (key, job));
            self.arrivals += 1;
        }
    }

    /// The read that is next, of the job that it returns. `cost` is the time that the origin takes
    /// for it, in any unit.
    pub(super) fn pop(&mut self, cost: impl FnOnce(SampleKey) -> u64) -> Option<(SampleKey, StoreJob)> {
        let waiting = self.convoys.iter_mut().filter(|(_, convoy)| !convoy.reads.is_empty());
        let (&number, convoy) = waiting.min_by_key(|(number, convoy)| (convoy.finish, **number))?;
        let (_, (key, job)) = convoy.reads.pop_first()?;
        let start = convoy.finish.max(self.now);
        let weight = u128::from(convoy.weight.max(1));
        convoy.finish = start + (u128::from(cost(key).max(1)) * TAG_UNITS).div_ceil(weight);
        self.now = start;
        if convoy.weight == 0 && convoy.reads.is_empty() {
            self.convoys.remove(&number);
        }
        Some((key, job))
    }

    /// Counts `cost` more for the latest read of a job: of other samples that are read with it.
    pub(super) fn charge(&mut self, job: StoreJob, cost: u64) {
        let convoy = self.members.get(&job).map(|member| member.convoy);
        if let Some(convoy) = convoy.and_then(|convoy| self.convoys.get_mut(&convoy)) {
            convoy.finish += (u128::from(cost) * TAG_UNITS).div_ceil(u128::from(convoy.weight.max(1)));
        }
    }

    /// The job of each read that waits.
    pub(super) fn waiting_jobs(&self) -> impl Iterator<Item = StoreJob> {
        self.convoys.values().flat_map(|convoy| convoy.reads.values().map(|(_, job)| *job))
    }

    /// Reads that wait.
    pub(super) fn len(&self) -> usize {
        self.convoys.values().map(|convoy| convoy.reads.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use foreread_types::{DatasetId, SampleId};
    use proptest::prelude::*;

    use super::*;

    fn weight(weight: u32) -> NonZeroU32 {
        NonZeroU32::new(weight).unwrap()
    }

    fn key(id: u64) -> SampleKey {
        SampleKey::new(DatasetId(0), SampleId(id))
    }

    proptest! {
        /// Two jobs that always have reads differ, in time over weight, by at most the longest read
        /// of each (Goyal et al., theorem 1).
        #[test]
        fn time_follows_weights(
            weights in prop::collection::vec(1_u32..9, 2..6),
            costs in prop::collection::vec(1_u64..1000, 200..400),
        ) {
            let mut queue = FairQueue::default();
            for (job, &of) in weights.iter().enumerate() {
                queue.set_member(StoreJob(job as u64), job as u64, weight(of));
                for (at, _) in costs.iter().enumerate() {
                    queue.push(StoreJob(job as u64), Tick(at as u64), key(at as u64));
                }
            }
            let mut used = vec![0_u64; weights.len()];
            // As long as no job has ended.
            for _ in 0..costs.len() {
                let (sample, job) = queue.pop(|key| costs[key.id.0 as usize]).unwrap();
                used[job.0 as usize] += costs[sample.id.0 as usize];
                let pairs = (0..weights.len()).flat_map(|at| (0..at).map(move |other| (at, other)));
                for (first, second) in pairs {
                    let of = |at: usize| used[at] as f64 / f64::from(weights[at]);
                    let most = 1000.0 / f64::from(weights[first]) + 1000.0 / f64::from(weights[second]);
                    prop_assert!((of(first) - of(second)).abs() <= most + 1.0);
                }
            }
        }

        /// Whatever happens, each read leaves once, and those of one job in the order of their
        /// times.
        #[test]
        fn every_read_leaves_once_and_in_order(
            steps in prop::collection::vec((0_u64..4, 0_u64..100, 0_u8..5), 1..300),
        ) {
            let mut queue = FairQueue::default();
            let mut model: BTreeMap<StoreJob, Vec<(u64, u64)>> = BTreeMap::new();
            for (at, (job, due, what)) in (0_u64..).zip(steps) {
                let job = StoreJob(job);
                match what {
                    0 => {
                        queue.set_member(job, job.0 % 2, weight(1 + due as u32));
                        model.entry(job).or_default();
                    }
                    1 => {
                        let removed = queue.remove(job).len();
                        prop_assert_eq!(removed, model.remove(&job).unwrap_or_default().len());
                    }
                    2 | 3 => {
                        queue.push(job, Tick(due), key(at));
                        if let Some(reads) = model.get_mut(&job) {
                            reads.push((due, at));
                        }
                    }
                    _ => match queue.pop(|_| due) {
                        None => prop_assert!(model.values().all(Vec::is_empty)),
                        Some((key, job)) => {
                            let reads = model.get_mut(&job).unwrap();
                            reads.sort_unstable();
                            let first = reads.iter().position(|read| read.1 == key.id.0).unwrap();
                            prop_assert!(reads[..first].is_empty());
                            reads.remove(first);
                        }
                    },
                }
                prop_assert_eq!(queue.len(), model.values().map(Vec::len).sum::<usize>());
            }
        }
    }

    #[test]
    fn idle_job_has_no_claim_to_the_past() {
        let mut queue = FairQueue::default();
        for job in 0..2 {
            queue.set_member(StoreJob(job), job, weight(1));
        }
        (0..100).for_each(|at| queue.push(StoreJob(0), Tick(at), key(at)));
        (0..50).for_each(|_| assert_eq!(queue.pop(|_| 10).unwrap().1, StoreJob(0)));
        (0..100).for_each(|at| queue.push(StoreJob(1), Tick(at), key(at)));
        let late = (0..40).filter(|_| queue.pop(|_| 10).unwrap().1 == StoreJob(1)).count();
        assert!((19..=21).contains(&late), "{late}");
    }

    /// The reads of a job that came back to its convoy waited at a weight of nothing.
    #[test]
    fn reads_that_wait_move_with_their_job() {
        let mut queue = FairQueue::default();
        for job in 0..2 {
            queue.set_member(StoreJob(job), job, weight(1000));
            (0..200).for_each(|at| queue.push(StoreJob(job), Tick(at), key(at)));
        }
        queue.set_member(StoreJob(1), 7, weight(1000));
        let of_second = (0..100).filter(|_| queue.pop(|_| 10).unwrap().1 == StoreJob(1)).count();
        assert!((49..=51).contains(&of_second), "{of_second}");
        assert_eq!((queue.convoys.len(), queue.len()), (2, 300));
    }

    #[test]
    fn last_job_of_a_convoy_is_first() {
        let mut queue = FairQueue::default();
        for job in 0..3 {
            queue.set_member(StoreJob(job), 7, weight(1));
        }
        queue.set_member(StoreJob(3), 8, weight(1));
        for at in 0..30 {
            queue.push(StoreJob(0), Tick(100 + at), key(at));
            queue.push(StoreJob(1), Tick(at), key(at));
            queue.push(StoreJob(3), Tick(at), key(at));
        }
        let order: Vec<StoreJob> = (0..48).map(|_| queue.pop(|_| 10).unwrap().1).collect();
        let others = order.iter().position(|job| *job == StoreJob(0)).unwrap();
        assert_eq!(order[..others].iter().filter(|job| **job == StoreJob(1)).count(), 30);
        // The convoy has the share of three jobs.
        let alone = order.iter().filter(|job| **job == StoreJob(3)).count();
        assert!((11..=13).contains(&alone), "{alone}");
    }
}
