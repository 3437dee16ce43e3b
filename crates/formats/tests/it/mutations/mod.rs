//! Damaged copies of files.

use foreread_types::SplitMix64;

/// A number below `limit`, or 0.
fn below(random: &mut SplitMix64, limit: usize) -> usize {
    random.below(limit.max(1) as u64) as usize
}

/// Bytes flipped, words set to extremes, parts copied over others, or the end cut off.
pub fn mutated(bytes: &[u8], random: &mut SplitMix64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + below(random, 4) {
        let length = bytes.len();
        // Metadata is where structures lie: most bytes are not zero there.
        let at = (0..8).map(|_| below(random, length)).find(|&at| bytes[at] != 0).unwrap_or(0);
        match below(random, 6) {
            0 | 1 => bytes[at] ^= 1 << below(random, 8),
            2 => bytes[at] = below(random, 256) as u8,
            3 => {
                let word = [0, 1, 255, 127][below(random, 4)];
                let end = (at + 1 + below(random, 8)).min(length);
                bytes[at..end].fill(word);
            }
            4 => {
                let from = below(random, length);
                let count = (1 + below(random, 64)).min(length - from).min(length - at);
                bytes.copy_within(from..from + count, at);
            }
            _ if below(random, 4) == 0 => bytes.truncate(1 + below(random, length)),
            _ => {}
        }
    }
    bytes
}
