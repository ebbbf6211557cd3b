//! What each request does: most are answered at once, those for a device become jobs of the engine.

use super::engine::{MAX_TRANSFER, Tag};
use super::request::Request;
use super::steps;
use super::tree::{Inode, Node, Tree};
use super::wire::{
    Attr, AttrOut, Dirent, EntryOut, FallocateIn, InHeader, InitIn, InitOut, LseekIn, MAJOR, MINOR, MINOR_LEAST,
    OpenIn, OpenOut, ROOT, ReadIn, SetattrIn, StatfsOut, WriteIn, fattr, fopen, init,
};
use super::worker::{Command, MAX_PAGES, Worker};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use udm_base::{AlignedBuf, Errno};
use udm_io::OpFlags;
use zerocopy::IntoBytes;

/// Requests of asynchronous callers that the kernel lets be under way on one connection; 12 unless asked for.
pub(super) const MAX_BACKGROUND: u16 = 512;
/// `fallocate` modes (`include/uapi/linux/falloc.h`).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

impl Worker {
    /// The node whose file a request is for.
    fn file(&self, tag: Tag, ino: u64) -> Result<Arc<Node>, Errno> {
        match self.engine.links.get(tag.link).and_then(|link| link.connection.node.as_ref()) {
            // The mount of a file has nothing else.
            Some(node) if ino == ROOT => Ok(node.clone()),
            Some(_) => Err(Errno::ENOENT),
            None => self.shared.tree.file(ino),
        }
    }

    fn attr(&self, tag: Tag, ino: u64) -> Result<Attr, Errno> {
        let tree = &self.shared.tree;
        match self.engine.links.get(tag.link).and_then(|link| link.connection.node.as_ref()) {
            Some(node) => Ok(tree.regular(node)),
            None => tree.attr(ino),
        }
    }

    pub(super) fn serve(&mut self, tag: Tag, header: &InHeader, request: &Request<'_>) -> Result<(), Errno> {
        let ino = header.nodeid;
        let tree = &self.shared.tree;
        match request {
            Request::Init(init, more) => return self.init(tag, init, *more),
            // The mount of a file has no names, and is known of until it ends.
            Request::Lookup(_) | Request::Readlink | Request::Opendir | Request::Readdir(_) if self.is_file(tag) => {
                return Err(Errno::ENOTDIR);
            }
            Request::Forget(_) if self.is_file(tag) => {}
            Request::Lookup(name) => {
                let entry = entry(tree.lookup(ino, name)?);
                self.engine.answer(tag, entry.as_bytes());
            }
            Request::Forget(forgets) => forgets.as_slice().iter().for_each(|f| tree.forget(f.nodeid, f.nlookup)),
            Request::Getattr => {
                let attr = self.attr(tag, ino)?;
                self.engine.answer(tag, attr_out(attr).as_bytes());
            }
            Request::Setattr(set) => {
                let attr = self.attr(tag, ino)?;
                check_setattr(set, &attr)?;
                self.engine.answer(tag, attr_out(attr).as_bytes());
            }
            Request::Readlink => match tree.inode(ino)? {
                Inode::Link(target) => self.engine.answer(tag, target.as_os_str().as_bytes()),
                _ => return Err(Errno::EINVAL),
            },
            Request::Open(open) => return self.open(tag, &self.file(tag, ino)?, open),
            Request::Release(release) => {
                if let Ok(node) = self.file(tag, ino)
                    && tree.release(&node, release.fh)
                {
                    self.tell_closed();
                }
                self.engine.answer(tag, &[]);
            }
            Request::Read(read) => return self.read(tag, &self.file(tag, ino)?, read),
            Request::Fsync => {
                let node = self.file(tag, ino)?;
                let shape = self.engine.shape(tag.link, &node);
                self.engine.flush(tag, &node, shape);
            }
            Request::Fallocate(fallocate) => return self.fallocate(tag, &self.file(tag, ino)?, fallocate),
            Request::Lseek(LseekIn { offset, whence, .. }) => {
                let node = self.file(tag, ino)?;
                let hole = match *whence as i32 {
                    libc::SEEK_DATA => false,
                    libc::SEEK_HOLE => true,
                    _ => return Err(Errno::EINVAL),
                };
                let shape = self.engine.shape(tag.link, &node);
                return self.engine.seek(tag, &node, shape, *offset, hole);
            }
            Request::Statfs => self.engine.answer(tag, STATFS.as_bytes()),
            Request::Opendir => {
                let out = OpenOut { fh: 0, open_flags: 0, backing_id: 0 };
                self.engine.answer(tag, out.as_bytes());
            }
            Request::Readdir(read) => {
                let entries = directory(tree, ino, read);
                self.engine.answer(tag, &entries);
            }
            Request::Releasedir | Request::Destroy => self.engine.answer(tag, &[]),
            Request::Interrupt => {}
            Request::Change => return Err(Errno::EPERM),
            // What is answered so is not asked again.
            Request::Unknown | Request::Write(_) => return Err(Errno::ENOSYS),
        }
        Ok(())
    }

