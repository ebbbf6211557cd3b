//! The FUSE protocol as it lies in memory (`include/uapi/linux/fuse.h`, 6.12): the part that files of devices need.
//!
//! A request is an [`InHeader`], the operation's own struct, then names or data; an answer an [`OutHeader`] and the
//! operation's struct or data. Numbers are the machine's own.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version that is spoken. The kernel's must have the same major number, and a minor of at least [`MINOR_LEAST`].
pub(super) const MAJOR: u32 = 7;
pub(super) const MINOR: u32 = 40;
/// 4.20: the first with `max_pages`.
pub(super) const MINOR_LEAST: u32 = 28;

/// Operations.
pub(super) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const LSEEK: u32 = 46;
    /// What would change the directory: they are refused, since `udm node` is the way.
    pub(crate) const CHANGES: &[u32] = &[6, 8, 9, 10, 11, 12, 13, 35, 45, 51];
}

/// What the two sides agree on at the start.
pub(super) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    /// 6.6: files with direct I/O can be mapped shared.
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// 6.14: requests by io_uring.
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// Flags of an answer to OPEN.
pub(super) mod fopen {
    pub(crate) const DIRECT_IO: u32 = 1;
    /// 5.16: closing a file waits for nothing.
    pub(crate) const NOFLUSH: u32 = 1 << 5;
    /// 6.2: writes of several threads at once.
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// What SETATTR sets.
pub(super) mod fattr {
    pub(crate) const MODE: u32 = 1;
    pub(crate) const UID: u32 = 2;
    pub(crate) const GID: u32 = 4;
    pub(crate) const SIZE: u32 = 8;
    pub(crate) const FH: u32 = 64;
}

/// Operations of submissions to a connection by io_uring (`fuse_uring_cmd`).
pub(super) const RING_REGISTER: u32 = 1;
pub(super) const RING_COMMIT_AND_FETCH: u32 = 2;

pub(super) const NOTIFY_INVAL_INODE: i32 = 2;

/// The root directory's inode.
pub(super) const ROOT: u64 = 1;

macro_rules! records {
    ($($(#[$doc:meta])* $name:ident: $size:literal { $($field:ident: $type:ty),* $(,)? })*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(super) struct $name { $(pub(super) $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size, "as the kernel has it");)*
    };
}

records! {
    /// Before every request. `len` counts all of it.
    InHeader: 40 { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, extensions: u16, pad: u16 }
    /// Before every answer. `error` is 0 or an error number less than 0.
    OutHeader: 16 { len: u32, error: i32, unique: u64 }
    InitIn: 16 { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    /// What kernels with INIT_EXT send behind [`InitIn`].
    InitMore: 4 { flags2: u32 }
    InitOut: 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, unused: [u32; 7],
    }
    Attr: 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    /// The validities are 0: sizes and names change without notice, and are asked for rarely.
    EntryOut: 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: Attr,
    }
    AttrOut: 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    OpenIn: 8 { flags: u32, open_flags: u32 }
    OpenOut: 16 { fh: u64, open_flags: u32, backing_id: i32 }
    ReleaseIn: 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// READ, and READDIR.
    ReadIn: 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, pad: u32 }
    WriteIn: 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, pad: u32 }
    WriteOut: 8 { size: u32, pad: u32 }
    FallocateIn: 32 { fh: u64, offset: u64, length: u64, mode: u32, pad: u32 }
    LseekIn: 24 { fh: u64, offset: u64, whence: u32, pad: u32 }
    LseekOut: 8 { offset: u64 }
    SetattrIn: 88 {
        valid: u32, pad: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    ForgetIn: 8 { nlookup: u64 }
    BatchForgetIn: 8 { count: u32, dummy: u32 }
    ForgetOne: 16 { nodeid: u64, nlookup: u64 }
    StatfsOut: 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32, pad: u32,
        spare: [u32; 6],
    }
    /// Before a name in a directory; the next begins at a multiple of 8.
    Dirent: 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
    /// Beside the payload of a request by io_uring: headers of requests and answers, the operation's struct, and how
    /// long the payload is (`fuse_uring_req_header`, 6.14).
    RingHeader: 288 {
        in_out: [u8; 128], op_in: [u8; 128], flags: u64, commit_id: u64, payload: u32, pad: u32, reserved: u64,
    }
    /// In a submission (`fuse_uring_cmd_req`).
    RingCommand: 24 { flags: u64, commit_id: u64, queue: u16, pad: [u8; 6] }
    InvalInode: 24 { ino: u64, off: i64, len: i64 }
}
