//! What control threads ask of the worker: tables, messages, status, suspensions.

use super::{Event, Worker};
use crate::thin::features::Features;
use crate::thin::pool::{Gate, Pool, PoolMode};
use crate::thin::volume::{ThinDevice, Volume};
use std::sync::Arc;
use udm_base::{Errno, Sectors};
use udm_core::Error;
use udm_formats::thin::{self, Change};
use udm_io::{Extent, ExtentKind, ExtentsReply, Status};
use udm_worker::{MetadataIo, Reply, Ticket};

/// What helps a pool that has run out of metadata blocks.
pub(in crate::thin) const OUT_OF_METADATA_SPACE: &str =
    "the pool is out of metadata space: let the metadata device grow, then suspend and resume the pool";

/// What most commands answer.
pub(in crate::thin) type Done = Result<(), Error>;

/// A pool's numbers, as its status line has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::thin) struct PoolStatus {
    pub(in crate::thin) transaction_id: u64,
    pub(in crate::thin) metadata: (u64, u64),
    pub(in crate::thin) data: (u64, u64),
    pub(in crate::thin) snap_root: Option<u64>,
    pub(in crate::thin) features: Features,
    pub(in crate::thin) error_if_no_space: bool,
    pub(in crate::thin) needs_check: bool,
}

/// A volume's numbers, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::thin) struct VolumeStatus {
    pub(in crate::thin) mapped: u64,
    pub(in crate::thin) highest: Option<u64>,
}

/// What a message asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::thin) enum MetadataOf {
    CreateThin(u32),
    CreateSnap(u32, u32),
    Delete(u32),
    SetTransactionId(u64, u64),
    ReserveSnap,
    ReleaseSnap,
}

impl MetadataOf {
    /// What there has to be room for; of a release it is the least.
    const fn change(self) -> Change {
        match self {
            Self::Delete(_) => Change::Delete,
            _ => Change::One,
        }
    }
}

/// What a control thread asks for.
pub(in crate::thin) enum Command {
    /// Take these features, and the sizes that table and devices have now (`pool_preresume`).
    Bind {
        features: Features,
        low_water: u64,
        data_blocks: u64,
        metadata_blocks: u64,
        reply: Reply<Done>,
    },
    /// Bios are served from now on.
    Resume(Reply<Done>),
    /// Answered when nothing is in flight any more; bios wait.
    Suspend(Reply<Done>),
    Commit(Reply<Done>),
    Message(MetadataOf, Reply<Done>),
    Open {
        id: u32,
        blocks: u64,
        reply: Reply<Result<Arc<ThinDevice>, Error>>,
    },
    /// With a commit before, or without.
    Status(bool, Reply<PoolStatus>),
    VolumeStatus(u32, Reply<Result<VolumeStatus, Error>>),
    /// How far from a block on blocks are mapped, or not. The answer begins at a sector of the first.
    Extent {
        id: u32,
        from: u64,
        to: u64,
        into: u64,
        reply: ExtentsReply,
    },
    /// Gives back what waits for a volume.
    Requeue(Arc<Volume>, Reply<Done>),
    Close(Reply<Done>),
}

impl From<Command> for Event {
    fn from(command: Command) -> Self {
        Self::Command(command)
    }
}

/// Opens the metadata, as a worker that will answer; then serves the pool until it is closed.
pub(in crate::thin) fn open(
    pool: &Arc<Pool>,
    geometry: thin::Geometry,
    options: thin::Options,
    format: bool,
) -> Result<(), Error> {
    let cannot = |e: std::io::Error| Error::new(Errno::of(&e), format!("the pool cannot be started: {e}"));
    let reply = Reply::<Done>::default();
    let (worker, opened) = (pool.clone(), reply.clone());
    let io = MetadataIo::new(pool.clone(), pool.metadata.clone());
    let work = |events| async move {
        let metadata = match thin::Metadata::open(io.clone(), &geometry, options).await {
            // As the kernel: the data space map begins empty, and grows when the pool is resumed.
            Err(thin::Error::Unformatted) if format => {
                let empty = thin::Geometry { data_blocks: 0, ..geometry };
                thin::Metadata::format(io, &empty, options).await
            }
            opened => opened,
        };
        match metadata {
            Ok(metadata) => {
                opened.give(Ok(()));
                Worker::new(worker, events, metadata).run().await;
            }
            Err(e) => opened.give(Err(refused(&e))),
        }
    };
    pool.start(work).map_err(cannot)?;
    pool.wait_for(&reply)?
}

