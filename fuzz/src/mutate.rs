//! Changes to seeds that parsers have been known to stumble over.

use crate::corpus::Corpus;
use crate::rng::Rng;

/// No input is longer: what a parser does with more, it does with this.
const MAX_LENGTH: usize = 4096;

/// Numbers at the borders of types and of sectors, pages and huge pages.
const NUMBERS: &[u64] = &[
    0,
    1,
    7,
    8,
    0x7f,
    0x80,
    0xff,
    0x100,
    511,
    512,
    513,
    4095,
    4096,
    0x7fff,
    0x8000,
    0xffff,
    0x10000,
    1 << 21,
    i32::MAX as u64,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 55,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 511,
    u64::MAX,
];

/// One input: a seed, changed in one to eight places.
pub(crate) fn input(corpus: &Corpus, words: &[&[u8]], mut rng: Rng) -> Vec<u8> {
    let mut data = seed(corpus, &mut rng).to_vec();
    for _ in 0..=rng.below(8) {
        change(&mut data, corpus, words, &mut rng);
        data.truncate(MAX_LENGTH);
    }
    data
}

fn seed<'a>(corpus: &'a Corpus, rng: &mut Rng) -> &'a [u8] {
    corpus.get(rng.below(corpus.len())).unwrap_or_default()
}

fn change(data: &mut Vec<u8>, corpus: &Corpus, words: &[&[u8]], rng: &mut Rng) {
    let at = rng.below(data.len() + 1);
    let range = at..at + rng.below(data.len() - at + 1);
    match rng.below(9) {
        0 => {
            if let Some(byte) = data.get_mut(at) {
                *byte ^= 1 << rng.below(8);
            }
        }
        1 => {
            if let Some(byte) = data.get_mut(at) {
                *byte = rng.byte();
            }
        }
        2 => drop(data.drain(range)),
        3 => {
            let copy = data[range].to_vec();
            insert(data, at, &copy);
        }
        4 => {
            let bytes: Vec<u8> = (0..rng.below(16)).map(|_| rng.byte()).collect();
            insert(data, at, &bytes);
        }
        5 => overwrite(data, at, &binary_number(rng)),
        6 => {
            let number = NUMBERS[rng.below(NUMBERS.len())].to_string();
            insert(data, at, number.as_bytes());
        }
        7 => insert(data, at, words.get(rng.below(words.len())).copied().unwrap_or_default()),
        _ => {
            // The head of one seed on the tail of another.
            let tail = seed(corpus, rng);
            let from = rng.below(tail.len() + 1);
            data.truncate(at);
            data.extend_from_slice(&tail[from..]);
        }
    }
}

/// A border number of 1, 2, 4 or 8 bytes, little- or big-endian.
fn binary_number(rng: &mut Rng) -> Vec<u8> {
    let number = NUMBERS[rng.below(NUMBERS.len())];
    let width = 1 << rng.below(4);
    if rng.below(2) == 0 { number.to_le_bytes()[..width].to_vec() } else { number.to_be_bytes()[8 - width..].to_vec() }
}

fn insert(data: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    data.splice(at..at, bytes.iter().copied());
}

fn overwrite(data: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = data.len().min(at + bytes.len());
    data.splice(at..end, bytes.iter().copied());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn inputs_are_many_bounded_and_repeatable() {
        let corpus = Corpus::of(&[b"0 8 linear /dev/x 0", &[7; MAX_LENGTH]]);
        let make = |index| input(&corpus, &[b"striped"], Rng::new(1, index));
        let inputs: BTreeSet<Vec<u8>> = (0..1000).map(make).collect();
        assert!(inputs.len() > 900, "only {} of 1000 differ", inputs.len());
        assert!(inputs.iter().all(|input| input.len() <= MAX_LENGTH));
        assert!(inputs.iter().any(|input| input.windows(7).any(|w| w == b"striped")), "words are used");
        assert_eq!(make(77), make(77));
    }

    #[test]
    fn nothing_can_be_changed_too() {
        let corpus = Corpus::of(&[b""]);
        let longest = (0..1000).map(|index| input(&corpus, &[], Rng::new(1, index)).len()).max();
        assert!(longest > Some(8));
    }
}
