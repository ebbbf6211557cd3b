//! How a bio ended.

use udm_base::Errno;

/// The outcome of a bio, the part of the kernel's `blk_status_t` that udm's devices give
/// (`include/linux/blk_types.h`, 6.12).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok,
    /// The device could not (`BLK_STS_IOERR`).
    Io,
    /// Outside the device, misaligned, or otherwise not a request for this device.
    Invalid,
    /// No room left (`BLK_STS_NOSPC`).
    NoSpace,
    /// The device does not offer this operation (`BLK_STS_NOTSUPP`).
    NotSupported,
    /// The device is read-only.
    ReadOnly,
    /// Out of memory or of another resource for now (`BLK_STS_RESOURCE`).
    Again,
    /// The device has gone away.
    Gone,
    /// Took too long (`BLK_STS_TIMEOUT`).
    TimedOut,
    /// To be pushed back and submitted again after a suspension with `noflush` (`BLK_STS_DM_REQUEUE`). A mapped
    /// device that is not being suspended so turns it into [`Status::Io`]; submitters never see it.
    Requeue,
}

impl Status {
    /// Whether it is [`Status::Ok`].
    #[inline]
    pub const fn is_ok(self) -> bool {
        matches!(self, Self::Ok)
    }

    /// The error number that a caller of read(2) or write(2) would get; `None` when it went well.
    pub const fn errno(self) -> Option<Errno> {
        Some(match self {
            Self::Ok => return None,
            Self::Io => Errno::EIO,
            Self::Invalid => Errno::EINVAL,
            Self::NoSpace => Errno::ENOSPC,
            Self::NotSupported => Errno::EOPNOTSUPP,
            Self::ReadOnly => Errno::EROFS,
            Self::Again => Errno::EAGAIN,
            Self::Gone => Errno::ENXIO,
            Self::TimedOut => Errno::ETIMEDOUT,
            Self::Requeue => Errno::EAGAIN,
        })
    }

    /// The status for an error number of the system.
    pub const fn of_errno(errno: i32) -> Self {
        match errno {
            0 => Self::Ok,
            11 | 12 => Self::Again,
            22 => Self::Invalid,
            27 | 28 => Self::NoSpace,
            1 | 9 | 13 | 30 => Self::ReadOnly,
            6 | 19 | 108 => Self::Gone,
            38 | 95 => Self::NotSupported,
            110 => Self::TimedOut,
            _ => Self::Io,
        }
    }
}
