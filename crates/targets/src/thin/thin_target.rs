//! # Purpose
//! A volume whose blocks are taken from a `thin-pool` when they are first written to.
//! # Table
//! `<start> <length> thin <pool device> <device id> [<external origin>]`
//!
//! Blocks that were never written to read as zeroes, or as the external origin, which is never written to.
//! # Status
//! `<mapped sectors> <highest mapped sector or ->`; `Fail` when the pool has failed.
//! # Messages
//! None; they go to the pool.
//! # Differences from the kernel
//! WRITE ZEROES is served: an unmapped block is left so, a mapped whole block is unmapped unless NO_UNMAP asks to keep
//! it (`drivers/md/dm-thin.c`, 6.12, has it written out). A snapshot of a volume in use needs no suspension.

use super::pool::{Gate, PoolMode, ask};
use super::pool_target::{PoolHandle, PoolTarget, with_target};
use super::volume::Volume;
use super::worker::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use udm_base::{Arg, ArgError, Errno, Sector, Sectors};
use udm_core::{
    Attributes, Ctr, Error, Map, MappedDevice, NewTarget, StatusKind, Target, TargetDevice, TargetType, ZeroSkips,
};
use udm_formats::thin::MAX_DEVICE;
use udm_io::{Bio, BlockDevice, Cx, ExtentsReply, Limits};

pub(crate) static TYPE: TargetType = TargetType::new("thin", [1, 23, 0], ctr);

/// Blocks that one discard covers at most (`BIO_PRISON_MAX_RANGE`).
const MAX_DISCARD_BLOCKS: u64 = 1024;

/// One table's volume.
struct Thin {
    volume: Arc<Volume>,
    pool: Arc<PoolHandle>,
    discards: bool,
}

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    ctr.args.expect_count(2..=3, "Invalid argument count", "<pool device> <device id> [<external origin>]")?;
    let pool_arg = ctr.args.need("Invalid argument count", "a pool")?;
    let id_arg = ctr.args.need("Invalid argument count", "a device id")?;
    let origin_arg = ctr.args.take();
    let origin = origin_arg.map(|arg| origin(ctr, &pool_arg, &arg)).transpose()?;
    let pool_device = ctr.device(&pool_arg, "Error opening pool device")?;
    let id = id_of(&id_arg)?;
    let Some(md) = pool_device.as_any().downcast_ref::<MappedDevice>() else {
        let hint = format!("expected a mapped device with a thin-pool, found {}", pool_device.name());
        return Err(ArgError::new("Couldn't get pool mapped device").hint(hint).at(&pool_arg));
    };
    let found = with_target(md, |target: &PoolTarget| {
        (target.handle().clone(), target.whole_blocks(), target.features().discard)
    });
    let Some((pool, pool_len, discards)) = found else {
        let hint = format!("{} has no thin-pool", md.device_name());
        return Err(ArgError::new("Couldn't find pool object").hint(hint).at(&pool_arg));
    };
    check_pool(&pool, md, &pool_arg)?;
    let blocks = ctr.len.get().div_ceil(pool.0.block.get());
    let opened = pool.0.call(|reply| Command::Open { id, blocks, reply }).and_then(|opened| opened);
    let device = opened
        .map_err(|e| ArgError::new("Couldn't open thin internal device").errno(e.errno).hint(e.message).at(&id_arg))?;
    let volume = Volume::new(device, pool_device, origin);
    let data = TargetDevice { dev: volume.pool_device.clone(), start: Sector::ZERO, len: pool_len };
    let kept: Option<Arc<dyn BlockDevice>> = volume.origin.as_ref().map(|origin| origin.dev.clone());
    let block = pool.0.block_len();
    let made = NewTarget::new(Thin { volume, pool, discards }).maps_to([data]).keeps(kept);
    Ok(made.in_place().split_at(block).whole_discards().flushes_beneath())
}

