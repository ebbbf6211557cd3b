//! Flag words.

use std::ops::{BitAnd, BitOr, BitOrAssign};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `dm_ioctl.flags`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Flags(u32);

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:literal;)*) => {
        impl Flags { $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)* }

        impl std::fmt::Debug for Flags {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut set = f.debug_set();
                $(if self.contains(Self::$name) { set.entry(&format_args!(stringify!($name))); })*
                let rest = self.0 & !($(1 << $bit)|*);
                if rest != 0 { set.entry(&format_args!("0x{rest:x}")); }
                set.finish()
            }
        }
    };
}

flags! {
    /// In: load a read-only table, make a read-only device. Out: it is one.
    READONLY = 0;
    /// In, with `DM_DEV_SUSPEND`: suspend; absent: resume. Out: suspended.
    SUSPEND = 1;
    /// In: the minor number in `dev` is wanted.
    PERSISTENT_DEV = 3;
    /// In: the table's lines rather than the status.
    STATUS_TABLE = 4;
    /// Out: there is an active table.
    ACTIVE_PRESENT = 5;
    /// Out: there is an inactive table.
    INACTIVE_PRESENT = 6;
    /// Out: the buffer was too small; ask again with a larger one.
    BUFFER_FULL = 8;
    /// In: ignored.
    SKIP_BDGET = 9;
    /// In: do not freeze a file system when suspending.
    SKIP_LOCKFS = 10;
    /// In: suspend without waiting for queued I/O; status without committing.
    NOFLUSH = 11;
    /// In: the question is about the inactive table.
    QUERY_INACTIVE_TABLE = 12;
    /// Out: a uevent was sent.
    UEVENT_GENERATED = 13;
    /// In: rename sets the uuid; a list of devices has uuids.
    UUID = 14;
    /// In: the buffers are wiped after use.
    SECURE_DATA = 15;
    /// Out: a message answered with text.
    DATA_OUT = 16;
    /// In: remove when it is closed. Out: it will be.
    DEFERRED_REMOVE = 17;
    /// Out: suspended by another target.
    INTERNAL_SUSPEND = 18;
    /// In: the table as the integrity subsystem would measure it.
    IMA_MEASUREMENT = 19;
}

impl Flags {
    /// The word from its bits.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Are all flags of `other` set?
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The same with the flags of `other` set or cleared.
    #[must_use]
    pub const fn with(self, other: Self, on: bool) -> Self {
        if on { Self(self.0 | other.0) } else { Self(self.0 & !other.0) }
    }

    /// Set or clear the flags of `other`.
    pub const fn set(&mut self, other: Self, on: bool) {
        *self = self.with(other, on);
    }
}

impl BitOr for Flags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for Flags {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// What a name list entry says about its uuid (`DM_NAME_LIST_FLAG_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct NameListFlags(pub u32);

impl NameListFlags {
    /// A uuid follows.
    pub const HAS_UUID: Self = Self(1);
    /// The device has no uuid.
    pub const DOESNT_HAVE_UUID: Self = Self(2);
}
