//! Parses any bytes as a layout, and asks it everything. Ranges contain their offset.
#![no_main]

use foreread_lustre::Layout;
use foreread_tier::ObjectLayout;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let layout = Layout::parse(bytes);
    let stated = bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()));
    for offset in stated.chain([0, 1 << 20, u64::MAX - 1, u64::MAX]) {
        let target = layout.server(offset);
        if let Some(run) = layout.run(offset) {
            assert!(run.contains(&offset) && target.is_some());
            assert_eq!(layout.server(run.start), target);
        }
    }
});
