//! Golden vectors that may never change: saved runs and ranks of other releases depend on them.
//!
//! The orders were computed by an independent model of each sampler, and PyTorch's by PyTorch.

use foreread_oracle::{Explicit, Feistel, Order, Sampler, Sequential, Shuffle, Torch, Weighted};
use foreread_types::SampleId;

use crate::ids;

/// A digest of a long order without a library: FNV-1a over the ids as 8 bytes, little endian.
fn digest(order: &Order) -> u64 {
    ids(order).into_iter().flat_map(u64::to_le_bytes).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn check(sampler: &dyn Sampler, short: &[u64], digests: [u64; 2], fingerprint: &str) {
    let order = sampler.order(0).unwrap();
    let found =
        (ids(&order)[..short.len()].to_vec(), [0, 1_000_003].map(|e| digest(&sampler.order(e).unwrap())));
    let expected = (short.to_vec(), digests);
    assert_eq!((found, sampler.fingerprint().to_string()), (expected, fingerprint.to_owned()), "{sampler:?}");
}

#[test]
// semantics: ORDER-1
fn shuffle_equals_its_vectors() {
    check(
        &Shuffle::new(10, 0).unwrap(),
        &[3, 4, 7, 2, 8, 6, 9, 1, 5, 0],
        [18100167334798492612, 13688888220409035524],
        "bdaad458d2813d36ab416bbccaac1546",
    );
    check(
        &Shuffle::new(100_000, 42).unwrap(),
        &[54499, 12314, 96625, 58040, 4692, 52853, 43158, 16524],
        [11489244368603923605, 605674395787596889],
        "0574754b1f465118ef9be77e9a62c1f1",
    );
}

#[test]
fn torch_equals_its_vectors() {
    check(
        &Torch::new(100_000, 42).unwrap(),
        &[37542, 60279, 68544, 70051, 15790, 14785, 72904, 31383],
        [102396299515405193, 11717517327804716801],
        "822c9c4fdcd5198147578664532a33a1",
    );
}

#[test]
// semantics: ORDER-1
fn feistel_equals_its_vectors() {
    check(
        &Feistel::new(10, 0).unwrap(),
        &[9, 5, 3, 8, 2, 6, 7, 4, 0, 1],
        [15360154260639804900, 12350330887051666052],
        "ba8bffd6291c6f5e80214c247ddba5c2",
    );
    check(
        &Feistel::new(100_000, 42).unwrap(),
        &[40498, 76686, 84161, 31182, 66049, 15973, 1591, 59114],
        [13379516156371991385, 17042798331142108797],
        "c0ab5afeb62ad80c397246599b13f5ce",
    );
    for (samples, expected) in [
        (1u64 << 40, [4986023566u64, 329442055750, 30265089013]),
        (1_000_000_000_000, [242940542383, 146370590202, 144949752113]),
        (1 << 63, [3400395138341915059, 9126192158266485070, 6390000400356921606]),
    ] {
        let order = Feistel::new(samples, 42).unwrap().order(7).unwrap();
        let found = [0, 1, samples - 1].map(|position| order.at(position));
        assert_eq!(found, expected.map(SampleId), "{samples}");
    }
}

#[test]
// semantics: ORDER-1
fn weighted_equals_its_vectors() {
    let weights: Vec<f64> = (0..1000).map(|id| f64::from(id) * 0.1 + 1e-7).collect();
    check(
        &Weighted::new(&weights, 100_000, 42).unwrap(),
        &[589, 650, 802, 895, 937, 723, 624, 551],
        [12496301350209465186, 13249163603575114506],
        "1cbcc13e209d947aca8b8a37017fefcc",
    );
    check(
        &Weighted::new(&[0.5, 1e-300, 0.25], 12, 1).unwrap(),
        &[0, 0, 2, 0, 0, 0, 0, 0, 2, 0, 0, 0],
        [8867328138099559461, 11231043725096744933],
        "6c9b32f34affa29ca00ef4538a1f93e4",
    );
}

#[test]
fn other_fingerprints_are_pinned() {
    assert_eq!(Sequential::new(10).unwrap().fingerprint().to_string(), "c8f0671c427a95c57c00d55be31873ab");
    let explicit = Explicit::new(10, vec![vec![1, 2], vec![3, 4]]).unwrap();
    assert_eq!(explicit.fingerprint().to_string(), "c8d544585e9089121c18dbbe84a37392");
}
