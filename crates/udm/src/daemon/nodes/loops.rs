//! The block devices of nodes that are loop devices: attached, adapted and detached by who has claimed the node,
//! without the lock.

use super::error::{failed, of_io};
use super::files::{Change, Files, Node, takes_discards};
use super::held::is_held;
use super::mapper;
use super::shared::Claim;
use crate::daemon::own_writes;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::{info, warn};
use udm_base::Errno;
use udm_control::second::NodeKind;
use udm_core::Error;
use udm_export::node::loopdev::{self, Choice, Detached, LoopDevice};

/// How often, and at which interval, to check whether a loop device is still open: programs that look at new devices,
/// such as udev, open them for a moment.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// The file that a block device is attached to, and its options.
struct Order {
    file: PathBuf,
    read_only: bool,
    block: u32,
    /// Bytes of data that may be under way afterwards.
    data: usize,
    choice: Choice,
    discards: bool,
}

impl Claim {
    fn with<T>(&self, work: impl FnOnce(&mut Node) -> T) -> Option<T> {
        let mut inner = self.shared.lock();
        inner.position(&self.md).map(|at| work(&mut inner.nodes[at]))
    }

    /// Attaches the loop device of a node that should have one, and makes its link. Blocks until the device has
    /// flushed.
    pub(super) fn equip(&self) -> Result<(), Error> {
        if let Some(order) = self.order() {
            let loopdev = self.attach(&order).map_err(|e| of_io(&e))?;
            self.attached(loopdev)?;
        }
        self.link()
    }

    /// The same with a number that programs know the device by, and that it keeps.
    ///
    /// # Errors
    /// EBUSY: the number that was asked for is taken.
    pub(super) fn equip_with(&self, minor: Option<u32>) -> Result<(), Error> {
        let next = &self.shared.next_number;
        let choice = minor.map_or_else(|| Choice::New(next.load(Ordering::Relaxed)), Choice::Exactly);
        let order = self.order().map(|order| Order { choice, ..order });
        let order = order.ok_or_else(|| failed(Errno::ENODEV, "its mount has gone"))?;
        let loopdev = self.attach(&order).map_err(|e| of_io(&e))?;
        let number = loopdev.number().minor;
        if minor.is_none() {
            next.fetch_max(number + 1, Ordering::Relaxed);
        }
        self.with(|node| node.wanted.number = Some(number));
        self.attached(loopdev)
    }

    fn attach(&self, order: &Order) -> io::Result<LoopDevice> {
        let Order { file, read_only, block, data, choice, discards } = order;
        own_writes::reserve(*data);
        let domain = &self.shared.domain;
        let attach = |choice| {
            let loopdev = loopdev::attach(domain, file, *read_only, *block, choice)?;
            if !discards
                && choice != Choice::Free
                && let Err(error) = loopdev.refuse_discards(domain)
            {
                warn!("{} offers discards that nobody takes: {error}", loopdev.path().display());
            }
            Ok(loopdev)
        };
        match attach(*choice) {
            // Another number is better than none.
            Err(error) if self.with(|node| node.wanted.number.is_some()) == Some(true) => {
                warn!("{error}; it gets another number");
                let loopdev = attach(Choice::New(self.shared.next_number.load(Ordering::Relaxed)))?;
                self.with(|node| node.wanted.number = Some(loopdev.number().minor));
                Ok(loopdev)
            }
            other => other,
        }
    }

    fn order(&self) -> Option<Order> {
        let inner = self.shared.lock();
        let (server, node) = (inner.server.as_ref()?, &inner.nodes[inner.position(&self.md)?]);
        (node.kind == NodeKind::Loop && node.loopdev.is_none()).then(|| Order {
            file: server.file(&node.name),
            read_only: node.seen.read_only,
            block: node.seen.limits.logical_block_size,
            data: server.most_data(),
            choice: node.wanted.number.map_or(Choice::Free, Choice::Exactly),
            discards: takes_discards(&node.seen),
        })
    }

