//! Every operation of a bio by plain system calls, which may block: what workers do.

use crate::backing::{Backing, Kind};
use rustix::fd::AsRawFd;
use rustix::fs::FallocateFlags;
use std::io;
use udm_base::AlignedBuf;
use udm_io::{Bio, Op, OpFlags, Segment, Segments, Status};

/// Segments that one system call takes; the next call goes on with what is left.
const IOVECS: usize = 32;
/// Bytes of a bio that are copied at once where its memory does not suit the file.
const BOUNCE: usize = 1 << 20;

/// Reads (or writes) the front of `segs` at byte `at` of the file, with RWF flags. Returns how many bytes.
pub(crate) fn transfer(backing: &Backing, op: Op, segs: Segments<'_>, at: u64, flags: i32) -> io::Result<usize> {
    let mut iov = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; IOVECS];
    let mut n = 0;
    for (slot, seg) in iov.iter_mut().zip(segs) {
        *slot = libc::iovec { iov_base: seg.as_ptr().cast(), iov_len: seg.len() };
        n += 1;
    }
    let (fd, at) = (backing.raw(), at as libc::off64_t);
    loop {
        let done = match op {
            // SAFETY: the first n iovecs are segments of a bio that is in flight (contract of Segment::new).
            Op::Read => unsafe { libc::preadv64v2(fd, iov.as_ptr(), n, at, flags) },
            // SAFETY: as above.
            _ => unsafe { libc::pwritev64v2(fd, iov.as_ptr(), n, at, flags) },
        };
        if done >= 0 {
            return Ok(done as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The flags of a bio's writes.
pub(crate) fn write_flags(bio: &Bio) -> i32 {
    if bio.op() == Op::Write && bio.flags().contains(OpFlags::FUA) { libc::RWF_DSYNC } else { 0 }
}

/// Does what is left of a bio's operation after the first `done` bytes.
pub(crate) fn serve(backing: &Backing, bio: &Bio, done: usize) -> Status {
    if bio.op().is_write() && !backing.holds(bio.end_sector().bytes()) {
        return Status::Io;
    }
    let outcome = match bio.op() {
        Op::Read | Op::Write => transfer_all(backing, bio, done),
        Op::Flush => rustix::fs::fdatasync(backing.fd()).map_err(Into::into),
        Op::Discard => discard(backing, bio),
        Op::WriteZeroes => write_zeroes(backing, bio),
    };
    match outcome.and_then(|()| if needs_sync(bio) { Ok(rustix::fs::fdatasync(backing.fd())?) } else { Ok(()) }) {
        Ok(()) => Status::Ok,
        Err(e) => status_of(&e),
    }
}

pub(crate) fn status_of(error: &io::Error) -> Status {
    error.raw_os_error().map_or(Status::Io, Status::of_errno)
}

/// FUA for operations that have no flag for it.
fn needs_sync(bio: &Bio) -> bool {
    bio.flags().contains(OpFlags::FUA) && matches!(bio.op(), Op::Discard | Op::WriteZeroes)
}

fn transfer_all(backing: &Backing, bio: &Bio, mut done: usize) -> io::Result<()> {
    let (all, mut flags) = (bio.segments(), write_flags(bio));
    let durable = flags != 0;
    while done < all.bytes() {
        let at = bio.sector().bytes() + done as u64;
        match transfer(backing, bio.op(), all.skip_bytes(done), at, flags) {
            // The file was cut off below.
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::EIO)),
            Ok(n) => done += n,
            // A system without flags for single writes, as some that emulate Linux: all of it is synced then.
            Err(e) if flags != 0 && e.raw_os_error() == Some(libc::EOPNOTSUPP) => flags = 0,
            // Direct I/O, and memory that does not lie as it wants.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => done += bounce(backing, bio, done, flags)?,
            Err(e) => return Err(e),
        }
    }
    if durable && flags == 0 { Ok(rustix::fs::fdatasync(backing.fd())?) } else { Ok(()) }
}

/// Reads or writes what follows the first `done` bytes by way of memory of its own. Returns how many bytes.
fn bounce(backing: &Backing, bio: &Bio, done: usize, flags: i32) -> io::Result<usize> {
    let mut memory = AlignedBuf::zeroed((bio.segments().bytes() - done).min(BOUNCE));
    if bio.op() == Op::Write {
        bio.copy_out(done, &mut memory);
    }
    // SAFETY: the memory is this function's, and outlives the call.
    let segment = [unsafe { Segment::new(memory.as_mut_ptr(), memory.len()) }];
    // SAFETY: as above.
    let segs = unsafe { Segments::new(segment.as_ptr(), 0, memory.len()) };
    let n = transfer(backing, bio.op(), segs, bio.sector().bytes() + done as u64, flags)?;
    if n == 0 {
        // The file was cut off below.
        return Err(io::Error::from_raw_os_error(libc::EIO));
    }
    if bio.op() == Op::Read {
        bio.copy_in(done, &memory[..n]);
    }
    Ok(n)
}

fn range(bio: &Bio) -> (u64, u64) {
    (bio.sector().bytes(), bio.sectors().bytes())
}

fn discard(backing: &Backing, bio: &Bio) -> io::Result<()> {
    let (start, len) = range(bio);
    match backing.kind {
        Kind::Regular => {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            Ok(rustix::fs::fallocate(backing.fd(), punch, start, len)?)
        }
        Kind::Block => block_ioctl(backing, BLKDISCARD, start, len),
    }
}

/// `_IO(0x12, 119)` and `_IO(0x12, 127)` (`include/uapi/linux/fs.h`, 6.12).
const BLKDISCARD: libc::Ioctl = 0x1277;
const BLKZEROOUT: libc::Ioctl = 0x127f;

fn block_ioctl(backing: &Backing, request: libc::Ioctl, start: u64, len: u64) -> io::Result<()> {
    let range = [start, len];
    // SAFETY: both requests read two u64.
    if unsafe { libc::ioctl(backing.ranges_fd().as_raw_fd(), request, range.as_ptr()) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// The cheapest way that the file system offers: give the range back, unless it is to stay provisioned; mark it as
/// zeroes; write zeroes.
fn write_zeroes(backing: &Backing, bio: &Bio) -> io::Result<()> {
    let (start, len) = range(bio);
    let keep = FallocateFlags::KEEP_SIZE;
    let ways = [FallocateFlags::PUNCH_HOLE | keep, FallocateFlags::ZERO_RANGE | keep];
    let first = usize::from(bio.flags().contains(OpFlags::NO_UNMAP));
    for way in &ways[first..] {
        match rustix::fs::fallocate(backing.ranges_fd(), *way, start, len) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) => {}
            other => return Ok(other?),
        }
    }
    match backing.kind {
        Kind::Block => block_ioctl(backing, BLKZEROOUT, start, len),
        Kind::Regular => write_out_zeroes(backing, start, len),
    }
}

fn write_out_zeroes(backing: &Backing, mut at: u64, len: u64) -> io::Result<()> {
    let zeroes = AlignedBuf::zeroed(len.min(1 << 18) as usize);
    let end = at + len;
    while at < end {
        let n = (end - at).min(zeroes.len() as u64) as usize;
        match rustix::io::pwrite(backing.fd(), &zeroes[..n], at) {
            Ok(n) => at += n as u64,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
