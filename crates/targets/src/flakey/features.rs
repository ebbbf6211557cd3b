//! What a flakey device does while it is down.

use super::spoiled::Spoils;
use crate::faults::{Draws, Way};
use std::fmt;
use udm_base::{Arg, ArgError, Args, Sectors};
use udm_io::{Bio, Op, OpFlags};

/// What a probability of 1 is (`PROBABILITY_BASE`).
const ALWAYS: u32 = 1_000_000_000;
/// How many words there are at most.
const WORDS_MAX: u64 = 11;

/// The features of a table line (`struct flakey_c`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Features {
    pub(super) error_reads: bool,
    pub(super) error_writes: bool,
    pub(super) drop_writes: bool,
    byte: Option<Byte>,
    /// Of [`ALWAYS`]; 0 for never.
    random_reads: u32,
    random_writes: u32,
}

/// `corrupt_bio_byte`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Byte {
    /// From 1.
    number: u32,
    way: Way,
    value: u8,
    /// What a bio must have, in the kernel's numbers.
    flags: u32,
}

impl Features {
    /// Reads `[<number of words> <feature>…]` (`parse_features`).
    pub(super) fn parse(args: &mut Args) -> Result<Self, ArgError> {
        let mut features = Self::default();
        let mut left = args.group(WORDS_MAX, "Invalid number of feature args", "feature words")?;
        let mut last = None;
        while left > 0 {
            let word = args.need("Insufficient feature arguments", "a feature")?;
            left -= 1 + features.word(args, &word, left - 1)?;
            last = Some(word);
        }
        if let Some(word) = last {
            features.check().map_err(|message| ArgError::new(message).hint("expected one of the two").at(&word))?;
        }
        if features == Self::default() {
            (features.error_reads, features.error_writes) = (true, true);
        }
        Ok(features)
    }

    /// Takes one feature, of whose words `left` can follow. Returns how many did. What spoils data may stand there
    /// twice, as in the kernel: the last one counts.
    fn word(&mut self, args: &mut Args, word: &Arg, left: u64) -> Result<u64, ArgError> {
        let name = word.text.to_ascii_lowercase();
        let wrong = |message: String, hint: &str| Err(ArgError::new(message).hint(hint).at(word));
        let duplicated = || wrong(format!("Feature {name} duplicated"), "expected each feature at most once");
        let conflict =
            |other: &str| wrong(format!("Feature {name} conflicts with feature {other}"), "expected one of the two");
        match name.as_str() {
            "error_reads" if self.error_reads => duplicated(),
            "drop_writes" if self.drop_writes => duplicated(),
            "error_writes" if self.error_writes => duplicated(),
            "drop_writes" if self.error_writes => conflict("error_writes"),
            "error_writes" if self.drop_writes => conflict("drop_writes"),
            "error_reads" => Ok(none(&mut self.error_reads)),
            "drop_writes" => Ok(none(&mut self.drop_writes)),
            "error_writes" => Ok(none(&mut self.error_writes)),
            "corrupt_bio_byte" if left < 4 => {
                let hint = format!("expected <number> <r or w> <value> <flags> after it, found {left} of the words");
                Err(ArgError::new("Feature corrupt_bio_byte requires parameters").hint(hint).at(word))
            }
            "corrupt_bio_byte" => {
                self.byte = Some(Byte::parse(args)?);
                Ok(4)
            }
            "random_read_corrupt" => chance(&mut self.random_reads, args, word, left),
            "random_write_corrupt" => chance(&mut self.random_writes, args, word, left),
            _ => {
                let hint = format!("found {:?}; known are {}", word.text, KNOWN.join(", "));
                Err(ArgError::new("Unrecognised flakey feature requested").hint(hint).at(word))
            }
        }
    }

    /// Features that exclude each other, as kernel 6.12 has it: what else would be spoilt fails or is dropped first.
    fn check(&self) -> Result<(), String> {
        let name = match (self.drop_writes, self.error_writes) {
            (true, _) => "drop_writes",
            (_, true) => "error_writes",
            _ => return Ok(()),
        };
        let spoils = self.byte.is_some_and(|byte| byte.way == Way::Write);
        let with = "is incompatible with corrupt_bio_byte with the WRITE flag set";
        if spoils { Err(format!("{name} {with}")) } else { Ok(()) }
    }

    /// Whether reads may come home spoilt.
    pub(super) fn spoils_reads(&self) -> bool {
        self.random_reads > 0 || self.byte.is_some_and(|byte| byte.way == Way::Read)
    }

