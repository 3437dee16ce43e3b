//! How long a lookup takes: `cargo run --release -p foreread-memory --example lookup`.

use std::hint::black_box;
use std::time::Instant;

use foreread_memory::MemoryTier;
use foreread_tier::{Buffers, CacheTier, HeapBuffers, Lookup, Sample};
use foreread_types::{DatasetId, SampleId, SampleKey};
use futures::FutureExt;

fn main() {
    for samples in [1_000u64, 100_000, 1_000_000] {
        let memory = MemoryTier::new(u64::MAX);
        let began = Instant::now();
        for id in 0..samples {
            let mut buffer = HeapBuffers.allocate(100, 1).expect("memory");
            buffer.extend(&[0; 100]);
            let Some(room) = memory.reserve(memory.footprint().of(100)) else { return };
            let sample = Sample::uncharged(buffer.freeze());
            let stored =
                memory.store(room, SampleKey::new(DatasetId(0), SampleId(id)), sample).now_or_never();
            assert!(stored.is_some_and(|stored| stored.is_ok()));
        }
        let stored = began.elapsed();
        let mut state = 1u64;
        let mut found = 0u64;
        let rounds = 2_000_000;
        let began = Instant::now();
        for _ in 0..rounds {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let id = SampleId((state >> 33) % samples);
            if let Lookup::Ready(sample) = black_box(memory.lookup(SampleKey::new(DatasetId(0), id))) {
                found += sample.len() as u64;
            }
        }
        let took = began.elapsed();
        println!(
            "{samples:>9} samples: store {:>6.1} ns, lookup in random order {:>6.1} ns ({found} bytes)",
            stored.as_secs_f64() * 1e9 / samples as f64,
            took.as_secs_f64() * 1e9 / f64::from(rounds),
        );
    }
}
