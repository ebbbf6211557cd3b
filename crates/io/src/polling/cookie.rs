//! Cookies: where to look for a polled bio.

/// Which queues the submitter of a polled bio looks into. As numbers they count from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PollPath {
    /// One, which the cookie names.
    Fast,
    /// This channel's.
    Sub,
    /// All.
    Default,
}

/// Says where to look for a polled bio. Small, freely copied, never dangling: a cookie that is stale, or of another
/// channel or device, only makes a poll look in the wrong place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cookie(u64);

const KIND: u64 = 3;
const FAST: u64 = 1;
const SUB: u64 = 2;
const ALL: u64 = 3;

impl Cookie {
    /// On no queue: it has completed, or will by interrupt.
    pub const NONE: Self = Self(0);

    /// On the queue with this serial number.
    #[inline]
    pub(super) const fn queue(serial: u64) -> Self {
        Self(serial << 2 | FAST)
    }

    /// On queues of its channel. `place` is the number of its channel, so that cookies can be compared.
    #[inline]
    pub(super) const fn channel(place: usize) -> Self {
        Self((place as u64) << 2 | SUB)
    }

    /// Anywhere.
    pub(super) const ANYWHERE: Self = Self(ALL);

    /// Which queues to look into; `None` for a bio that is on none.
    #[inline]
    pub const fn path(self) -> Option<PollPath> {
        // A table, since this runs for every polled bio, and the compiler would make jumps of a match.
        const PATHS: [Option<PollPath>; KIND as usize + 1] = {
            let mut paths = [None; KIND as usize + 1];
            paths[FAST as usize] = Some(PollPath::Fast);
            paths[SUB as usize] = Some(PollPath::Sub);
            paths[ALL as usize] = Some(PollPath::Default);
            paths
        };
        PATHS[(self.0 & KIND) as usize]
    }

    /// The serial number of the one queue.
    #[inline]
    pub(super) const fn serial(self) -> Option<u64> {
        if self.0 & KIND == FAST { Some(self.0 >> 2) } else { None }
    }
}

/// The polling state of a submitted bio; unused in clones.
#[derive(Clone, Copy)]
pub(crate) struct Polled {
    pub(crate) cookie: Cookie,
    /// Parts that are on queues.
    pub(crate) parts: u32,
    /// Where and when its first part was queued.
    pub(crate) place: u32,
}

impl Polled {
    pub(crate) const NONE: Self = Self { cookie: Cookie::NONE, parts: 0, place: 0 };
}
