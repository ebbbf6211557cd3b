//! Medians and spreads of a few figures.

/// Where figures of several rounds lie.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The first quartile.
    pub low: f64,
    /// The third quartile.
    pub high: f64,
}

impl Spread {
    /// Of at least one figure; quartiles are interpolated between neighbours (as R's default, type 7).
    ///
    /// # Panics
    /// Without any figure.
    pub fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (sorted.len() - 1) as f64;
            let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Self { median: at(0.5), min: at(0.0), max: at(1.0), low: at(0.25), high: at(0.75) }
    }

    /// The range of the middle half.
    pub fn iqr(&self) -> f64 {
        self.high - self.low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles() {
        let check = |figures: &[f64], expect: [f64; 5]| {
            let s = Spread::of(figures);
            assert_eq!([s.min, s.low, s.median, s.high, s.max], expect, "{figures:?}");
        };
        check(&[3.0], [3.0; 5]);
        check(&[2.0, 1.0], [1.0, 1.25, 1.5, 1.75, 2.0]);
        check(&[5.0, 1.0, 4.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(Spread::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).iqr(), 2.0);
    }
}
