//! Numbers that look random, from numbers that do not.

/// The output function of SplitMix64: every bit of the result depends on every bit of `value`. For jitter, seeds and samples
/// of samples. It keeps no secret.
pub const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of the reference implementation with the seed 1234567.
    #[test]
    fn mix_is_the_output_function_of_splitmix64() {
        let state = |step: u64| 1_234_567_u64.wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let first: Vec<u64> = (0..3).map(|step| mix(state(step))).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}
