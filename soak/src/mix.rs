//! Which operation is next.

use crate::operations::Operation;
use crate::options::Options;
use crate::watch::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use udm_sim::Rng;

/// How often an operation is tried that finds nothing to do, when each is to be done once.
const TRIES: u32 = 5;

/// What operators do, and for how long.
pub struct Mix {
    operations: Vec<Operation>,
    end: End,
}

enum End {
    At(Instant),
    /// When these have been done: each with how often it has been tried.
    Done(Mutex<Vec<(Operation, u32)>>),
}

impl Mix {
    /// The mix that begins now.
    pub fn new(operations: &[Operation], options: &Options, rng: &mut Rng) -> Self {
        let end = if options.once {
            let mut left: Vec<_> = operations.iter().map(|op| (*op, 0)).collect();
            for at in (1..left.len()).rev() {
                left.swap(at, rng.below(at as u64 + 1) as usize);
            }
            End::Done(Mutex::new(left))
        } else {
            End::At(Instant::now() + Duration::from_secs(options.seconds))
        };
        Self { operations: operations.to_vec(), end }
    }

    /// The next operation for an operator, and how often it has been tried; `None` when it is over.
    pub fn next(&self, rng: &mut Rng) -> Option<(Operation, u32)> {
        match &self.end {
            End::At(end) => (Instant::now() < *end).then(|| self.any(rng)).flatten().map(|op| (op, 0)),
            End::Done(left) => lock(left).pop(),
        }
    }

    /// An operation found nothing to do: perhaps later, when others have made something.
    pub fn again(&self, op: Operation, tried: u32) {
        if let End::Done(left) = &self.end
            && tried + 1 < TRIES
        {
            lock(left).insert(0, (op, tried + 1));
        }
    }

    /// One by chance, as often as its weight says.
    fn any(&self, rng: &mut Rng) -> Option<Operation> {
        let weights = self.operations.iter().map(|op| op.weight).sum();
        let mut at = if weights > 0 { rng.below(weights) } else { return None };
        let chosen = self.operations.iter().find(|op| {
            let here = at < op.weight;
            at = at.saturating_sub(op.weight);
            here
        });
        chosen.copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::OPERATIONS;
    use clap::Parser;

    fn mix(words: &[&str], seed: u64) -> (Mix, Rng) {
        let mut rng = Rng::new(seed);
        let options = Options::parse_from([&["soak"], words].concat());
        (Mix::new(OPERATIONS, &options, &mut rng), rng)
    }

    #[test]
    fn once_is_each_operation_once() {
        let names = |seed| {
            let (mix, mut rng) = mix(&["--once"], seed);
            std::iter::from_fn(|| mix.next(&mut rng)).map(|(op, _)| op.name).collect::<Vec<_>>()
        };
        let (mut one, other) = (names(1), names(2));
        assert_ne!(one, other, "the seed fixes the order");
        assert_eq!(one, names(1));
        one.sort_unstable();
        let mut all: Vec<_> = OPERATIONS.iter().map(|op| op.name).collect();
        all.sort_unstable();
        assert_eq!(one, all);
    }

    #[test]
    fn what_finds_nothing_to_do_is_tried_again_but_not_for_ever() {
        let (mix, mut rng) = mix(&["--once"], 1);
        let mut turns = 0;
        while let Some((op, tried)) = mix.next(&mut rng) {
            turns += 1;
            mix.again(op, tried);
        }
        assert_eq!(turns, OPERATIONS.len() as u32 * TRIES);
    }

    #[test]
    fn no_seconds_are_over_at_once() {
        let (mix, mut rng) = mix(&["--seconds", "0"], 1);
        assert!(mix.next(&mut rng).is_none());
        let any = mix.any(&mut rng).expect("there are some");
        assert!(OPERATIONS.iter().any(|op| op.name == any.name));
    }
}
