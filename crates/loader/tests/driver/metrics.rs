//! The metrics that a recorder gets.

use std::collections::HashMap;
use std::sync::Arc;

use foreread_loader::ReadSource;
use foreread_memory::MemoryTier;
use foreread_tier_testing::FakeOrigin;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

use crate::rig::{Rig, next};

#[test]
fn delivered_samples_are_counted_by_source() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let rig = Rig { look_ahead: 10_000, ..Rig::new(FakeOrigin::uniform(100, 1_000)) };
            let rig = rig.cache(ReadSource::Memory, Arc::new(MemoryTier::new(1 << 20)), 1 << 20);
            let mut loader = rig.start();
            while let Some(batch) = next(&mut loader).await {
                batch.unwrap();
            }
            loader.report()
        })
    });
    let mut seen = HashMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let source = key.key().labels().map(|label| format!(" {}", label.value())).collect::<String>();
        let value = match value {
            DebugValue::Counter(count) => count,
            DebugValue::Histogram(values) => values.len() as u64,
            DebugValue::Gauge(now) => now.into_inner() as u64,
        };
        seen.insert(format!("{}{source}", key.key().name()), value);
    }
    let of = |name: &str| seen.get(name).copied().unwrap_or_default();
    for source in [ReadSource::Origin, ReadSource::Memory] {
        let name = source.as_str();
        let samples: u64 = report.passes.iter().map(|pass| pass.reads.from(source).samples).sum();
        assert_eq!(of(&format!("foreread_delivered_samples_total {name}")), samples, "{name}");
        assert_eq!(of(&format!("foreread_delivered_bytes_total {name}")), samples * 1_000, "{name}");
    }
    assert_eq!(of("foreread_delivered_samples_total origin"), 100);
    assert_eq!((of("foreread_delivered_batches_total"), of("foreread_batch_wait_seconds")), (26, 26));
    assert_eq!(of("foreread_look_ahead_bytes"), 10_000);
    assert_eq!((of("foreread_skipped_samples_total"), of("foreread_substituted_samples_total")), (0, 0));
}
