//! Sectors as addresses and as lengths.
//!
//! Address + length gives an address; address + address does not compile. The sector is 512 bytes
//! whatever the device's logical block size is, as in the kernel (`include/linux/blk_types.h`, 6.12).

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// log2 of the sector size.
pub const SECTOR_SHIFT: u32 = 9;
/// Bytes in a sector.
pub const SECTOR_SIZE: usize = 1 << SECTOR_SHIFT;

/// An address on a device, in sectors of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Sector(u64);

/// A length, in sectors of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Sectors(u64);

impl Sector {
    /// The first sector of a device.
    pub const ZERO: Self = Self(0);

    /// The address of sector number `n`.
    #[inline]
    pub const fn new(n: u64) -> Self {
        Self(n)
    }

    /// The sector's number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The byte address of the sector's first byte, or `None` past 2^64 bytes.
    #[inline]
    pub const fn checked_bytes(self) -> Option<u64> {
        Sectors(self.0).checked_bytes()
    }

    /// The byte address of the sector's first byte. The caller has checked the range against a
    /// device, whose size in bytes fits 64 bits.
    #[inline]
    pub const fn bytes(self) -> u64 {
        Sectors(self.0).bytes()
    }

    /// The sector that holds byte `bytes`, rounded down.
    #[inline]
    pub const fn containing(bytes: u64) -> Self {
        Self(Sectors::in_bytes(bytes).0)
    }

    /// The address `len` further on, or `None` on overflow.
    #[inline]
    pub const fn checked_add(self, len: Sectors) -> Option<Self> {
        match self.0.checked_add(len.0) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }

    /// How far this address lies past `start`, or `None` if it lies before it.
    #[inline]
    pub const fn checked_since(self, start: Self) -> Option<Sectors> {
        match self.0.checked_sub(start.0) {
            Some(n) => Some(Sectors(n)),
            None => None,
        }
    }
}

impl Sectors {
    /// No length.
    pub const ZERO: Self = Self(0);
    /// The longest length there is.
    pub const MAX: Self = Self(u64::MAX);

    /// A length of `n` sectors.
    #[inline]
    pub const fn new(n: u64) -> Self {
        Self(n)
    }

    /// The number of sectors.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The length in bytes, or `None` past 2^64 bytes.
    #[inline]
    pub const fn checked_bytes(self) -> Option<u64> {
        if self.0 >> (64 - SECTOR_SHIFT) == 0 { Some(self.0 << SECTOR_SHIFT) } else { None }
    }

    /// The length in bytes. The caller has bounded it by a device or by a buffer in memory.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.0 << SECTOR_SHIFT
    }

    /// The length in bytes as a size in memory. The caller has bounded it by a buffer.
    #[inline]
    pub const fn as_len(self) -> usize {
        (self.0 as usize) << SECTOR_SHIFT
    }

    /// The whole sectors in `bytes`, rounded down.
    #[inline]
    pub const fn in_bytes(bytes: u64) -> Self {
        Self(bytes >> SECTOR_SHIFT)
    }

    /// The sectors that `bytes` occupy, rounded up.
    #[inline]
    pub const fn covering(bytes: u64) -> Self {
        Self((bytes >> SECTOR_SHIFT) + (bytes & (SECTOR_SIZE as u64 - 1) != 0) as u64)
    }

    /// Whether the length is nothing.
    #[inline]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum, or `None` on overflow.
    #[inline]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }

    /// As an address counted from the start of a device.
    #[inline]
    pub const fn from_start(self) -> Sector {
        Sector(self.0)
    }
}

impl Add<Sectors> for Sector {
    type Output = Self;
    #[inline]
    fn add(self, len: Sectors) -> Self {
        Self(self.0 + len.0)
    }
}

impl AddAssign<Sectors> for Sector {
    #[inline]
    fn add_assign(&mut self, len: Sectors) {
        self.0 += len.0;
    }
}

impl Sub<Sectors> for Sector {
    type Output = Self;
    #[inline]
    fn sub(self, len: Sectors) -> Self {
        Self(self.0 - len.0)
    }
}

impl Sub for Sector {
    type Output = Sectors;
    #[inline]
    fn sub(self, start: Self) -> Sectors {
        Sectors(self.0 - start.0)
    }
}

impl Add for Sectors {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Sectors {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Sectors {
    type Output = Self;
    #[inline]
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl SubAssign for Sectors {
    #[inline]
    fn sub_assign(&mut self, other: Self) {
        self.0 -= other.0;
    }
}

macro_rules! show {
    ($t:ty) => {
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}s", self.0)
            }
        }
    };
}
show!(Sector);
show!(Sectors);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_back() {
        for (bytes, down, up) in
            [(0, 0, 0), (1, 0, 1), (511, 0, 1), (512, 1, 1), (513, 1, 2), (u64::MAX, (1 << 55) - 1, 1 << 55)]
        {
            assert_eq!(Sectors::in_bytes(bytes).get(), down, "{bytes}");
            assert_eq!(Sectors::covering(bytes).get(), up, "{bytes}");
            assert_eq!(Sector::containing(bytes).get(), down, "{bytes}");
        }
    }

    #[test]
    fn overflow_is_none() {
        assert_eq!(Sector::new(1 << 55).checked_bytes(), None);
        assert_eq!(Sector::new((1 << 55) - 1).checked_bytes(), Some(u64::MAX - 511));
        assert_eq!(Sector::new(u64::MAX).checked_add(Sectors::new(1)), None);
        assert_eq!(Sector::new(3).checked_since(Sector::new(4)), None);
        assert_eq!(Sectors::MAX.checked_add(Sectors::new(1)), None);
    }
}