/// A suspension that waits.
pub(super) struct Suspending {
    reply: Reply<Done>,
    ticket: Ticket,
}

/// The number that the kernel fails with, and what it only logs.
fn refused(error: &thin::Error) -> Error {
    use thin::Error as E;
    let errno = match error {
        E::NoDevice(_) => Errno::ENODATA,
        E::DeviceExists(_) => Errno::EEXIST,
        E::SnapHeld(_) => Errno::EBUSY,
        E::Data(udm_pdata::Error::NoSpace(_)) => Errno::ENOSPC,
        E::Data(udm_pdata::Error::Damage(_)) => Errno::EILSEQ,
        E::Data(_) => Errno::EIO,
        _ => Errno::EINVAL,
    };
    Error::new(errno, error.to_string())
}

impl Worker {
    pub(super) async fn command(&mut self, command: Command) {
        match command {
            Command::Bind { features, low_water, data_blocks, metadata_blocks, reply } => {
                let bound = self.bind(features, low_water, data_blocks, metadata_blocks).await;
                reply.give(bound);
            }
            Command::Resume(reply) => {
                self.resume();
                reply.give(Ok(()));
            }
            Command::Suspend(reply) => {
                self.pause_deletions();
                let ticket = self.pool.ask_drain();
                self.suspending.push(Suspending { reply, ticket });
            }
            Command::Commit(reply) => {
                self.commit().await;
                reply.give(Ok(()));
            }
            Command::Message(message, reply) => self.message(message, reply).await,
            Command::Open { id, blocks, reply } => {
                let opened = self.open_device(id, blocks).await;
                reply.give(opened);
            }
            Command::Status(commit, reply) => {
                if commit && self.pool.gate() != Gate::Suspended {
                    self.commit().await;
                }
                reply.give(self.status());
            }
            Command::VolumeStatus(id, reply) => {
                let status = self.volume_status(id).await;
                reply.give(status.map_err(|e| refused(&e)));
            }
            Command::Extent { id, from, to, into, reply } => {
                // What cannot be read is not known.
                if let Ok((mapped, end)) = self.extent(id, from, to).await {
                    let sectors = Sectors::new((end - from) * self.pool.block.get() - into);
                    reply
                        .give(vec![Extent { sectors, kind: if mapped { ExtentKind::Data } else { ExtentKind::Hole } }]);
                }
            }
            Command::Requeue(volume, reply) => {
                self.requeue(&volume);
                reply.give(Ok(()));
            }
            Command::Close(reply) => self.closing = Some(reply),
        }
    }

    /// `bind_control_target`, `maybe_resize_data_dev` and `maybe_resize_metadata_dev`
    async fn bind(&mut self, features: Features, low_water: u64, data: u64, metadata: u64) -> Done {
        self.features = features;
        self.low_water = low_water;
        self.pool.unmaps.store(features.unmaps(), std::sync::atomic::Ordering::Relaxed);
        let wanted = match self.pool.mode() {
            _ if features.read_only => PoolMode::ReadOnly,
            // A pool that was read-only for its table's sake, or has been repaired.
            PoolMode::ReadOnly if !self.metadata.needs_check() => PoolMode::Write,
            mode => mode,
        };
        self.set_mode(wanted);
        if self.pool.mode() == PoolMode::Fail {
            return Ok(());
        }
        // Metadata first: data blocks are counted there.
        let grown = self.grow_metadata(metadata).await? | self.grow_data(data).await?;
        if grown {
            self.commit().await;
        }
        Ok(())
    }

