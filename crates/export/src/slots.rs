//! Things that are known by numbers, which are given out again when they have gone.

use std::ops::{Index, IndexMut};

/// Numbered things. A number that is in use never moves; the last to become free is the next to be used.
pub(crate) struct Slots<T> {
    all: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { all: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// How many are in use.
    pub(crate) fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// Puts one in. Allocates only when there are more than ever before.
    pub(crate) fn insert(&mut self, one: T) -> u32 {
        self.insert_with(|_| one)
    }

    /// Puts in what is made for a number.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            // What is numbered here is far less than 2^32: it has memory, or a descriptor.
            (self.all.len() - 1) as u32
        });
        self.all[number as usize] = Some(make(number));
        number
    }

    /// Takes one out; its number may be given to another.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let one = self.all.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(one)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.all.get(number as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.all.get_mut(number as usize)?.as_mut()
    }

    /// Those in use, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.all).filter_map(|(number, one)| Some((number, one.as_ref()?)))
    }

    /// Numbers that have been in use.
    pub(crate) fn numbers(&self) -> std::ops::Range<u32> {
        0..self.all.len() as u32
    }
}

impl<T> Index<u32> for Slots<T> {
    type Output = T;

    fn index(&self, number: u32) -> &T {
        self.get(number).expect("the number is in use")
    }
}

impl<T> IndexMut<u32> for Slots<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        self.get_mut(number).expect("the number is in use")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_out_again() {
        let mut slots = Slots::default();
        let [a, b, c] = ["a", "b", "c"].map(|one| slots.insert(one));
        assert_eq!((slots.len(), slots[a], slots[b], slots[c]), (3, "a", "b", "c"));
        assert_eq!((slots.remove(b), slots.remove(b), slots.remove(99)), (Some("b"), None, None));
        assert_eq!((slots.len(), slots.get(b), slots.numbers()), (2, None, 0..3));
        let again = slots.insert_with(|number| if number == b { "again" } else { "another" });
        assert_eq!((again, slots[again]), (b, "again"));
        slots[c] = "changed";
        assert_eq!(slots.iter().collect::<Vec<_>>(), [(a, &"a"), (b, &"again"), (c, &"changed")]);
    }
}
