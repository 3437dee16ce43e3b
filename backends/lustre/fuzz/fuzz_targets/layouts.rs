//! Parses any bytes as a layout, and asks it everything. Ranges contain their offset.
#![no_main]

use foreread_lustre::{Layout, Target};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let layout = Layout::parse(bytes);
    let stated = bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()));
    for offset in stated.chain([0, 1 << 20, u64::MAX - 1, u64::MAX]) {
        let target = layout.target_of(offset, u64::MAX);
        if let Some(run) = layout.stripe_run(offset) {
            assert!(run.contains(&offset) && (target != Target::Unknown || offset == u64::MAX));
            assert_eq!(layout.target_of(run.start, u64::MAX), target);
        }
    }
});
