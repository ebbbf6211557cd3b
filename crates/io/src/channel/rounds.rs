//! In one section a bio goes down and never round: the rule that lets sections end, checked in debug builds.
//!
//! Whoever waits for sections relies on each being short. A device may send a bio on to a device beneath it, as often
//! as a stack is deep. One that has a bio look again at a device where it has been sends it by mail
//! ([`Bio::resubmit`](crate::Bio::resubmit)), so that the section ends in between. Otherwise a bio could go round until
//! something changes, and who is to change it could be waiting for that very section.

use super::attached::LEVELS;

/// More devices than a bio comes to on its way down, those included that it asks twice because they changed meanwhile.
const MOST: u32 = 8 * LEVELS as u32;

/// To how many devices a bio came in one section.
#[derive(Clone, Copy)]
pub(crate) struct Rounds {
    section: u64,
    devices: u32,
}

impl Rounds {
    pub(crate) const NONE: Self = Self { section: 0, devices: 0 };

    /// Counts one more in `section`. False when the bio goes round.
    pub(super) fn count(&mut self, section: u64) -> bool {
        if std::mem::replace(&mut self.section, section) != section {
            self.devices = 0;
        }
        self.devices += 1;
        self.devices <= MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bio_may_go_down_in_each_section_and_round_in_none() {
        let mut rounds = Rounds::NONE;
        for section in 1..100 {
            assert!((0..MOST).all(|_| rounds.count(section)), "as deep as a stack, in section {section}");
        }
        assert!(!rounds.count(99), "round");
        assert!(rounds.count(100), "another section");
    }
}
