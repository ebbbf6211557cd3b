//! Who does what, since when, and whether it moves: the harness's own list of what is under way.
//!
//! Nothing is judged by the time that it takes: an entry counts as stuck when it has not moved for so many *ticks*, and
//! a tick is a second in which the watchdog itself came by in time. So a machine that stands still or has other work
//! makes nobody look stuck.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Locks, whatever became of who had it before.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one thread is doing.
struct Entry {
    who: String,
    doing: Mutex<Option<(String, Instant)>>,
    moves: AtomicU64,
}

/// A thread's own line in the list; it goes with it.
pub struct Actor {
    number: u64,
    entry: Arc<Entry>,
    watch: Arc<Watch>,
}

/// Everybody's lines.
#[derive(Default)]
pub struct Watch {
    entries: Mutex<BTreeMap<u64, Arc<Entry>>>,
    next: AtomicU64,
}

/// Something that has not moved for too long.
#[derive(Clone, Debug)]
pub struct Stuck {
    /// Who it is.
    pub who: String,
    /// What it waits for.
    pub doing: String,
    /// How long it has been at it.
    pub since: Duration,
}

impl Watch {
    /// A line for a thread.
    pub fn actor(self: &Arc<Self>, who: impl Into<String>) -> Actor {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let entry = Arc::new(Entry { who: who.into(), doing: Mutex::default(), moves: AtomicU64::new(0) });
        lock(&self.entries).insert(number, entry.clone());
        Actor { number, entry, watch: self.clone() }
    }

    /// All that is under way, longest first.
    pub fn under_way(&self) -> Vec<Stuck> {
        let entries: Vec<Arc<Entry>> = lock(&self.entries).values().cloned().collect();
        let mut lines: Vec<Stuck> = entries
            .iter()
            .filter_map(|entry| {
                let (doing, since) = lock(&entry.doing).clone()?;
                Some(Stuck { who: entry.who.clone(), doing, since: since.elapsed() })
            })
            .collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.since));
        lines
    }

    /// Looks at everybody each second until `stop`; returns what has not moved for `patience` ticks.
    pub fn watch(&self, patience: u64, stop: impl Fn() -> bool) -> Option<Stuck> {
        const TICK: Duration = Duration::from_secs(1);
        let mut quiet: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        while !stop() {
            let slept = Instant::now();
            std::thread::sleep(TICK);
            if slept.elapsed() > TICK * 2 {
                continue;
            }
            let entries = lock(&self.entries).clone();
            quiet.retain(|number, _| entries.contains_key(number));
            for (number, entry) in &entries {
                let (moves, busy) = (entry.moves.load(Ordering::Relaxed), lock(&entry.doing).clone());
                let seen = quiet.entry(*number).or_insert((moves, 0));
                *seen = if busy.is_some() && seen.0 == moves { (moves, seen.1 + 1) } else { (moves, 0) };
                if let Some((doing, since)) = busy.filter(|_| seen.1 >= patience) {
                    return Some(Stuck { who: entry.who.clone(), doing, since: since.elapsed() });
                }
            }
        }
        None
    }
}

impl Actor {
    /// Begins something that has to end.
    pub fn begin(&self, doing: impl Into<String>) {
        *lock(&self.entry.doing) = Some((doing.into(), Instant::now()));
        self.moved();
    }

    /// It went on.
    pub fn moved(&self) {
        self.entry.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// Nothing is under way.
    pub fn idle(&self) {
        *lock(&self.entry.doing) = None;
        self.moved();
    }

    /// Who it is.
    pub fn who(&self) -> &str {
        &self.entry.who
    }

    /// What it is doing.
    pub fn doing(&self) -> Option<String> {
        lock(&self.entry.doing).as_ref().map(|(doing, _)| doing.clone())
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        lock(&self.watch.entries).remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_listed() {
        let watch = Arc::new(Watch::default());
        let one = watch.actor("one");
        let two = watch.actor("two");
        one.begin("waiting");
        two.begin("working");
        two.idle();
        let lines = watch.under_way();
        assert_eq!(lines.len(), 1);
        assert_eq!((lines[0].who.as_str(), lines[0].doing.as_str()), ("one", "waiting"));
        drop(one);
        assert!(watch.under_way().is_empty());
    }
}
