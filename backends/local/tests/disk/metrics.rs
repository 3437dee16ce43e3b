//! The metrics of a tier.

use std::collections::BTreeMap;

use foreread_tier::CacheTier;
use foreread_types::DatasetId;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

use crate::rig::{files, known, open, read, run, store};

#[test]
fn metrics_count_events_and_held_bytes() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let seen = || -> BTreeMap<String, f64> {
        let value = |value| match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(value) => value.0,
            DebugValue::Histogram(_) => f64::NAN,
        };
        let all = snapshotter.snapshot().into_vec();
        all.into_iter().map(|(key, _, _, found)| (key.key().name().to_owned(), value(found))).collect()
    };
    let directory = tempfile::tempdir().unwrap();
    // The handles are registered when the tier is opened, and its threads use them from then on.
    let tier = metrics::with_local_recorder(&recorder, || open(directory.path(), 8 << 20));
    let mut bytes = 0;
    run(async {
        for id in 0..20 {
            store(&tier, &known(id)).await.unwrap().unwrap();
            bytes += tier.footprint().of(known(id).object.size);
        }
        let room = tier.footprint().of(known(7).object.size);
        tier.remove(vec![known(7).key]).await;
        let segment =
            files(directory.path()).into_iter().find(|path| path.ends_with("00000.segment")).unwrap();
        std::fs::File::options().write(true).open(segment).unwrap().set_len(4096).unwrap();
        read(&tier, &known(3)).await.unwrap_err();
        let held = bytes - room - tier.footprint().of(known(3).object.size);
        assert_eq!(tier.stored(DatasetId(0)).bytes, held);
        let expected = [
            ("foreread_disk_capacity_bytes", tier.capacity() as f64),
            ("foreread_disk_corrupt_samples_total", 1.0),
            ("foreread_disk_failed_samples_total", 0.0),
            ("foreread_disk_held_bytes", held as f64),
            ("foreread_disk_reads_in_flight", 0.0),
            ("foreread_disk_skipped_samples_total", 0.0),
            ("foreread_disk_written_bytes_total", bytes as f64),
            ("foreread_disk_written_samples_total", 20.0),
        ];
        let seen = seen();
        let found: Vec<_> = seen.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert_eq!(found, expected);
    });
}
