//! Things by number, for what is under way.

/// Things by number; numbers are used again.
pub(super) struct Slots<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Slots<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    pub(super) fn put(&mut self, thing: T) -> usize {
        let at = self.free.pop().unwrap_or(self.slots.len());
        if at == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[at] = Some(thing);
        at
    }

    pub(super) fn take(&mut self, at: usize) -> T {
        self.free.push(at);
        self.slots[at].take().expect("a number in use")
    }

    pub(super) fn get(&self, at: usize) -> &T {
        self.slots[at].as_ref().expect("a number in use")
    }

    pub(super) fn get_mut(&mut self, at: usize) -> &mut T {
        self.slots[at].as_mut().expect("a number in use")
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