    /// It belongs to the node from now on, if the node still exists.
    fn attached(&self, loopdev: LoopDevice) -> Result<(), Error> {
        let mut inner = self.shared.lock();
        let at = inner.position(&self.md).filter(|at| !inner.nodes[*at].lost);
        let Files { server, nodes, .. } = &mut *inner;
        if let (Some(server), Some(at)) = (server, at) {
            let (node, shown) = (&mut nodes[at], loopdev.path());
            server.set_link(&node.name, Some(&shown));
            info!("{} is the block device {}", node.name, shown.display());
            self.shared.registry.set_node_number(&self.md, Some(loopdev.number()));
            node.loopdev = Some(loopdev);
            return Ok(());
        }
        drop(inner);
        give_back(&self.shared.domain, &loopdev);
        Err(failed(Errno::ENODEV, "its mount has gone meanwhile"))
    }

    /// Makes the link in /dev/mapper of a node that should have one.
    fn link(&self) -> Result<(), Error> {
        let mut inner = self.shared.lock();
        let Some(at) = inner.position(&self.md) else { return Ok(()) };
        let Files { server: Some(server), nodes, .. } = &mut *inner else { return Ok(()) };
        let node = &mut nodes[at];
        if node.kind == NodeKind::Loop && node.wanted.mapper && node.mapper.is_none() {
            // Through the mount: a link to the loop device itself would outlive a killed daemon, and then lead to the
            // next user of that number.
            node.mapper = Some(mapper::link(&node.name, &server.path(&node.name)).map_err(|e| of_io(&e))?);
        }
        Ok(())
    }

    /// Makes the node a file, since it cannot be a block device.
    pub(super) fn make_do(&self, why: Error) {
        self.with(|node| {
            warn!("{}: {}; its node is a file", node.name, why.message);
            node.kind = NodeKind::Fuse;
            node.note = Some(why.message);
        });
    }

    /// Detaches the loop device of a node that has one. Blocks until what the kernel still had to write is written.
    /// Whether there was one.
    ///
    /// # Errors
    /// EBUSY when somebody has it open, or when it would wait for a resume. `deferred`: then it is detached at the last
    /// close.
    pub(super) fn detach(&self, deferred: bool) -> Result<bool, Error> {
        let Some((name, Some(loopdev))) = self.with(|node| (node.name.clone(), node.loopdev.clone())) else {
            return Ok(false);
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
                    if deferred {
                        loopdev.detach_when_closed(&self.shared.domain).map_err(|e| of_io(&e))?;
                    }
                    let shown = loopdev.path();
                    let message = format!("{name} is in use as {}: unmount or close it first", shown.display());
                    return Err(failed(Errno::EBUSY, message));
                }
            }
        }
        if self.with(|node| node.wanted.number.is_some()) == Some(true) {
            // The next with its number is to be a new device.
            loopdev.discard(&self.shared.domain);
        }
        let mut inner = self.shared.lock();
        let at = inner.position(&self.md);
        let Files { server, nodes, .. } = &mut *inner;
        if let Some(at) = at {
            let node = &mut nodes[at];
            node.loopdev = None;
            // One that programs know by its number keeps it: it comes back with the same.
            if node.wanted.number.is_none() {
                self.shared.registry.set_node_number(&self.md, None);
            }
            server.iter().for_each(|server| _ = server.set_link(&node.name, None));
        }
        Ok(true)
    }

    /// Removes the node. `kindly`: not while its block device is open.
    ///
    /// # Errors
    /// As [`detach`](Self::detach); unkindly none.
    pub(super) fn take_away(&self, kindly: bool) -> Result<(), Error> {
        if kindly {
            self.detach(false)?;
        }
        let loopdev = self.with(|node| {
            mapper::unlink(&mut node.mapper);
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

    /// Adapts the block device to a change of its device.
    pub(super) fn follow(&self, change: Change) {
        let domain = &self.shared.domain;
        if let Some(Some(loopdev)) = self.with(|node| node.loopdev.clone()) {
            let resized = if change.resized { loopdev.resize(domain) } else { Ok(()) };
            let moded = change.moded.map_or(Ok(()), |on| loopdev.set_read_only(domain, on));
            let block = change.block.map_or(Ok(()), |bytes| loopdev.set_block_size(domain, bytes));
            let discards = if change.no_discards { loopdev.refuse_discards(domain) } else { Ok(()) };
            for error in [resized, moded, block, discards].into_iter().filter_map(Result::err) {
                warn!("{error}");
            }
        }
        if let Err(error) = self.equip() {
            self.make_do(error);
        }
    }
}

/// Releases a block device, in use or not.
fn give_back(domain: &udm_io::Domain, loopdev: &LoopDevice) {
    if let Err(error) = loopdev.detach_when_closed(domain) {
        warn!("{error}");
    }
}
