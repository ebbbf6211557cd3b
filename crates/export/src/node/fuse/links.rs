//! A worker's ends of the connections: which of them may have requests, and how much of the memory each may hold.
//!
//! # The share of a connection
//! A worker has [`MEMORY`] for data of requests under way, of all connections together. A connection takes requests in
//! while it holds less than what is left: so one alone gets half, and who comes after those that hold their share finds
//! as much as the last of them has. Beyond its share its requests stay in the kernel, where their data is the callers'
//! own memory. One worker, its home, takes [`SURE`] of it whatever the others hold: so each goes on, however many do
//! not.

use super::connection::Connection;
use crate::slots::Slots;
use rustix::fd::AsFd;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use udm_io::Channel;

/// Bytes of data under way in one worker, apart from what connections that are at home there are sure of.
pub(super) const MEMORY: usize = 16 << 20;
/// What a connection may hold at its home, whatever others hold; the last of its requests may go beyond.
pub(super) const SURE: usize = 1 << 20;
/// What a request counts for at least: its place among the requests under way.
pub(super) const LEAST: usize = 4096;

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The channel tells when something comes.
    Quiet,
    /// It is to be looked at.
    Ready,
    /// It holds its share.
    Full,
}

/// A worker's end of a connection.
pub(super) struct Link {
    pub(super) connection: Arc<Connection>,
    /// The device's place among those of the worker, where it was last.
    pub(super) device: u32,
    held: usize,
    jobs: usize,
    place: Place,
    watched: bool,
    gone: bool,
}

/// All of a worker's.
pub(super) struct Links {
    slots: Slots<Link>,
    ready: VecDeque<u32>,
    full: Vec<u32>,
    held: usize,
    /// The worker, of how many.
    number: usize,
    workers: usize,
    watching: bool,
}

impl Links {
    pub(super) fn new((number, workers): (usize, usize)) -> Self {
        let (slots, ready, full) = (Slots::default(), VecDeque::new(), Vec::new());
        Self { slots, ready, full, held: 0, number, workers, watching: false }
    }

    /// Takes a connection on; it is looked at next.
    pub(super) fn add(&mut self, channel: &Channel, connection: Arc<Connection>) -> io::Result<()> {
        let (device, held, jobs) = (u32::MAX, 0, 0);
        let link = Link { connection, device, held, jobs, place: Place::Quiet, watched: false, gone: false };
        let number = self.slots.insert(link);
        self.look(number);
        if self.watching { self.watch(channel, number, true) } else { Ok(()) }
    }

    pub(super) fn get(&self, link: u32) -> Option<&Link> {
        self.slots.get(link)
    }

    /// A request's: it stays for as long as that is under way.
    pub(super) fn of_request(&mut self, link: u32) -> &mut Link {
        &mut self.slots[link]
    }

    /// The one of a connection.
    pub(super) fn of(&self, connection: &Arc<Connection>) -> Option<u32> {
        self.slots.iter().find(|(_, link)| Arc::ptr_eq(&link.connection, connection)).map(|(number, _)| number)
    }

    /// Looks at those that are at home here. Which of them have room for what is there.
    pub(super) fn look_at_home(&mut self) -> Vec<u32> {
        let at_home = self.slots.iter().filter(|(_, link)| self.is_home(link));
        let mut looked: Vec<_> = at_home.map(|(number, _)| number).collect();
        looked.iter().for_each(|number| self.look(*number));
        looked.retain(|number| self.get(*number).is_some_and(|link| link.place == Place::Ready));
        looked
    }

    fn is_home(&self, link: &Link) -> bool {
        self.home_of(link) == self.number
    }

    fn home_of(&self, link: &Link) -> usize {
        // Less than the number of workers.
        (link.connection.id % self.workers as u64) as usize
    }

    /// The worker where a connection is at home.
    pub(super) fn home(&self, link: u32) -> usize {
        self.get(link).map_or(self.number, |link| self.home_of(link))
    }

    /// Whether the connection may hold more.
    pub(super) fn has_room(&self, link: u32) -> bool {
        self.get(link)
            .is_some_and(|link| link.held < MEMORY.saturating_sub(self.held) || link.held < SURE && self.is_home(link))
    }

    /// A request is under way that holds so many bytes.
    pub(super) fn begin(&mut self, link: u32, bytes: usize) {
        self.held += bytes;
        let link = self.of_request(link);
        link.held += bytes;
        link.jobs += 1;
    }

    /// It is answered. Who has the answer may ask again at once.
    pub(super) fn finish(&mut self, link: u32, bytes: usize) {
        self.held -= bytes;
        let number = link;
        let link = self.of_request(link);
        link.held -= bytes;
        link.jobs -= 1;
        if link.gone {
            self.let_go_if_over(number);
        } else if !link.connection.by_ring() {
            self.look(number);
        }
    }

