//! The speed of jobs at an origin that is as fast as one of them, in simulated steps: in each, the
//! origin answers as many reads as a usual trainer uses samples.

use std::collections::VecDeque;
use std::sync::mpsc::Receiver;

use bytes::Bytes;
use foreread_tier::TierError;

use super::test_rig::*;
use super::*;

const SAMPLES: u64 = 1000;
const EPOCHS: u64 = 4;

/// The samples that a usual trainer uses in a step, and that the origin answers.
const PACE: u64 = 16;

/// The samples that a trainer requests before their use.
const LOOK_AHEAD: u64 = 50;

/// A job whose trainer uses samples at a pace, if they are there.
struct Trainer {
    job: StoreJob,
    /// The samples of each epoch.
    orders: Vec<Vec<u64>>,
    pace: u64,
    used: u64,
    /// The samples from `used` on.
    ahead: VecDeque<Receiver<(u64, Result<Bytes, TierError>)>>,
}

impl Trainer {
    fn new(rig: &Rig, number: u64, pace: u64) -> Self {
        let job = rig.store.add_job(true);
        // The look-ahead goes beyond the last epoch, and jobs announce two more.
        let orders = (0..EPOCHS + 3).map(|epoch| order(SAMPLES, number, epoch)).collect();
        let trainer = Self { job, orders, pace, used: 0, ahead: VecDeque::new() };
        (0..3).for_each(|epoch| trainer.announce(rig, epoch));
        trainer
    }

    fn announce(&self, rig: &Rig, epoch: u64) {
        rig.announce(self.job, epoch * SAMPLES, &self.orders[epoch as usize]);
    }

    fn step(&mut self, rig: &Rig) {
        for _ in 0..self.pace.min(EPOCHS * SAMPLES - self.used) {
            let Some(Ok(_)) = self.ahead.front().map(Receiver::try_recv) else { break };
            self.ahead.pop_front();
            self.used += 1;
            if self.used.is_multiple_of(SAMPLES) {
                self.announce(rig, self.used / SAMPLES + 2);
            }
        }
        while (self.ahead.len() as u64) < LOOK_AHEAD {
            let at = self.used + self.ahead.len() as u64;
            let id = self.orders[(at / SAMPLES) as usize][(at % SAMPLES) as usize];
            self.ahead.push_back(rig.request(self.job, at, &[id]));
        }
    }
}

/// The steps until each of these jobs has used all epochs after its first one, with memory for a
/// tenth of the samples. Each job is an order and a pace.
fn steps(jobs: &[(u64, u64)]) -> Vec<u64> {
    let rig = Rig::new(SAMPLES, SAMPLES / 10, 0);
    rig.origin.parallelism.store(PACE as usize, Ordering::Relaxed);
    let mut trainers: Vec<Trainer> =
        jobs.iter().map(|&(order, pace)| Trainer::new(&rig, order, pace)).collect();
    let (mut begun, mut ended) = (vec![None; jobs.len()], vec![None; jobs.len()]);
    for step in 0.. {
        trainers.iter_mut().for_each(|trainer| trainer.step(&rig));
        for (trainer, (begun, ended)) in trainers.iter().zip(begun.iter_mut().zip(&mut ended)) {
            if trainer.used >= SAMPLES {
                begun.get_or_insert(step);
            }
            if trainer.used >= EPOCHS * SAMPLES {
                ended.get_or_insert(step);
            }
        }
        if ended.iter().all(Option::is_some) {
            break;
        }
        rig.answer_reads(PACE);
        rig.now.fetch_add(20_000_000, Ordering::Relaxed);
    }
    trainers.iter().for_each(|trainer| rig.store.end_job(trainer.job));
    begun.iter().zip(ended).map(|(begun, ended)| ended.unwrap() - begun.unwrap()).collect()
}

#[test]
// semantics: AGENT-13
fn jobs_with_one_order_are_as_fast_as_one() {
    let alone = steps(&[(7, PACE)])[0];
    // Which one of the reads under way is answered first is up to the runtime.
    let together = steps(&[(7, PACE); 4]);
    assert!(together.iter().all(|steps| *steps * 100 <= alone * 102), "{together:?} and {alone}");
    // The origin is too slow for jobs in different orders.
    let in_own_orders = steps(&[(1, PACE), (2, PACE), (3, PACE), (4, PACE)]);
    assert!(in_own_orders.iter().all(|steps| *steps > 2 * alone), "{in_own_orders:?} and {alone}");
    // A slower job does not hold the others up: in lock-step, they would be as slow.
    let steps = steps(&[(7, PACE / 2), (7, PACE), (7, PACE), (7, PACE)]);
    assert!(steps[1..].iter().all(|steps| *steps * 100 < alone * 115), "{steps:?} and {alone}");
    assert!(steps[0] > alone * 19 / 10, "{steps:?} and {alone}");
}
