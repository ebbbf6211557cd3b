//! Random numbers at a nanosecond each.

/// Spreads a seed's bits: the finalizer of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
/// generators", 2014).
#[inline]
pub const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Lehmer's multiplicative generator of 128 bits, whose upper half is given (L'Ecuyer: "Tables of linear
/// congruential generators", 1999): one multiplication a number.
pub struct Rng(u128);

impl Rng {
    /// Streams of different seeds or numbers have nothing to do with each other.
    pub fn new(seed: u64, stream: u64) -> Self {
        let low = mix(seed ^ mix(stream));
        // Odd, or the period would be short.
        Self((mix(low) as u128) << 64 | u128::from(low | 1))
    }

    /// The next 64 bits.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0xda94_2042_e4dd_58b5);
        (self.0 >> 64) as u64
    }

    /// A number below `n`, by a multiplication rather than a division (Lemire, 2019). Its bias is n / 2^64.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_comes_about_equally_often() {
        for n in [1u64, 2, 3, 7, 100] {
            let mut rng = Rng::new(42, n);
            let mut seen = vec![0u32; n as usize];
            let draws = 10_000 * n;
            for _ in 0..draws {
                seen[rng.below(n) as usize] += 1;
            }
            // Six standard deviations of a binomial with mean 10000.
            assert!(seen.iter().all(|c| c.abs_diff(10_000) < 600), "{n}: {seen:?}");
        }
    }

    #[test]
    fn a_seed_gives_one_sequence_and_streams_differ() {
        let take = |seed, stream| {
            let mut rng = Rng::new(seed, stream);
            [rng.draw(), rng.draw(), rng.draw()]
        };
        assert_eq!(take(1, 0), take(1, 0));
        assert_ne!(take(1, 0), take(1, 1));
        assert_ne!(take(1, 0), take(2, 0));
        assert_ne!(take(0, 1), take(1, 0));
    }
}