    /// Requests may have come.
    pub(super) fn look(&mut self, link: u32) {
        if let Some(found) = self.slots.get_mut(link)
            && found.place == Place::Quiet
            && !found.gone
        {
            found.place = Place::Ready;
            self.ready.push_back(link);
        }
    }

    /// How many are to be looked at. Those that have room again are among them.
    pub(super) fn count_ready(&mut self, channel: &Channel) -> io::Result<usize> {
        let mut at = 0;
        while at < self.full.len() {
            let link = self.full[at];
            if self.has_room(link) {
                self.full.swap_remove(at);
                self.set_place(link, Place::Quiet);
                self.look(link);
                self.watch(channel, link, self.watching)?;
            } else {
                at += 1;
            }
        }
        Ok(self.ready.len())
    }

    /// The next that is to be looked at.
    pub(super) fn next(&mut self) -> Option<u32> {
        let link = self.ready.pop_front()?;
        self.set_place(link, Place::Quiet);
        Some(link)
    }

    /// It has no room for what may be there.
    pub(super) fn is_full(&mut self, link: u32) {
        self.set_place(link, Place::Full);
        self.full.push(link);
    }

    fn set_place(&mut self, link: u32, place: Place) {
        if let Some(link) = self.slots.get_mut(link) {
            link.place = place;
        }
    }

    /// Before the worker sleeps: it is woken by connections that have room, if by any.
    pub(super) fn settle(&mut self, channel: &Channel, watching: bool) -> io::Result<()> {
        if watching != self.watching {
            self.watching = watching;
            for link in self.slots.numbers() {
                self.watch(channel, link, watching)?;
                // Whatever came meanwhile is told by the channel.
            }
        }
        for at in 0..self.full.len() {
            self.watch(channel, self.full[at], false)?;
        }
        Ok(())
    }

    fn watch(&mut self, channel: &Channel, number: u32, wanted: bool) -> io::Result<()> {
        let Some(link) = self.slots.get_mut(number) else { return Ok(()) };
        if wanted == link.watched || wanted && link.gone {
            return Ok(());
        }
        match wanted {
            // Of the workers that sleep one is enough for a request.
            true => channel.watch_shared(link.connection.fd(), key(number))?,
            false => channel.unwatch(link.connection.fd().as_fd())?,
        }
        link.watched = wanted;
        Ok(())
    }

    /// The kernel has ended its connection. It goes when nothing of it is under way.
    pub(super) fn gone(&mut self, channel: &Channel, number: u32) {
        // It was watched.
        let _ = self.watch(channel, number, false);
        if let Some(link) = self.slots.get_mut(number) {
            link.gone = true;
            self.ready.retain(|ready| *ready != number);
            self.full.retain(|full| *full != number);
            self.let_go_if_over(number);
        }
    }

    fn let_go_if_over(&mut self, number: u32) {
        if self.get(number).is_some_and(|link| link.jobs == 0) {
            self.slots.remove(number);
        }
    }

    /// Lets go of all.
    pub(super) fn clear(&mut self, channel: &Channel) {
        // Closing them does the same, when their copies are closed as well.
        let _ = self.settle(channel, false);
        self.slots = Slots::default();
    }
}

/// The key of a link's descriptor in the channel. One that comes late means at most a look in vain.
pub(super) fn key(link: u32) -> u64 {
    u64::from(link) + 1
}

/// The link of a key.
pub(super) fn of_key(key: u64) -> Option<u32> {
    u32::try_from(key.checked_sub(1)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use udm_io::Domain;

    fn links(count: u64) -> (Links, Channel) {
        let channel = Domain::default().channel().unwrap();
        let mut links = Links::new((0, 2));
        for id in 0..count {
            let fd = std::fs::File::open("/dev/null").unwrap().into();
            links.add(&channel, Arc::new(Connection::new(id, fd, None, None, false))).unwrap();
        }
        (links, channel)
    }

    /// Takes requests of a MiB while there is room. How many.
    fn fill(links: &mut Links, link: u32) -> usize {
        let mut count = 0;
        while links.has_room(link) {
            links.begin(link, 1 << 20);
            count += 1;
        }
        count
    }

    #[test]
    fn whatever_others_hold_there_is_room_for_the_next() {
        let (mut links, _channel) = links(100);
        let taken: Vec<_> = (0..100).map(|link| fill(&mut links, link)).collect();
        assert_eq!(taken[..6], [8, 4, 2, 1, 1, 0], "{taken:?}");
        // Those that are at home here always have some.
        assert!((6..100).all(|at| taken[at] == 1 - at % 2), "{taken:?}");
        assert_eq!(links.held, (16 + 47) << 20);
    }
}
