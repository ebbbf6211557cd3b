//! Which operation is next.

use crate::operations::Operation;
use crate::options::Options;
use crate::watch::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use udm_sim::Rng;

/// How often an operation is tried that finds nothing to do, when each is to be done once, and how many others are done
/// before each attempt but the first.
const TRIES: u32 = 8;
const OTHERS: u32 = 2;
/// What makes something to do for an operation. Before others it is any.
const MAKERS: &[(&str, &str)] =
    &[("merge", "snapshot"), ("merge-end", "merge"), ("snapshot-remove", "snapshot"), ("thin-delete", "thin-snapshot")];

/// What operators do, and for how long.
pub struct Mix {
    operations: Vec<Operation>,
    end: End,
}

enum End {
    At(Instant),
    /// When these have been done.
    Done(Mutex<Vec<Left>>),
}

/// An operation that has not been done.
struct Left {
    op: Operation,
    tried: u32,
    /// How many others are to be done before.
    others: u32,
}

/// What an operator is to do.
pub struct Next {
    /// The operation.
    pub op: Operation,
    /// How often it has been tried, when it has to be done.
    tried: Option<u32>,
}

impl Mix {
    /// The mix that begins now.
    pub fn new(operations: &[Operation], options: &Options, rng: &mut Rng) -> Self {
        let end = if options.once {
            let mut left: Vec<_> = operations.iter().map(|op| Left { op: *op, tried: 0, others: 0 }).collect();
            for at in (1..left.len()).rev() {
                left.swap(at, rng.below(at as u64 + 1) as usize);
            }
            End::Done(Mutex::new(left))
        } else {
            End::At(Instant::now() + Duration::from_secs(options.seconds))
        };
        Self { operations: operations.to_vec(), end }
    }

    /// The next operation for an operator; `None` when it is over.
    pub fn next(&self, rng: &mut Rng) -> Option<Next> {
        match &self.end {
            End::At(end) => (Instant::now() < *end).then(|| self.any(rng)).flatten(),
            End::Done(left) => {
                let mut left = lock(left);
                match left.last_mut()? {
                    Left { op, others: others @ 1.., .. } => {
                        *others -= 1;
                        self.maker(op.name).map(|op| Next { op, tried: None }).or_else(|| self.any(rng))
                    }
                    _ => left.pop().map(|Left { op, tried, .. }| Next { op, tried: Some(tried) }),
                }
            }
        }
    }

    /// It found nothing to do: perhaps later, when others have made something.
    pub fn again(&self, Next { op, tried }: Next) {
        if let (End::Done(left), Some(tried)) = (&self.end, tried)
            && tried + 1 < TRIES
        {
            lock(left).insert(0, Left { op, tried: tried + 1, others: OTHERS });
        }
    }

    fn maker(&self, name: &str) -> Option<Operation> {
        let (_, maker) = MAKERS.iter().find(|(made_for, _)| *made_for == name)?;
        self.operations.iter().find(|op| op.name == *maker).copied()
    }

    /// One by chance, as often as its weight says.
    fn any(&self, rng: &mut Rng) -> Option<Next> {
        let weights = self.operations.iter().map(|op| op.weight).sum();
        let mut at = if weights > 0 { rng.below(weights) } else { return None };
        let chosen = self.operations.iter().find(|op| {
            let here = at < op.weight;
            at = at.saturating_sub(op.weight);
            here
        });
        chosen.map(|op| Next { op: *op, tried: None })
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
            std::iter::from_fn(|| mix.next(&mut rng)).map(|next| next.op.name).collect::<Vec<_>>()
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
        let (mut tries, mut others) = (0, 0);
        while let Some(next) = mix.next(&mut rng) {
            *(if next.tried.is_some() { &mut tries } else { &mut others }) += 1;
            mix.again(next);
        }
        let all = OPERATIONS.len() as u32;
        assert_eq!((tries, others), (all * TRIES, all * (TRIES - 1) * OTHERS));
    }

    #[test]
    fn makers_are_operations() {
        let is_one = |name: &str| OPERATIONS.iter().any(|op| op.name == name);
        assert!(MAKERS.iter().all(|(made_for, maker)| is_one(made_for) && is_one(maker)), "{MAKERS:?}");
    }

    #[test]
    fn no_seconds_are_over_at_once() {
        let (mix, mut rng) = mix(&["--seconds", "0"], 1);
        assert!(mix.next(&mut rng).is_none());
        let any = mix.any(&mut rng).expect("there are some");
        assert!(OPERATIONS.iter().any(|op| op.name == any.op.name));
    }
}
