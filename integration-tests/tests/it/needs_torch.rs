//! `foreread order --sampler torch` against PyTorch, on random cases.

use std::process::Command;

use serde_json::Value;

use crate::support::{TestRandom, needed, order, output, times};

/// Draws cases and prints the result of PyTorch's classes for each.
const SCRIPT: &str = r#"
import json, random, sys
from torch.utils.data import DataLoader, DistributedSampler

rng = random.Random(int(sys.argv[1]))
cases = []
for number in range(int(sys.argv[2])):
    n = rng.choice([1, 2, 3, rng.randint(1, 40), rng.randint(1, 5000), 10007])
    world = rng.choice([1, 2, 3, 4, 7, 16, rng.randint(1, 64)])
    case = dict(samples=n, seed=rng.randint(0, 2**40), epoch=rng.randint(0, 200), world_size=world,
                rank=rng.randrange(world), drop_last=rng.random() < 0.5, shuffle=rng.random() < 0.8,
                batch_size=rng.choice([0, 1, 2, 5, 64]))
    sampler = DistributedSampler(range(n), world, case["rank"], shuffle=case["shuffle"], seed=case["seed"],
                                 drop_last=case["drop_last"])
    sampler.set_epoch(case["epoch"])
    ids = list(sampler)
    if case["batch_size"]:
        loader = DataLoader(range(n), batch_size=case["batch_size"], sampler=sampler, drop_last=case["drop_last"])
        ids = [int(id) for batch in loader for id in batch]
    cases.append(dict(case, ids=ids))
json.dump(cases, sys.stdout)
"#;

#[test]
#[ignore = "needs PyTorch"]
// semantics: ORDER-2
fn order_equals_distributed_sampler_for_random_cases() {
    let python = needed("FOREREAD_TEST_PYTHON_TORCH");
    let (seed, count) = (TestRandom::new().seed.to_string(), times(150, 3000).to_string());
    let printed = output(Command::new(python).args(["-c", SCRIPT, &seed, &count]));
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let cases: Vec<Value> = serde_json::from_slice(&printed.stdout).unwrap();
    for case in cases {
        let text = |name: &str| case[name].to_string();
        let sampler = if case["shuffle"] == true { "torch" } else { "sequential" };
        let (samples, seed, epoch) = (text("samples"), text("seed"), text("epoch"));
        let (world, rank, batch) = (text("world_size"), text("rank"), text("batch_size"));
        let mut arguments =
            vec!["--samples", &samples, "--seed", &seed, "--epoch", &epoch, "--sampler", sampler];
        arguments.extend(["--world-size", &world, "--rank", &rank]);
        if case["drop_last"] == true {
            arguments.push("--drop-last");
        }
        if batch != "0" {
            arguments.extend(["--batch-size", &batch]);
        }
        let expected: Vec<u64> =
            case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
        assert_eq!(order(&arguments), expected, "{arguments:?}");
    }
}
