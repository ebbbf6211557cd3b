//! Rounds that take turns.

use crate::Error;
use crate::load::Load;
use crate::statistics::Spread;
use crate::subject::{Outcome, Subject, measure};
use std::time::Duration;
use udm_io::Domain;

/// One round.
#[derive(Clone)]
pub struct Round {
    /// Of the subject.
    pub outcome: Outcome,
    /// Of what it is compared with.
    pub against: Option<Outcome>,
}

impl Round {
    /// The subject's requests a second by the other's.
    pub fn ratio(&self) -> Option<f64> {
        let other = self.against.as_ref()?.iops();
        (other > 0.0).then(|| self.outcome.iops() / other)
    }
}

/// All rounds.
#[derive(Clone)]
pub struct Comparison {
    /// In their order.
    pub rounds: Vec<Round>,
}

impl Comparison {
    /// Of the subject's requests a second.
    pub fn iops(&self) -> Spread {
        Spread::of(&self.rounds.iter().map(|r| r.outcome.iops()).collect::<Vec<_>>())
    }

    /// Of the other's requests a second.
    pub fn against_iops(&self) -> Option<Spread> {
        let figures: Option<Vec<_>> = self.rounds.iter().map(|r| r.against.as_ref().map(Outcome::iops)).collect();
        figures.map(|f| Spread::of(&f))
    }

    /// Of the rounds' ratios.
    pub fn ratio(&self) -> Option<Spread> {
        let figures: Option<Vec<_>> = self.rounds.iter().map(Round::ratio).collect();
        figures.map(|f| Spread::of(&f))
    }

    /// The subject's rounds together.
    pub fn total(&self) -> Outcome {
        Self::sum(self.rounds.iter().map(|r| &r.outcome))
    }

    /// The other's rounds together.
    pub fn against_total(&self) -> Option<Outcome> {
        self.rounds[0].against.is_some().then(|| Self::sum(self.rounds.iter().filter_map(|r| r.against.as_ref())))
    }

    fn sum<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Outcome {
        let mut sum = Outcome::default();
        outcomes.for_each(|o| sum.add(o));
        sum
    }
}

/// Fills what `load` reads, then measures each `rounds` times, in turns, the one that begins changing from round to
/// round. `progress` hears of every round. Blocks as long as all that takes.
pub fn compare(
    domain: &Domain,
    subject: &Subject,
    against: Option<&Subject>,
    load: &Load,
    rounds: usize,
    mut progress: impl FnMut(&str, Option<&Round>),
) -> Result<Comparison, Error> {
    if rounds == 0 || rounds > 10_000 {
        return Err(Error::Load(format!("--rounds={rounds}: expected 1 to 10000")));
    }
    if load.verify.is_some() && (rounds > 1 || against.is_some()) {
        return Err(Error::Load("--verify goes with one round and without --against".to_owned()));
    }
    for one in std::iter::once(subject).chain(against) {
        one.span(load)?;
    }
    for one in std::iter::once(subject).chain(against) {
        if one.fills(load) && load.verify.is_none() {
            progress(&format!("filling {}", one.name()), None);
            one.fill(domain, load)?;
        }
    }
    // The first I/Os of a thread meet cold caches and lazy set-up; nobody counts them.
    if rounds > 1 {
        let warm = Load { runtime: Some(Duration::from_millis(20)), ..load.clone() };
        for one in std::iter::once(subject).chain(against) {
            measure(domain, one, &warm)?;
        }
    }
    let mut all = Vec::with_capacity(rounds);
    for number in 0..rounds {
        progress(&format!("round {} of {rounds}", number + 1), None);
        let round = match against {
            None => Round { outcome: measure(domain, subject, load)?, against: None },
            Some(other) if number % 2 == 0 => {
                let outcome = measure(domain, subject, load)?;
                Round { outcome, against: Some(measure(domain, other, load)?) }
            }
            Some(other) => {
                let against = measure(domain, other, load)?;
                Round { outcome: measure(domain, subject, load)?, against: Some(against) }
            }
        };
        progress(&format!("round {} of {rounds}", number + 1), Some(&round));
        all.push(round);
    }
    Ok(Comparison { rounds: all })
}
