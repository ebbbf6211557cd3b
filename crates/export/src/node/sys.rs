//! System calls that have no safe wrapper: ioctls of loop devices, and a thread's own descriptors.

use rustix::fd::{AsFd, AsRawFd};
use std::io;

/// `include/uapi/linux/loop.h`, 6.12.
const LOOP_CLR_FD: libc::Ioctl = 0x4c01;
const LOOP_SET_STATUS64: libc::Ioctl = 0x4c04;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4c07;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
/// `BLKROSET`, `_IO(0x12, 93)` (`include/uapi/linux/fs.h`, 6.12).
const BLKROSET: libc::Ioctl = 0x125d;

/// Bytes of a name, with the zero at its end.
pub(super) const LO_NAME_SIZE: usize = 64;
/// The flags of [`LoopInfo`].
pub(super) const LO_FLAGS_READ_ONLY: u32 = 1;
pub(super) const LO_FLAGS_AUTOCLEAR: u32 = 4;
pub(super) const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct LoopInfo {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) rdevice: u64,
    pub(super) offset: u64,
    pub(super) sizelimit: u64,
    pub(super) number: u32,
    pub(super) encrypt_type: u32,
    pub(super) encrypt_key_size: u32,
    pub(super) flags: u32,
    pub(super) file_name: [u8; LO_NAME_SIZE],
    pub(super) crypt_name: [u8; 64],
    pub(super) encrypt_key: [u8; 32],
    pub(super) init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304, "as the kernel has them");

impl LoopInfo {
    pub(super) const EMPTY: Self = Self {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        sizelimit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

/// `include/uapi/linux/close_range.h`, 6.12.
const CLOSE_RANGE_UNSHARE: libc::c_uint = 2;

/// Gives the calling thread a table of descriptors of its own, in which there are the standard streams and nothing
/// else.
///
/// # Safety
/// The thread has no descriptor of before, and gives none away: the same number is another file, or none, to the other
/// threads.
pub(super) unsafe fn own_descriptors() -> io::Result<()> {
    // SAFETY: for other threads nothing is closed, and this one has nothing to lose, as the caller says.
    match unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, CLOSE_RANGE_UNSHARE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(super) fn loop_get_free(control: impl AsFd) -> io::Result<u32> {
    // SAFETY: the ioctl takes no argument.
    checked(unsafe { libc::ioctl(control.as_fd().as_raw_fd(), LOOP_CTL_GET_FREE) }).map(|n| n as u32)
}

pub(super) fn loop_configure(
    device: impl AsFd,
    file: impl AsFd,
    block_size: u32,
    flags: u32,
    name: &[u8],
) -> io::Result<()> {
    let mut info = LoopInfo { flags, ..LoopInfo::EMPTY };
    // The kernel wants a zero at the end.
    let len = name.len().min(info.file_name.len() - 1);
    info.file_name[..len].copy_from_slice(&name[..len]);
    let config = LoopConfig { fd: file.as_fd().as_raw_fd() as u32, block_size, info, reserved: [0; 8] };
    // SAFETY: the ioctl reads one loop_config, which lives until it returns.
    checked(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_CONFIGURE, &raw const config) }).map(drop)
}

pub(super) fn loop_status(device: impl AsFd) -> io::Result<LoopInfo> {
    let mut info = LoopInfo::EMPTY;
    // SAFETY: the ioctl writes one loop_info64, any of whose bytes are valid.
    checked(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) })?;
    Ok(info)
}

pub(super) fn loop_set_status(device: impl AsFd, info: &LoopInfo) -> io::Result<()> {
    // SAFETY: the ioctl reads one loop_info64.
    checked(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_SET_STATUS64, info as *const LoopInfo) }).map(drop)
}

pub(super) fn loop_set_capacity(device: impl AsFd) -> io::Result<()> {
    // SAFETY: the ioctl takes no argument.
    checked(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_SET_CAPACITY, 0) }).map(drop)
}

pub(super) fn loop_clear(device: impl AsFd) -> io::Result<()> {
    // SAFETY: the ioctl takes no argument.
    checked(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_CLR_FD, 0) }).map(drop)
}

pub(crate) fn set_read_only(device: impl AsFd, on: bool) -> io::Result<()> {
    let value = libc::c_int::from(on);
    // SAFETY: the ioctl reads one int.
    checked(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), BLKROSET, &raw const value) }).map(drop)
}