    fn is_file(&self, tag: Tag) -> bool {
        self.engine.links.get(tag.link).is_some_and(|link| link.connection.node.is_some())
    }

    fn init(&mut self, tag: Tag, asked: &InitIn, more: u32) -> Result<(), Errno> {
        if asked.major != MAJOR || asked.minor < MINOR_LEAST {
            tracing::error!(
                "the kernel speaks version {}.{} of FUSE: expected {MAJOR}.{MINOR_LEAST} or later, of Linux 4.20",
                asked.major,
                asked.minor
            );
            return Err(Errno::EPROTO);
        }
        let connection = self.engine.links.of_request(tag.link).connection.clone();
        let by_ring = u64::from(more) << 32 & init::OVER_IO_URING != 0 && connection.rings;
        let wanted = init::ASYNC_READ
            | init::BIG_WRITES
            | init::ASYNC_DIO
            | init::PARALLEL_DIROPS
            | init::MAX_PAGES
            | init::INIT_EXT
            | init::DIRECT_IO_ALLOW_MMAP
            | if by_ring { init::OVER_IO_URING } else { 0 };
        // Those of the first word are offered; what the second has is unknown here, and ignored where it is not known.
        let first = wanted as u32 & asked.flags;
        let extended = u64::from(first) & init::INIT_EXT != 0;
        let out = InitOut {
            major: MAJOR,
            minor: MINOR.min(asked.minor),
            max_readahead: 0,
            flags: first,
            max_background: MAX_BACKGROUND,
            congestion_threshold: MAX_BACKGROUND / 4 * 3,
            max_write: MAX_TRANSFER as u32,
            time_gran: 1,
            max_pages: MAX_PAGES,
            map_alignment: 0,
            flags2: if extended { (wanted >> 32) as u32 } else { 0 },
            unused: [0; 7],
        };
        self.engine.answer(tag, out.as_bytes());
        if by_ring {
            // Until all have done so the kernel keeps requests.
            connection.set_by_ring(true);
            self.shared.workers.tell(|| Command::Register(connection.clone()));
        }
        Ok(())
    }

    fn open(&mut self, tag: Tag, node: &Arc<Node>, open: &OpenIn) -> Result<(), Errno> {
        let writes = open.flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
        if writes && node.device.read_only() {
            return Err(Errno::EROFS);
        }
        let connection = self.engine.links.of_request(tag.link).connection.clone();
        let fh = self.shared.tree.open(node, connection.id)?;
        if connection.is_gone() {
            // Whoever has noticed may have closed what came by it before this did.
            self.shared.tree.close_by(node, connection.id);
            self.tell_closed();
            return Err(Errno::ENODEV);
        }
        // To close it, which a program that begins does with all that it may not inherit, would wait for writes that
        // are under way, uninterruptibly, and `ps` for that program (`fuse_flush`, `begin_new_exec`, 6.12). What was
        // mapped is written when it is unmapped.
        let open_flags = fopen::DIRECT_IO | fopen::NOFLUSH | fopen::PARALLEL_DIRECT_WRITES;
        let out = OpenOut { fh, open_flags, backing_id: 0 };
        self.engine.answer(tag, out.as_bytes());
        Ok(())
    }

    fn read(&mut self, tag: Tag, node: &Arc<Node>, read: &ReadIn) -> Result<(), Errno> {
        let shape = self.engine.shape(tag.link, node);
        let len = u64::from(read.size).min(shape.size.saturating_sub(read.offset));
        if read.size as usize > MAX_TRANSFER {
            return Err(Errno::EINVAL);
        }
        if len == 0 {
            self.engine.answer(tag, &[]);
            return Ok(());
        }
        let (range, skip) = steps::covering(read.offset, len, shape.block);
        self.engine.read(tag, node, shape, range, skip, len as usize)
    }

