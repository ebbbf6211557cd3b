//! Ways that take turns, so that what else runs on the machine meets all of them.

use udm_bench::{Error, Spread};

/// One way of doing something. `measure` does it once and gives a figure.
pub(crate) struct Way<'a> {
    pub(crate) name: &'static str,
    pub(crate) measure: Box<dyn FnMut() -> Result<f64, Error> + 'a>,
}

impl<'a> Way<'a> {
    pub(crate) fn new(name: &'static str, measure: impl FnMut() -> Result<f64, Error> + 'a) -> Self {
        Self { name, measure: Box::new(measure) }
    }
}

/// The figures of every way, round by round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures(Vec<(&'static str, Vec<f64>)>);

/// Does each way once a round, each round beginning with another one. One round before them counts for nobody: it
/// meets cold caches. `told` hears of each round.
pub(crate) fn turns(rounds: usize, ways: &mut [Way<'_>], mut told: impl FnMut(usize)) -> Result<Figures, Error> {
    let mut all: Vec<_> = ways.iter().map(|way| (way.name, Vec::with_capacity(rounds))).collect();
    let count = ways.len();
    for round in 0..=rounds {
        told(round);
        for turn in 0..count {
            let at = (round + turn) % count;
            let figure = (ways[at].measure)()?;
            if round > 0 {
                all[at].1.push(figure);
            }
        }
    }
    Ok(Figures(all))
}

impl Figures {
    /// Whether there is such a way.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| *known == name)
    }

    /// Of one way.
    ///
    /// # Panics
    /// When there is no such way.
    pub(crate) fn of(&self, name: &str) -> &[f64] {
        &self.0.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no way is called {name}")).1
    }

    /// The median of one way's rounds.
    pub(crate) fn median(&self, name: &str) -> f64 {
        Spread::of(self.of(name)).median
    }

    /// The greatest figure of one way's rounds.
    pub(crate) fn greatest(&self, name: &str) -> f64 {
        Spread::of(self.of(name)).max
    }

    /// One way by another, round by round.
    pub(crate) fn ratios(&self, name: &str, by: &str) -> Vec<f64> {
        self.of(name).iter().zip(self.of(by)).map(|(a, b)| a / b).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn every_way_has_its_turn() {
        let log = RefCell::new(String::new());
        let way = |name: &'static str, figures: &'static [f64]| {
            let log = &log;
            let mut next = 0;
            Way::new(name, move || {
                log.borrow_mut().push_str(name);
                next += 1;
                Ok(figures[next - 1])
            })
        };
        let mut ways = [way("a", &[99.0, 1.0, 3.0, 2.0]), way("b", &[99.0, 2.0, 2.0, 2.0])];
        let found = turns(3, &mut ways, |_| ()).unwrap();
        assert_eq!(*log.borrow(), "abbaabba", "the first round is the cold one");
        assert_eq!((found.median("a"), found.median("b")), (2.0, 2.0));
        assert_eq!(found.ratios("a", "b"), [0.5, 1.5, 1.0]);
    }
}
