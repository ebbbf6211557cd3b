//! Every target survives its seeds and the first inputs of one seed: the part of fuzzing that
//! every change runs.

use udm_fuzz::corpus::Corpus;
use udm_fuzz::{TARGETS, Target};

const INPUTS: u64 = 2000;
const SEED: u64 = 1;

/// Names the input when a target panics on it.
struct Place(&'static Target, u64);

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "{}: input {} of seed {SEED}; `cargo xtask fuzz --target {} --seed {SEED}` keeps it",
                self.0.name, self.1, self.0.name
            );
        }
    }
}

#[test]
fn every_target_survives() {
    for target in TARGETS {
        let corpus = Corpus::load(target.name).expect("seeds can be read");
        for index in 0..corpus.len() as u64 + INPUTS {
            let place = Place(target, index);
            (target.run)(&target.input(&corpus, SEED, index));
            drop(place);
        }
    }
}

#[test]
fn every_target_has_seeds_and_a_name_of_its_own() {
    for (index, target) in TARGETS.iter().enumerate() {
        let corpus = Corpus::load(target.name).expect("seeds can be read");
        assert_ne!(corpus.get(0), Some(&b""[..]), "{}: put a valid input into fuzz/seeds/{0}/", target.name);
        assert!(TARGETS[..index].iter().all(|other| other.name != target.name), "{} is listed twice", target.name);
    }
}