    async fn grow_data(&mut self, blocks: u64) -> Result<bool, Error> {
        let had = self.metadata.data_blocks();
        if blocks < had {
            let message = format!("pool target ({blocks} blocks) too small: expected {had}");
            return Err(Error::new(Errno::EINVAL, message));
        }
        if blocks == had || self.metadata.is_read_only() {
            return Ok(false);
        }
        if self.metadata.needs_check() {
            tracing::error!("thin-pool: unable to grow the data device until repaired");
            return Ok(false);
        }
        if !self.make_room(Change::Grow(blocks - had)).await {
            return Ok(false);
        }
        match self.metadata.resize_data(blocks).await {
            Ok(()) => Ok(true),
            Err(e) => {
                self.metadata_failed("growing the data device", &e).await;
                Err(refused(&e))
            }
        }
    }

    async fn grow_metadata(&mut self, blocks: u64) -> Result<bool, Error> {
        let had = self.metadata.metadata_blocks();
        if blocks < had {
            let message = format!("metadata device ({blocks} blocks) too small: expected {had}");
            return Err(Error::new(Errno::EINVAL, message));
        }
        let out_of_space = self.pool.mode() == PoolMode::OutOfMetadataSpace;
        if blocks == had || (self.metadata.is_read_only() && !out_of_space) {
            return Ok(false);
        }
        if self.metadata.needs_check() {
            tracing::error!("thin-pool: unable to grow the metadata device until repaired");
            return Ok(false);
        }
        if out_of_space {
            self.set_mode(PoolMode::Write);
        }
        match self.metadata.resize_metadata(blocks).await {
            Ok(()) => Ok(true),
            Err(e) => {
                self.metadata_failed("growing the metadata device", &e).await;
                Err(refused(&e))
            }
        }
    }

    fn resume(&mut self) {
        self.low_water_told = false;
        self.deletions.look_again();
        self.pool.resume_gate();
        self.end_waiting(None);
        let parked = std::mem::take(&mut self.parked);
        self.events.put_last(parked.into_iter().map(|(volume, bio)| Event::Bio(volume, bio)));
    }

    /// Answers who waits for the pool to be still, once it is.
    pub(super) fn check_suspended(&mut self) {
        if self.suspending.is_empty() || !self.jobs.is_empty() {
            return;
        }
        let pool = &self.pool;
        let still = |s: &Suspending| pool.is_drained(s.ticket) && pool.entered() == 0;
        for done in self.suspending.extract_if(.., |s| still(s)) {
            done.reply.give(Ok(()));
        }
    }

    /// `pool_message`
    async fn message(&mut self, message: MetadataOf, reply: Reply<Done>) {
        if self.pool.mode() > PoolMode::OutOfDataSpace {
            let message = "unable to service pool target messages in READ_ONLY or FAIL mode";
            return reply.give(Err(Error::new(Errno::EOPNOTSUPP, message)));
        }
        if matches!(message, MetadataOf::ReleaseSnap) {
            // How much it takes follows from all that the snapshot alone has, which nobody has counted. So it is always
            // alone in its transaction: when it runs out, an abort loses nothing else, and what is under way goes on.
            self.commit().await;
        }
        if !self.make_room(message.change()).await {
            let message = match self.pool.mode() {
                PoolMode::OutOfMetadataSpace => OUT_OF_METADATA_SPACE,
                _ => "the metadata could not be committed; the pool's status tells more",
            };
            return reply.give(Err(Error::new(Errno::EOPNOTSUPP, message)));
        }
        let done = match message {
            MetadataOf::CreateThin(id) => self.metadata.create_thin(id).await,
            MetadataOf::CreateSnap(id, origin) => self.create_snap(id, origin).await,
            MetadataOf::Delete(id) => return self.delete(id, reply).await,
            MetadataOf::SetTransactionId(old, new) => self.metadata.set_transaction_id(old, new),
            MetadataOf::ReserveSnap => self.reserve_snap().await,
            MetadataOf::ReleaseSnap => self.metadata.release_snap().await,
        };
        self.finish_message(done, &reply).await;
    }

