//! The arithmetic of stripes.

use crate::Sectors;

/// A divisor that is a shift when it is a power of two, as nearly always.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Divisor {
    value: u64,
    shift: Option<u32>,
}

impl Divisor {
    /// # Panics
    /// When `value` is 0.
    pub const fn new(value: u64) -> Self {
        assert!(value > 0, "nothing is divided by 0");
        let shift = if value.is_power_of_two() { Some(value.trailing_zeros()) } else { None };
        Self { value, shift }
    }

    /// The divisor.
    #[inline]
    pub const fn get(self) -> u64 {
        self.value
    }

    /// Quotient and rest.
    #[inline]
    pub const fn split(self, n: u64) -> (u64, u64) {
        match self.shift {
            Some(shift) => (n >> shift, n & (self.value - 1)),
            None => (n / self.value, n % self.value),
        }
    }
}

/// A range that is spread over several, chunk by chunk in turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stripes {
    chunk: Divisor,
    count: Divisor,
}

impl Stripes {
    /// `count` stripes of chunks of `chunk`.
    ///
    /// # Panics
    /// When one is 0.
    pub const fn new(count: u64, chunk: Sectors) -> Self {
        Self { chunk: Divisor::new(chunk.get()), count: Divisor::new(count) }
    }

    /// The length of a chunk.
    pub const fn chunk(self) -> Sectors {
        Sectors::new(self.chunk.value)
    }

    /// How many stripes there are.
    pub const fn count(self) -> u64 {
        self.count.value
    }

    /// The stripe that `at` lies on, and how far into the stripe.
    #[inline]
    pub const fn locate(self, at: Sectors) -> (usize, Sectors) {
        let (chunk, into) = self.chunk.split(at.get());
        let (row, stripe) = self.count.split(chunk);
        (stripe as usize, Sectors::new(row * self.chunk.value + into))
    }

    /// How much of the chunk that `at` lies in is left from there on.
    pub const fn left_of_chunk(self, at: Sectors) -> Sectors {
        Sectors::new(self.chunk.value - self.chunk.split(at.get()).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locates_as_by_counting() {
        for (count, chunk) in [(1, 1), (2, 8), (3, 8), (2, 12), (3, 7)] {
            let stripes = Stripes::new(count, Sectors::new(chunk));
            let mut filled = vec![0; count as usize];
            for at in 0..count * chunk * 5 {
                let stripe = (at / chunk % count) as usize;
                let at = Sectors::new(at);
                assert_eq!(stripes.locate(at), (stripe, Sectors::new(filled[stripe])), "{count} × {chunk} at {at}");
                assert_eq!(stripes.left_of_chunk(at).get(), chunk - at.get() % chunk);
                filled[stripe] += 1;
            }
        }
    }
}
