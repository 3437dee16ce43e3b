//! Random sequences of operations against a map, with restarts and crashes.

use std::collections::HashMap;

use foreread_tier::{CacheTier, ErrorKind, Sample};
use foreread_types::DatasetId;
use proptest::prelude::*;

use crate::rig::{config, copy, is_stored, open_as, read, run, sample, store, taken};

const IDS: u64 = 24;
const CAPACITY: u64 = 3 << 20;

#[derive(Clone, Debug)]
enum Step {
    Store {
        id: u64,
        size: u64,
    },
    /// Without waiting for it.
    Begin {
        id: u64,
        size: u64,
    },
    Remove {
        id: u64,
    },
    Read {
        id: u64,
    },
    /// A flush and a new start.
    Reopen,
    /// Another tier opens a copy of the files while this one continues writing.
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![0..5000u64, 50_000..200_000u64, Just(4032), Just(4033)];
    let step = prop_oneof![
        4 => (0..IDS, size.clone()).prop_map(|(id, size)| Step::Store { id, size }),
        4 => (0..IDS, size).prop_map(|(id, size)| Step::Begin { id, size }),
        3 => (0..IDS).prop_map(|id| Step::Remove { id }),
        4 => (0..IDS).prop_map(|id| Step::Read { id }),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..60)
}

/// The possible lengths of a cached sample, and whether it must be present.
#[derive(Clone, Debug, Default)]
struct Expected {
    sizes: Vec<u64>,
    surely: bool,
}

fn follow(steps: Vec<Step>) {
    let mut directory = tempfile::tempdir().unwrap();
    let open = |path: &std::path::Path| open_as(config(path, CAPACITY).with_segment(1 << 20)).unwrap();
    let mut tier = open(directory.path());
    let mut model: HashMap<u64, Expected> = HashMap::new();
    for step in steps {
        match step {
            Step::Store { id, size } => match run(store(&tier, &sample(id, size))) {
                Some(Ok(())) => {
                    let expected = model.entry(id).or_default();
                    if !expected.surely {
                        expected.sizes.push(size);
                    }
                    expected.surely = true;
                }
                Some(Err(error)) => assert_eq!(error.kind(), ErrorKind::Full),
                None => {}
            },
            Step::Begin { id, size } => {
                let known = sample(id, size);
                let Some(room) = tier.reserve(tier.footprint().of(size)) else { continue };
                run(async {
                    let sample = Sample::uncharged(known.content.clone());
                    let _ = futures::poll!(Box::pin(tier.store(room, known.key, sample)));
                });
                let expected = model.entry(id).or_default();
                if !expected.surely {
                    expected.sizes.push(size);
                }
            }
            Step::Remove { id } => {
                run(tier.remove(vec![sample(id, 0).key]));
                assert!(!is_stored(&tier, &sample(id, 0)));
                model.remove(&id);
            }
            Step::Read { id } => check(&tier, id, model.get(&id), true),
            Step::Reopen => {
                drop(tier);
                tier = open(directory.path());
                // Queued samples were written.
                for id in 0..IDS {
                    check(&tier, id, model.get(&id), true);
                }
            }
            Step::Crash => {
                let next = tempfile::tempdir().unwrap();
                copy(directory.path(), next.path());
                drop(tier);
                directory = next;
                tier = open(directory.path());
                for id in 0..IDS {
                    check(&tier, id, model.get(&id), false);
                    if !is_stored(&tier, &sample(id, 0)) {
                        model.remove(&id);
                    }
                }
            }
        }
        let taken = taken(directory.path());
        assert!(taken <= CAPACITY, "{taken} bytes are taken");
    }
    assert!(tier.stored(DatasetId(0)).samples <= model.len() as u64);
}

fn check(tier: &foreread_local::DiskTier, id: u64, expected: Option<&Expected>, strict: bool) {
    let Some(expected) = expected else {
        assert!(!strict || !is_stored(tier, &sample(id, 0)), "sample {id} was removed");
        return;
    };
    let mut right = 0;
    let mut last = None;
    for &size in &expected.sizes {
        let known = sample(id, size);
        match run(read(tier, &known)) {
            Ok(bytes) => {
                assert_eq!(bytes, known.content, "sample {id}");
                right += 1;
            }
            Err(error) => last = Some(error),
        }
    }
    if strict && expected.surely {
        assert!(right > 0, "sample {id} is lost: {last:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn tier_agrees_with_a_map_over_random_operations(steps in steps()) {
        follow(steps);
    }
}