    pub(super) fn write(
        &mut self,
        tag: Tag,
        header: &InHeader,
        write: &WriteIn,
        received: usize,
        staging: &mut AlignedBuf,
    ) -> Result<(), Errno> {
        let node = self.file(tag, header.nodeid)?;
        if write.size as usize > received || received > MAX_TRANSFER {
            return Err(Errno::EIO);
        }
        let shape = self.engine.shape(tag.link, &node);
        let len = u64::from(write.size).min(shape.size.saturating_sub(write.offset));
        if len == 0 {
            return Err(if write.size == 0 { Errno::EINVAL } else { Errno::ENOSPC });
        }
        // O_SYNC has the bit of O_DSYNC, too.
        let sync = write.flags & libc::O_DSYNC as u32 != 0;
        let flags = if sync && shape.fua { OpFlags::FUA } else { OpFlags::NONE };
        let mut steps = steps::write(write.offset, len, shape.block, flags);
        if sync && !shape.fua {
            // The last on a stack.
            steps.1.insert(0, steps::Step::Flush);
        }
        self.engine.write(tag, &node, shape, steps, staging, len as usize);
        Ok(())
    }

    /// As a block device does it (`blkdev_fallocate`, `block/fops.c`, 6.12).
    fn fallocate(&mut self, tag: Tag, node: &Arc<Node>, asked: &FallocateIn) -> Result<(), Errno> {
        let FallocateIn { offset, length, mode, .. } = *asked;
        let free = match mode {
            m if m == PUNCH_HOLE | KEEP_SIZE => true,
            m if m & !KEEP_SIZE == ZERO_RANGE => false,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let shape = self.engine.shape(tag.link, node);
        if node.device.read_only() {
            return Err(Errno::EROFS);
        }
        let end = offset.checked_add(length).ok_or(Errno::EINVAL)?;
        if offset >= shape.size || length == 0 || end > shape.size && mode & KEEP_SIZE == 0 {
            return Err(Errno::EINVAL);
        }
        let length = end.min(shape.size) - offset;
        let steps = steps::zero(offset, length, shape.block, free, shape.discards);
        self.engine.change(tag, node, shape, steps);
        Ok(())
    }
}

/// The unit of what can be given back, which a loop device takes over.
const STATFS: StatfsOut = StatfsOut {
    blocks: 0,
    bfree: 0,
    bavail: 0,
    files: 0,
    ffree: 0,
    bsize: 4096,
    namelen: 255,
    frsize: 4096,
    pad: 0,
    spare: [0; 6],
};

fn entry(attr: Attr) -> EntryOut {
    EntryOut {
        nodeid: attr.ino,
        generation: 0,
        entry_valid: 0,
        attr_valid: 0,
        entry_valid_nsec: 0,
        attr_valid_nsec: 0,
        attr,
    }
}

fn attr_out(attr: Attr) -> AttrOut {
    AttrOut { attr_valid: 0, attr_valid_nsec: 0, dummy: 0, attr }
}

/// A device's size is not changed by its node, but who opens it with O_TRUNC means no harm: a block device ignores
/// that. Times are ignored.
fn check_setattr(set: &SetattrIn, attr: &Attr) -> Result<(), Errno> {
    let sets = |bit| set.valid & bit != 0;
    let truncates = set.size == 0 && !sets(fattr::FH);
    if sets(fattr::SIZE) && set.size != attr.size && !truncates {
        return Err(Errno::EINVAL);
    }
    let mode = sets(fattr::MODE) && set.mode & 0o7777 != attr.mode & 0o7777;
    if mode || sets(fattr::UID) && set.uid != attr.uid || sets(fattr::GID) && set.gid != attr.gid {
        return Err(Errno::EPERM);
    }
    Ok(())
}

fn directory(tree: &Tree, ino: u64, read: &ReadIn) -> Vec<u8> {
    let most = (read.size as usize).min(MAX_TRANSFER);
    let mut out = Vec::new();
    for (number, kind, name) in tree.entries(ino, read.offset) {
        // Names have at most 255 bytes.
        let dirent = Dirent { ino: number, off: number, namelen: name.len() as u32, kind: kind >> 12 };
        let len = (size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if out.len() + len > most {
            break;
        }
        let end = out.len() + len;
        out.extend_from_slice(dirent.as_bytes());
        out.extend_from_slice(name.as_bytes());
        out.resize(end, 0);
    }
    out
}
