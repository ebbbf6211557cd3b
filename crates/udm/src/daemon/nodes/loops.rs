//! The block devices of nodes that are loop devices: attached, adapted and detached by who has claimed the node,
//! without the lock.

use super::super::own_writes;
use super::claims::Claim;
use super::{Inner, MAPPER, Node, failed, is_held, of_io};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::{info, warn};
use udm_base::Errno;
use udm_control::second::NodeKind;
use udm_core::Error;
use udm_export::node::loopdev::{self, Detached, LoopDevice};

/// How often a loop device is asked for whether somebody still has it open, and how long between: whoever looks at new
/// devices, as udev does, opens them for a moment.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// What of a device its block device has to follow.
#[derive(Clone, Copy, Default)]
pub(super) struct Change {
    pub(super) resized: bool,
    /// It is read-only now, or no longer.
    pub(super) moded: Option<bool>,
}

/// What a block device is attached to, and how.
struct Order {
    file: PathBuf,
    read_only: bool,
    block: u32,
    /// Bytes of data that may be under way afterwards.
    data: usize,
}

impl Claim {
    fn with<T>(&self, work: impl FnOnce(&mut Node) -> T) -> Option<T> {
        let mut inner = self.shared.lock();
        inner.position(&self.md).map(|at| work(&mut inner.nodes[at]))
    }

    /// Attaches the loop device of a node that is to have one, and makes its link. Blocks until the device has flushed.
    pub(super) fn equip(&self) -> Result<(), Error> {
        if let Some(Order { file, read_only, block, data }) = self.order() {
            own_writes::reserve(data);
            let loopdev = loopdev::attach(&self.shared.domain, &file, read_only, block).map_err(|e| of_io(&e))?;
            self.attached(loopdev)?;
        }
        self.link()
    }

    fn order(&self) -> Option<Order> {
        let inner = self.shared.lock();
        let (server, node) = (inner.server.as_ref()?, &inner.nodes[inner.position(&self.md)?]);
        (node.kind == NodeKind::Loop && node.loopdev.is_none()).then(|| Order {
            file: server.file(&node.name),
            read_only: node.seen.read_only,
            block: node.seen.limits.logical_block_size,
            data: server.most_data(),
        })
    }

    /// It is the node's from now on, if that is still there.
    fn attached(&self, loopdev: LoopDevice) -> Result<(), Error> {
        let mut inner = self.shared.lock();
        let at = inner.position(&self.md).filter(|at| !inner.nodes[*at].lost);
        let Inner { server, nodes, .. } = &mut *inner;
        if let (Some(server), Some(at)) = (server, at) {
            let (node, shown) = (&mut nodes[at], loopdev.path());
            server.set_link(&node.name, Some(&shown));
            info!("{} is the block device {}", node.name, shown.display());
            node.loopdev = Some(loopdev);
            return Ok(());
        }
        drop(inner);
        give_back(&self.shared.domain, &loopdev);
        Err(failed(Errno::ENODEV, "its mount has gone meanwhile"))
    }

    /// Makes the link in /dev/mapper of a node that is to have one.
    fn link(&self) -> Result<(), Error> {
        let mut inner = self.shared.lock();
        let Some(at) = inner.position(&self.md) else { return Ok(()) };
        let Inner { server: Some(server), nodes, .. } = &mut *inner else { return Ok(()) };
        let node = &mut nodes[at];
        if node.kind == NodeKind::Loop && node.wanted.mapper && node.mapper.is_none() {
            let link = Path::new(MAPPER).join(&node.name);
            // By way of the mount: a link to the loop device itself would outlive a daemon that is killed, and lead to
            // whoever has that number next.
            let made =
                fs::create_dir_all(MAPPER).and_then(|()| std::os::unix::fs::symlink(server.path(&node.name), &link));
            made.map_err(|e| of_io(&io::Error::new(e.kind(), format!("{}: {e}", link.display()))))?;
            node.mapper = Some(link);
        }
        Ok(())
    }

    /// Has the node be a file, since it cannot be a block device.
    pub(super) fn make_do(&self, why: Error) {
        self.with(|node| {
            warn!("{}: {}; its node is a file", node.name, why.message);
            node.kind = NodeKind::Fuse;
            node.note = Some(why.message);
        });
    }

    /// Detaches the loop device of a node that has one. Blocks until what the kernel still had to write is written.
    ///
    /// # Errors
    /// EBUSY when somebody has it open, or when it would wait for a resume.
    pub(super) fn detach(&self) -> Result<(), Error> {
        let Some((name, Some(loopdev))) = self.with(|node| (node.name.clone(), node.loopdev.clone())) else {
            return Ok(());
        };
        if is_held(&self.md) {
            let message = format!("{name} is suspended, or what it is on: resume it first");
            return Err(failed(Errno::EBUSY, message));
        }
        for attempt in 1.. {
            match loopdev.detach(&self.shared.domain).map_err(|e| of_io(&e))? {
                Detached::Yes => break,
                Detached::InUse if attempt < TRIES => std::thread::sleep(PAUSE),
                Detached::InUse => {
                    let shown = loopdev.path();
                    let message = format!("{name} is in use as {}: unmount or close it first", shown.display());
                    return Err(failed(Errno::EBUSY, message));
                }
            }
        }
        let mut inner = self.shared.lock();
        let at = inner.position(&self.md);
        let Inner { server, nodes, .. } = &mut *inner;
        if let Some(at) = at {
            let node = &mut nodes[at];
            node.loopdev = None;
            server.iter().for_each(|server| _ = server.set_link(&node.name, None));
        }
        Ok(())
    }

    /// Takes the node away. `kindly`: not while somebody has its block device open.
    ///
    /// # Errors
    /// As [`detach`](Self::detach); unkindly none.
    pub(super) fn take_away(&self, kindly: bool) -> Result<(), Error> {
        if kindly {
            self.detach()?;
        }
        let loopdev = self.with(|node| {
            node.unlink();
            node.loopdev.take()
        });
        if let Some(Some(loopdev)) = loopdev {
            give_back(&self.shared.domain, &loopdev);
        }
        let mut inner = self.shared.lock();
        if let Some(at) = inner.position(&self.md) {
            inner.drop_node(at);
        }
        Ok(())
    }

    /// Does what follows from a change of the device.
    pub(super) fn follow(&self, change: Change) {
        let domain = &self.shared.domain;
        if let Some(Some(loopdev)) = self.with(|node| node.loopdev.clone()) {
            let resized = if change.resized { loopdev.resize(domain) } else { Ok(()) };
            let moded = change.moded.map_or(Ok(()), |on| loopdev.set_read_only(domain, on));
            for error in [resized, moded].into_iter().filter_map(Result::err) {
                warn!("{error}");
            }
        }
        if let Err(error) = self.equip() {
            self.make_do(error);
        }
    }
}

/// Gives a block device back, in use or not.
fn give_back(domain: &udm_io::Domain, loopdev: &LoopDevice) {
    if let Err(error) = loopdev.detach_when_closed(domain) {
        warn!("{error}");
    }
}
