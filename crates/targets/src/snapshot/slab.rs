//! Things by number: numbers are used again.

pub(super) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn put(&mut self, thing: T) -> usize {
        let at = self.free.pop().unwrap_or(self.slots.len());
        if at == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[at] = Some(thing);
        at
    }

    pub(super) fn get(&self, at: usize) -> Option<&T> {
        self.slots.get(at)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.slots.get_mut(at)?.as_mut()
    }

    pub(super) fn take(&mut self, at: usize) -> Option<T> {
        let thing = self.slots.get_mut(at)?.take();
        if thing.is_some() {
            self.free.push(at);
        }
        thing
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.free.clear();
        std::mem::take(&mut self.slots).into_iter().flatten()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again() {
        let mut slab = Slab::default();
        assert_eq!([slab.put('a'), slab.put('b'), slab.put('c')], [0, 1, 2]);
        assert_eq!((slab.take(1), slab.take(1), slab.take(7)), (Some('b'), None, None));
        assert_eq!((slab.get(1), slab.get(2)), (None, Some(&'c')));
        assert_eq!([slab.put('d'), slab.put('e')], [1, 3]);
        *slab.get_mut(3).unwrap() = 'f';
        assert!(!slab.is_empty());
        assert_eq!(slab.take_all().collect::<String>(), "adcf");
        assert!(slab.is_empty());
        assert_eq!(slab.put('g'), 0);
    }
}
