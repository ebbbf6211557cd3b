//! Cookies: where a polled bio is to be looked for.

/// Which queues a polled bio makes its submitter look into. As numbers they count from 0.
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

/// Where a bio that was submitted to be polled for is to be looked for. Small, copied at will, never dangling: one that
/// is stale, or of another channel or device, only makes a poll look where the bio is not.
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

    /// On queues of its channel. `place` is the number of its channel, for who compares cookies.
    #[inline]
    pub(super) const fn channel(place: usize) -> Self {
        Self((place as u64) << 2 | SUB)
    }

    /// Anywhere.
    pub(super) const ANYWHERE: Self = Self(ALL);

    /// Which queues it asks for; `None` for a bio that is on none.
    #[inline]
    pub const fn path(self) -> Option<PollPath> {
        // A table, since this is asked for every polled bio: the compiler makes jumps of a match.
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

/// What a bio as it was submitted knows of its polling; of clones it is not used.
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