impl Target for Thin {
    #[inline]
    fn map(&self, cx: &Cx<'_>, bio: Bio, at: Sectors) -> Map<'_> {
        self.volume.map(cx, bio, at)
    }

    fn status(&self, kind: StatusKind) -> String {
        let pool = &self.pool.0;
        let id = self.volume.device.id;
        match kind {
            StatusKind::Measurement => String::new(),
            _ if pool.mode() == PoolMode::Fail => "Fail".into(),
            StatusKind::Table => {
                let origin = self.volume.origin.as_ref().map_or_else(String::new, |o| format!(" {}", o.dev.name()));
                format!("{} {id}{origin}", self.volume.pool_device.name())
            }
            StatusKind::Info { .. } => {
                let status = pool.call(|reply| Command::VolumeStatus(id, reply)).and_then(|status| status);
                let Ok(status) = status else { return "Error".into() };
                let size = pool.block.get();
                let highest = status.highest.map(|block| ((block + 1) * size - 1).to_string());
                format!("{} {}", status.mapped * size, highest.as_deref().unwrap_or("-"))
            }
        }
    }

    fn limits(&self, limits: &mut Limits) {
        let block = self.pool.0.block_len();
        // Commits are made here for whoever flushes, and before a write with FUA is.
        limits.write_cache = true;
        limits.fua = true;
        limits.max_write_zeroes = Sectors::MAX;
        limits.max_discard = Sectors::ZERO;
        if self.discards {
            limits.discard_granularity = u32::try_from(block.bytes()).unwrap_or(u32::MAX);
            limits.max_discard = Sectors::new(block.get() * MAX_DISCARD_BLOCKS);
        }
    }

    fn extents(&self, cx: &Cx<'_>, at: Sectors, sectors: Sectors, reply: ExtentsReply) {
        if self.volume.origin.as_ref().is_some_and(|origin| at.from_start() < origin.end()) {
            return;
        }
        let pool = &self.pool.0;
        let (from, into) = pool.block.split(at.get());
        let to = (at + sectors).get().div_ceil(pool.block.get());
        ask(pool, cx, Command::Extent { id: self.volume.device.id, from, to, into, reply });
    }

    fn presuspend(&self, noflush: bool) {
        if noflush {
            self.volume.requeue.store(true, Ordering::Release);
            let volume = self.volume.clone();
            if let Err(e) | Ok(Err(e)) = self.pool.0.call(|reply| Command::Requeue(volume, reply)) {
                tracing::error!("thin: {e}");
            }
        }
    }

    fn postsuspend(&self) {
        self.volume.requeue.store(false, Ordering::Release);
    }

    fn preresume(&self) -> Result<(), Error> {
        self.volume.requeue.store(false, Ordering::Release);
        if let Some(origin) = &self.volume.origin {
            origin.sectors.store(origin.dev.sectors().get(), Ordering::Release);
        }
        Ok(())
    }

    fn attributes(&self) -> Option<&dyn Attributes> {
        Some(self)
    }
}

impl Attributes for Thin {
    fn zero_skips(&self) -> ZeroSkips {
        self.volume.zero_skips()
    }
}

/// The external origin.
fn origin(ctr: &mut Ctr<'_>, pool: &Arg, arg: &Arg) -> Result<Arc<dyn BlockDevice>, ArgError> {
    if pool.text == arg.text {
        let hint = format!("expected another device than the pool, found {:?} twice", arg.text);
        return Err(ArgError::new("Error setting origin device").hint(hint).at(arg));
    }
    ctr.device_to_read(arg, "Error opening origin device")
}

fn id_of(arg: &Arg) -> Result<u32, ArgError> {
    let digits = !arg.text.is_empty() && arg.text.bytes().all(|b| b.is_ascii_digit());
    let id = arg.text.parse::<u32>().ok().filter(|id| digits && *id <= MAX_DEVICE);
    id.ok_or_else(|| {
        let hint = format!("expected a number from 0 to {MAX_DEVICE}, found {:?}", arg.text);
        ArgError::new("Invalid device id").hint(hint).at(arg)
    })
}

/// A pool has to work before volumes are made of it.
fn check_pool(pool: &PoolHandle, md: &MappedDevice, arg: &Arg) -> Result<(), ArgError> {
    let message = match (pool.0.mode(), pool.0.gate()) {
        (PoolMode::Fail, _) => "Couldn't open thin device, Pool is in fail mode",
        (_, Gate::Suspended) => "Unable to activate thin device while pool is suspended",
        _ => return Ok(()),
    };
    let hint = format!("{}: see its status", md.device_name());
    Err(ArgError::new(message).errno(Errno::EINVAL).hint(hint).at(arg))
}
