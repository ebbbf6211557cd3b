//! Random numbers that are the same in every release, since a crash is named by its seed.

/// `SplitMix64`.
pub(crate) struct Rng(u64);

impl Rng {
    /// The stream of input `index` under `seed`.
    pub(crate) fn new(seed: u64, index: u64) -> Self {
        let mut mixed = Self(seed);
        Self(mixed.next() ^ index.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, or 0 when `end` is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        // The remainder's bias does not matter here, and a usize fits in 64 bits.
        usize::try_from(self.next() % (end.max(1) as u64)).unwrap_or(0)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[7]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_splitmix64() {
        // The reference outputs for this seed.
        let mut rng = Rng(1_234_567);
        let numbers = [rng.next(), rng.next(), rng.next()];
        assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn inputs_differ() {
        assert_ne!(Rng::new(1, 2).next(), Rng::new(1, 3).next());
        assert_ne!(Rng::new(1, 2).next(), Rng::new(2, 2).next());
    }
}
