//! The cost of resuming, in computed orders.

use std::sync::{Arc, Mutex};

use foreread_loader::ReadSource;
use foreread_memory::MemoryTier;
use foreread_oracle::{Deal, OracleError, Order, Run, Sampler, Shuffle};
use foreread_tier_testing::FakeOrigin;
use foreread_types::{Fingerprint, Rank, SampleId};

use crate::rig::{Rig, next};

const EPOCHS: u64 = 90;

/// A shuffle that records the requested epochs.
#[derive(Debug)]
struct CountingSampler {
    inner: Shuffle,
    computed: Mutex<Vec<u64>>,
}

impl Sampler for CountingSampler {
    fn population(&self) -> u64 {
        self.inner.population()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn is_distinct(&self) -> bool {
        self.inner.is_distinct()
    }

    fn order(&self, epoch: u64) -> Result<Order, OracleError> {
        self.computed.lock().unwrap().push(epoch);
        self.inner.order(epoch)
    }

    fn fingerprint(&self) -> Fingerprint {
        self.inner.fingerprint()
    }
}

/// Resumes in the middle of an epoch and reads on, but not to the end. Returns the epochs whose
/// order was computed, and the delivered ids.
async fn resumed(epoch: u64) -> (Vec<u64>, Vec<SampleId>) {
    let fake = FakeOrigin::uniform(400, 1000);
    let sampler =
        Arc::new(CountingSampler { inner: Shuffle::new(400, 7).unwrap(), computed: Mutex::default() });
    let mut rig = Rig { epochs: EPOCHS, look_ahead: 20_000, ..Rig::new(fake) };
    rig.sampler = Arc::clone(&sampler) as _;
    let rig = rig.cache(ReadSource::Memory, Arc::new(MemoryTier::new(100_000)), 100_000);
    let whole = rig.run();
    let pass = whole.passes().find(|pass| pass.epoch == epoch).unwrap();
    let rig = Rig { start: Some(whole.position_after(&pass, 20)), ..rig };
    assert!(sampler.computed.lock().unwrap().is_empty(), "describing a run computes no order");
    let mut loader = rig.start();
    let mut ids = Vec::new();
    for _ in 20..40 {
        ids.extend(rig.check(&next(&mut loader).await.unwrap().unwrap()));
    }
    drop(loader);
    let computed = sampler.computed.lock().unwrap().clone();
    (computed, ids)
}

#[tokio::test(start_paused = true)]
// semantics: STATE-3
async fn resume_in_any_epoch_computes_two_orders_at_most() {
    for epoch in [0, 1, 45, EPOCHS - 1] {
        let (mut computed, ids) = resumed(epoch).await;
        let order = Shuffle::new(400, 7).unwrap().order(epoch).unwrap();
        let expected: Vec<SampleId> = (160..320).map(|at| order.at(at)).collect();
        assert_eq!(ids, expected, "epoch {epoch}");
        // The order of this epoch and of the next one, which the look-ahead reaches. Each once, and
        // no earlier one.
        computed.sort_unstable();
        let needed: Vec<u64> = (epoch..EPOCHS).take(2).collect();
        assert!(
            needed.starts_with(&computed) && !computed.is_empty(),
            "epoch {epoch}: {computed:?} of {needed:?}"
        );
    }
}

/// The same without the engine, and with several ranks, whose plan needs orders.
#[test]
// semantics: STATE-3
fn resumed_ranks_compute_no_finished_orders() {
    let sampler =
        Arc::new(CountingSampler { inner: Shuffle::new(400, 7).unwrap(), computed: Mutex::default() });
    let mut rig = Rig { epochs: EPOCHS, ..Rig::new(FakeOrigin::uniform(400, 1000)) };
    rig.sampler = Arc::clone(&sampler) as _;
    let whole = rig.run();
    let pass = whole.passes().find(|pass| pass.epoch == EPOCHS - 1).unwrap();
    let position = whole.position_after(&pass, 5);
    let run = Run::resume(Arc::clone(whole.schedule()), Deal::Torch, 4, Rank(2), &position).unwrap();
    let only = run.passes().next().unwrap();
    assert_eq!((run.passes().len(), run.stream(&only).unwrap().len()), (1, 90));
    assert_eq!(*sampler.computed.lock().unwrap(), [EPOCHS - 1]);
}