    pub(super) async fn finish_message(&mut self, done: Result<(), thin::Error>, reply: &Reply<Done>) {
        let answer = match done {
            Ok(()) if self.commit().await => Ok(()),
            Ok(()) => Err(Error::new(Errno::EIO, "the metadata could not be committed; the pool's status tells more")),
            Err(e) => {
                if !e.is_refusal() {
                    self.metadata_failed("a message", &e).await;
                }
                Err(refused(&e))
            }
        };
        reply.give(answer);
    }

    /// Takes a snapshot, of a device in use too. Every mapping of the origin becomes a shared one for whoever looks it
    /// up from here on, and who has looked one up before has to be done, before the snapshot is there: so it holds
    /// still.
    async fn create_snap(&mut self, id: u32, origin: u32) -> Result<(), thin::Error> {
        if let Some(device) = self.devices.get(&origin).and_then(std::sync::Weak::upgrade) {
            device.mappings.share_all();
            self.pool.drain().await;
        }
        self.metadata.create_snap(id, origin).await
    }

    /// Commits before, with all that belongs to a commit; the snapshot's own then finds nothing to do.
    async fn reserve_snap(&mut self) -> Result<(), thin::Error> {
        self.commit().await;
        self.metadata.reserve_snap().await
    }

    async fn open_device(&mut self, id: u32, blocks: u64) -> Result<Arc<ThinDevice>, Error> {
        if self.pool.mode() == PoolMode::Fail {
            return Err(Error::new(Errno::EINVAL, "the pool has failed"));
        }
        if let Some(device) = self.devices.get(&id).and_then(std::sync::Weak::upgrade) {
            return Ok(device);
        }
        self.metadata.details(id).await.map_err(|e| refused(&e))?;
        let device = ThinDevice::new(self.pool.clone(), id, blocks);
        if self.metadata.changed_since_commit(id) {
            // By those who had it open before.
            self.has_changed(&device);
        }
        self.devices.insert(id, Arc::downgrade(&device));
        Ok(device)
    }

    fn status(&self) -> PoolStatus {
        let metadata = &self.metadata;
        PoolStatus {
            transaction_id: metadata.transaction_id(),
            metadata: (metadata.metadata_blocks() - metadata.metadata_free(), metadata.metadata_blocks()),
            data: (metadata.data_blocks() - metadata.data_free(), metadata.data_blocks()),
            snap_root: metadata.snap_root(),
            features: self.features,
            error_if_no_space: !self.waits_for_space(),
            needs_check: metadata.needs_check(),
        }
    }

    async fn volume_status(&mut self, id: u32) -> Result<VolumeStatus, thin::Error> {
        let mapped = self.metadata.details(id).await?.mapped_blocks;
        Ok(VolumeStatus { mapped, highest: self.metadata.highest_mapped(id).await? })
    }

    async fn extent(&mut self, id: u32, from: u64, to: u64) -> Result<(bool, u64), thin::Error> {
        Ok(match self.metadata.mapped_range(id, from, to).await? {
            Some(run) if run.from > from => (false, run.from),
            Some(run) => (true, run.to),
            None => (false, to),
        })
    }

    /// Gives back a volume's bios that wait for space or for the pool.
    fn requeue(&mut self, volume: &Arc<Volume>) {
        for list in [&mut self.retry, &mut self.parked] {
            for (_, bio) in list.extract_if(.., |(v, _)| Arc::ptr_eq(v, volume)) {
                bio.end(Status::Requeue);
            }
        }
    }

    /// Commits and ends, when that was asked for. Nobody has a volume any more then.
    pub(super) async fn close_if_asked(&mut self) -> bool {
        let Some(reply) = self.closing.take() else { return false };
        self.commit().await;
        reply.give(Ok(()));
        true
    }
}
