//! The feature words of a pool: how they are read and printed.

use udm_base::{ArgError, Args};

/// How many words there are at most: the kernel's five, and udm's.
const MOST: u64 = 8;

/// What a pool's table asks for (`struct pool_features`, `drivers/md/dm-thin.c`, 6.12, and udm's own).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Features {
    /// New blocks are zeroed where the write that they are for does not reach.
    pub(super) zero_new_blocks: bool,
    /// Discards are taken at all.
    pub(super) discard: bool,
    /// Discards of whole blocks go on to the data device.
    pub(super) passdown: bool,
    /// The metadata are never changed.
    pub(super) read_only: bool,
    /// Without space writes fail at once.
    pub(super) error_if_no_space: bool,
    /// Zeroes written to unprovisioned blocks are forgotten.
    pub(super) skip_zero_writes: bool,
    /// Whether a word said so, that the table line says it again.
    said_skip: bool,
    /// Zeroes written over a whole provisioned block unmap it.
    pub(super) unmap_zero_writes: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            zero_new_blocks: true,
            discard: true,
            passdown: true,
            read_only: false,
            error_if_no_space: false,
            skip_zero_writes: true,
            said_skip: false,
            unmap_zero_writes: false,
        }
    }
}

impl Features {
    /// Reads `[<n> <word>…]` (`parse_pool_features`).
    pub(super) fn parse(args: &mut Args) -> Result<Self, ArgError> {
        let mut features = Self::default();
        if args.left() == 0 {
            return Ok(features);
        }
        const COUNT: &str = "Invalid number of pool feature arguments";
        let (count, arg) = args.number(COUNT, "a number of feature words")?;
        if count > MOST {
            let hint = format!("expected at most {MOST}, found {count}");
            return Err(ArgError::new(COUNT).hint(hint).at(&arg));
        }
        if count > args.left() as u64 {
            let hint = format!("expected {count} feature words after it, found {}", args.left());
            return Err(ArgError::new("not enough arguments").hint(hint).at(&arg));
        }
        for _ in 0..count {
            let word = args.need("not enough arguments", "a feature word")?;
            match word.text.to_ascii_lowercase().as_str() {
                "skip_block_zeroing" => features.zero_new_blocks = false,
                "ignore_discard" => features.discard = false,
                "no_discard_passdown" => features.passdown = false,
                "read_only" => features.read_only = true,
                "error_if_no_space" => features.error_if_no_space = true,
                "enable_zero_writes" => features.skip_zero_writes = false,
                "skip_zero_writes" => (features.skip_zero_writes, features.said_skip) = (true, true),
                "unmap_zero_writes" => features.unmap_zero_writes = true,
                _ => {
                    let hint = format!("found {:?}; known are {}", word.text, WORDS.join(", "));
                    return Err(ArgError::new("Unrecognised pool feature requested").hint(hint).at(&word));
                }
            }
        }
        Ok(features)
    }

    /// The count and the words of a table line, as they load again.
    pub(super) fn words(&self) -> String {
        let words = [
            (!self.zero_new_blocks, "skip_block_zeroing"),
            (!self.discard, "ignore_discard"),
            (!self.passdown, "no_discard_passdown"),
            (self.read_only, "read_only"),
            (self.error_if_no_space, "error_if_no_space"),
            (!self.skip_zero_writes, "enable_zero_writes"),
            (self.skip_zero_writes && self.said_skip, "skip_zero_writes"),
            (self.unmap_zero_writes, "unmap_zero_writes"),
        ];
        let said: Vec<&str> = words.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect();
        std::iter::once(said.len().to_string()).chain(said.into_iter().map(str::to_owned)).collect::<Vec<_>>().join(" ")
    }

    /// Whether zeroes to unprovisioned blocks are in fact forgotten. Where new blocks are not zeroed, such a block
    /// could later show what lay there before, so that it has to be written.
    pub(super) const fn skips(&self) -> bool {
        self.skip_zero_writes && self.zero_new_blocks
    }

    /// Whether zeroes over a whole block in fact unmap it.
    pub(super) const fn unmaps(&self) -> bool {
        self.unmap_zero_writes && self.zero_new_blocks
    }
}

const WORDS: &[&str] = &[
    "skip_block_zeroing",
    "ignore_discard",
    "no_discard_passdown",
    "read_only",
    "error_if_no_space",
    "enable_zero_writes",
    "skip_zero_writes",
    "unmap_zero_writes",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_load_again() {
        for (input, expect) in [
            ("", Ok("0")),
            ("0", Ok("0")),
            ("1 skip_block_zeroing", Ok("1 skip_block_zeroing")),
            ("2 SKIP_BLOCK_ZEROING read_only", Ok("2 skip_block_zeroing read_only")),
            ("1 enable_zero_writes", Ok("1 enable_zero_writes")),
            ("1 skip_zero_writes", Ok("1 skip_zero_writes")),
            (
                "7 unmap_zero_writes error_if_no_space read_only no_discard_passdown ignore_discard skip_block_zeroing \
                 enable_zero_writes",
                Ok("7 skip_block_zeroing ignore_discard no_discard_passdown read_only error_if_no_space \
                    enable_zero_writes unmap_zero_writes"),
            ),
            ("9", Err("Invalid number of pool feature arguments: expected at most 8, found 9")),
            (
                "x",
                Err(
                    "Invalid number of pool feature arguments: expected a number of feature words as a decimal number, found \"x\"",
                ),
            ),
            ("2 read_only", Err("not enough arguments: expected 2 feature words after it, found 1")),
        ] {
            let got = Features::parse(&mut Args::parse(input));
            let again = got.as_ref().map(|f| Features::parse(&mut Args::parse(&f.words())).as_ref().ok() == Some(f));
            assert!(again.unwrap_or(true), "{input:?} loads again");
            let got = got.map(|f| f.words()).map_err(|e| e.to_string());
            assert_eq!(got, expect.map(str::to_owned).map_err(str::to_owned), "{input:?}");
        }
    }

    #[test]
    fn without_zeroing_nothing_is_skipped() {
        for (words, skips, unmaps) in [
            ("0", true, false),
            ("1 unmap_zero_writes", true, true),
            ("1 enable_zero_writes", false, false),
            ("3 skip_block_zeroing skip_zero_writes unmap_zero_writes", false, false),
        ] {
            let features = Features::parse(&mut Args::parse(words)).unwrap();
            assert_eq!((features.skips(), features.unmaps()), (skips, unmaps), "{words}");
        }
    }
}