    /// Whether writes may.
    pub(super) fn spoils_writes(&self) -> bool {
        self.random_writes > 0 || self.byte.is_some_and(|byte| byte.way == Way::Write)
    }

    /// Which bytes of a bio are replaced this time: the one that the table names, and one by chance.
    pub(super) fn spoils(&self, bio: &Bio, at: Sectors, draws: &Draws) -> Spoils {
        if !bio.op().has_payload() {
            return [None; 2];
        }
        let (way, len) = (Way::of(bio), bio.sectors().as_len());
        let named = self.byte.filter(|byte| byte.way == way && opf(bio) & byte.flags == byte.flags);
        let named = named.map(|byte| (byte.number as usize - 1, byte.value)).filter(|(number, _)| *number < len);
        let probability = if way == Way::Read { self.random_reads } else { self.random_writes };
        let random = (probability > 0).then(|| draws.draw(way, at)).and_then(|mut draw| {
            let happens = draw.below(u64::from(ALWAYS)) < u64::from(probability);
            happens.then(|| (draw.below(len as u64) as usize, draw.next() as u8))
        });
        [named, random]
    }
}

const KNOWN: &[&str] =
    &["error_reads", "drop_writes", "error_writes", "corrupt_bio_byte", "random_read_corrupt", "random_write_corrupt"];

/// A feature without words of its own.
fn none(feature: &mut bool) -> u64 {
    *feature = true;
    0
}

fn chance(probability: &mut u32, args: &mut Args, word: &Arg, left: u64) -> Result<u64, ArgError> {
    let name = word.text.to_ascii_lowercase();
    if left == 0 {
        let hint = format!("expected a probability from 0 to {ALWAYS} after it, as one of the words");
        return Err(ArgError::new(format!("Feature {name} requires a parameter")).hint(hint).at(word));
    }
    let range = 0..=u64::from(ALWAYS);
    *probability = args.number_within(range, "Invalid random corrupt argument", "a probability")?.0 as u32;
    Ok(1)
}

impl Byte {
    fn parse(args: &mut Args) -> Result<Self, ArgError> {
        const WAY: &str = "Invalid corrupt bio direction (r or w)";
        const VALUE: &str = "Invalid corrupt value to write into bio byte (0-255)";
        const ANY: u64 = u32::MAX as u64;
        let number = args.number_within(1..=ANY, "Invalid corrupt bio byte", "the number of a byte")?.0 as u32;
        let way = args.need(WAY, "r or w")?;
        let way = match way.text.to_ascii_lowercase().as_str() {
            "r" => Way::Read,
            "w" => Way::Write,
            _ => return Err(ArgError::new(WAY).hint(format!("found {:?}", way.text)).at(&way)),
        };
        let value = args.number_within(0..=255, VALUE, "a value")?.0 as u8;
        let flags = args.number_within(0..=ANY, "Invalid corrupt bio flags mask", "a mask of flags")?.0 as u32;
        Ok(Self { number, way, value, flags })
    }
}

/// What a bio asks for, in the kernel's numbers, as far as udm knows of such things (`enum req_op` and
/// `enum req_flag_bits`, `include/linux/blk_types.h`, 6.12).
fn opf(bio: &Bio) -> u32 {
    const FLAGS: [(OpFlags, u32); 3] = [(OpFlags::FUA, 17), (OpFlags::HIPRI, 22), (OpFlags::NO_UNMAP, 28)];
    let op = match bio.op() {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 2,
        Op::Discard => 3,
        Op::WriteZeroes => 9,
    };
    FLAGS.into_iter().filter(|(flag, _)| bio.flags().contains(*flag)).fold(op, |opf, (_, bit)| opf | 1 << bit)
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = Vec::new();
        let plain = [(self.error_reads, "error_reads"), (self.drop_writes, "drop_writes")];
        let plain = plain.into_iter().chain([(self.error_writes, "error_writes")]);
        words.extend(plain.filter(|(is, _)| *is).map(|(_, word)| word.to_owned()));
        if let Some(Byte { number, way, value, flags }) = self.byte {
            let way = if way == Way::Write { "w" } else { "r" };
            words.extend(["corrupt_bio_byte".into(), number.to_string(), way.into()]);
            words.extend([value.to_string(), flags.to_string()]);
        }
        let random = [("random_read_corrupt", self.random_reads), ("random_write_corrupt", self.random_writes)];
        for (word, probability) in random.into_iter().filter(|(_, probability)| *probability > 0) {
            words.extend([word.to_owned(), probability.to_string()]);
        }
        write!(f, "{}", words.len())?;
        words.iter().try_for_each(|word| write!(f, " {word}"))
    }
}
