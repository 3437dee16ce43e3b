//! Pseudo-random numbers: SplitMix64 (Steele, Lea and Flood, 2014).

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64: every bit of the result depends on every bit of `value`. For
/// jitter, seeds and sampling. It is not cryptographic.
#[inline]
pub const fn mix(value: u64) -> u64 {
    finalize(value.wrapping_add(GAMMA))
}

/// The finalizer alone (Stafford's variant 13), which maps 0 to 0.
#[inline]
pub const fn finalize(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The generator. Its field is the state, which starts as the seed.
#[derive(Clone, Debug)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next number.
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        finalize(self.0)
    }

    /// The next number, below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of the reference implementation with the seed 1234567.
    #[test]
    fn splitmix64_equals_the_reference() {
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        let mut generator = SplitMix64(1_234_567);
        assert_eq!([(); 3].map(|()| generator.draw()), expected);
        assert_eq!(mix(1_234_567), expected[0]);
    }
}
