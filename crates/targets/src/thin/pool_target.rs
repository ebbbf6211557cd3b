//! # Purpose
//! A pool of data blocks and the metadata that say which thin volume has which: what `thin` targets draw from.
//! # Table
//! `<start> <length> thin-pool <metadata device> <data device> <block sectors> <low water blocks> [<n> <feature>…]`
//!
//! Features: `skip_block_zeroing`, `ignore_discard`, `no_discard_passdown`, `read_only`, `error_if_no_space`; udm's
//! own: `enable_zero_writes` (zeroes written to unprovisioned blocks provision them), `skip_zero_writes` (they do not,
//! which is so unless said), `unmap_zero_writes` (zeroes over a whole provisioned block unmap it).
//! # Status
//! `<transaction> <used>/<all metadata blocks> <used>/<all data blocks> <metadata snapshot or ->
//! rw|ro|out_of_data_space
//! <discards> queue_if_no_space|error_if_no_space needs_check|- <metadata low water> skip_zero_writes|enable_zero_writes`;
//! `Fail` when the metadata have failed.
//! # Messages
//! `create_thin <id>`, `create_snap <id> <origin id>`, `delete <id>`, `set_transaction_id <now> <new>`,
//! `reserve_metadata_snap`, `release_metadata_snap`.
//! # Differences from the kernel
//! The last word of the status and three feature words are udm's own. A discard does not wait for I/O in flight, a
//! commit does (`drivers/md/dm-thin.c`, 6.12).

use super::claims::Claim;
use super::features::Features;
use super::pool::{Pool, PoolMode, inspect, new_pool};
use super::worker::{Command, MetadataOf, OUT_OF_METADATA_SPACE, PoolStatus, open as open_metadata};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use udm_base::{Arg, ArgError, Errno, Sector, Sectors};
use udm_core::{Attributes, Ctr, Error, Map, NewTarget, StatusKind, TableSlot, Target, TargetDevice, TargetType};
use udm_formats::thin::superblock::{METADATA_BLOCK, is_data_block_size};
use udm_formats::thin::{Geometry, MAX_DEVICE, Options};
use udm_io::{Bio, BlockDevice, Cx, Limits};

pub(crate) static TYPE: TargetType =
    TargetType::new("thin-pool", [1, 23, 0], ctr).singleton().always_writeable().immutable();

/// One table's pool.
pub(super) struct PoolTarget {
    handle: Arc<PoolHandle>,
    features: Features,
    low_water: u64,
    len: Sectors,
}

/// Keeps a pool open: its tables and volumes have it together. Its devices are its own until it is closed.
pub(super) struct PoolHandle(pub(super) Arc<Pool>, #[expect(dead_code, reason = "dropped with it")] Claim);

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    let usage = "<metadata device> <data device> <block sectors> <low water blocks> [<n> <feature>…]";
    ctr.args.expect_count(4..=usize::MAX, "Invalid argument count", usage)?;
    let metadata_arg = ctr.args.need("Invalid argument count", "a metadata device")?;
    let data_arg = ctr.args.need("Invalid argument count", "a data device")?;
    if metadata_arg.text == data_arg.text {
        let hint = format!("expected two devices, found {:?} twice", data_arg.text);
        return Err(ArgError::new("Error setting metadata or data device").hint(hint).at(&data_arg));
    }
    let (block, block_arg) = ctr.args.number("Invalid block size", "a block size in sectors")?;
    let (low_water, _) = ctr.args.number("Invalid low water mark", "a number of blocks")?;
    let features = Features::parse(&mut ctr.args)?;
    let block = Sectors::new(block);
    if !is_data_block_size(block) {
        let hint = format!("expected a multiple of 128 sectors from 128 to 2097152, found {block}");
        return Err(ArgError::new("Invalid block size").hint(hint).at(&block_arg));
    }
    let before = pool_of(ctr.owner);
    let known = before.as_ref().map(|handle| (&handle.0.metadata, &handle.0.data)).unzip();
    let metadata = ctr.device_exclusive_or(&metadata_arg, "Error opening metadata block device", known.0)?;
    let data = ctr.device_exclusive_or(&data_arg, "Error getting data device", known.1)?;
    if metadata.id() == data.id() {
        let hint = format!("expected two devices, found one by two names: {}", data.name());
        return Err(ArgError::new("Error setting metadata or data device").hint(hint).at(&data_arg));
    }
    if data.sectors() < ctr.len {
        // Core would find it, but after the metadata have been opened, or made.
        let hint =
            format!("expected {} sectors, as the table has, found a device of {} sectors", ctr.len, data.sectors());
        return Err(ArgError::new("data device too small for target").hint(hint).at(&data_arg));
    }
    let handle = match before {
        Some(handle) => same_pool(handle, &metadata, &data, block, &features, &data_arg)?,
        None => open(ctr, metadata, data, block, &features, &metadata_arg)?,
    };
    let (metadata, dev) = (handle.0.metadata.clone(), handle.0.data.clone());
    let made = NewTarget::new(PoolTarget { handle, features, low_water, len: ctr.len });
    Ok(made.shifts_to(TargetDevice { dev, start: Sector::ZERO, len: ctr.len }).keeps([metadata]))
}

impl Target for PoolTarget {
    fn map(&self, _: &Cx<'_>, bio: Bio, _: Sectors) -> Map<'_> {
        Map::Remapped(bio, &*self.pool().data)
    }

    fn status(&self, kind: StatusKind) -> String {
        let pool = self.pool();
        match kind {
            StatusKind::Table => {
                let (metadata, data) = (pool.metadata.name(), pool.data.name());
                // The kernel's line ends with a space, too.
                format!("{metadata} {data} {} {} {} ", pool.block.get(), self.low_water, self.features.words())
            }
            StatusKind::Info { noflush } => self.ask(!noflush),
            StatusKind::Measurement => String::new(),
        }
    }

    fn limits(&self, limits: &mut Limits) {
        // So that tools send I/O that suits the blocks (`pool_io_hints`).
        let block = u32::try_from(self.pool().block_len().bytes()).unwrap_or(u32::MAX);
        if limits.io_opt == 0 || !limits.io_opt.is_multiple_of(block) {
            limits.io_min = block;
            limits.io_opt = block;
        }
        if !(self.features.discard && self.features.passdown) {
            limits.max_discard = Sectors::ZERO;
        }
    }

    fn message(&self, words: &[&str]) -> Result<String, Error> {
        let message = read_message(words)?;
        self.pool().call(|reply| Command::Message(message, reply))?.map(|()| String::new())
    }

    fn presuspend(&self, _: bool) {
        let pool = self.pool();
        pool.suspend_gate();
        pool.domain().synchronize();
        if let Err(e) | Ok(Err(e)) = pool.call(Command::Suspend) {
            tracing::error!("thin-pool: {e}");
        }
    }

    fn postsuspend(&self) {
        if let Err(e) | Ok(Err(e)) = self.pool().call(Command::Commit) {
            tracing::error!("thin-pool: {e}");
        }
    }

    fn preresume(&self) -> Result<(), Error> {
        let pool = self.pool();
        let data_blocks = self.len.get() / pool.block.get();
        let metadata_blocks = pool.metadata.sectors().get() / METADATA_BLOCK.get();
        let (features, low_water) = (self.features, self.low_water);
        pool.call(|reply| Command::Bind { features, low_water, data_blocks, metadata_blocks, reply })?
    }

    fn resume(&self) {
        if let Err(e) | Ok(Err(e)) = self.pool().call(Command::Resume) {
            tracing::error!("thin-pool: {e}");
        }
    }

    fn attributes(&self) -> Option<&dyn Attributes> {
        Some(self)
    }
}

impl Attributes for PoolTarget {
    fn inspect(&self) -> Vec<(&'static str, String)> {
        inspect(self.pool())
    }

    fn notice(&self) -> Option<String> {
        let pool = self.pool();
        let needs_check = || pool.call(|reply| Command::Status(false, reply)).is_ok_and(|status| status.needs_check);
        match pool.mode() {
            PoolMode::Fail => Some(format!("the pool has failed: {}", how_to_check(pool))),
            PoolMode::ReadOnly if needs_check() => Some(how_to_check(pool)),
            PoolMode::OutOfMetadataSpace => Some(OUT_OF_METADATA_SPACE.into()),
            _ => None,
        }
    }

    fn set_option(&self, key: &str, value: &str) -> Option<()> {
        // The kernel has this as a parameter of its module, for all pools.
        let seconds: u64 = value.parse().ok().filter(|_| key == "no_space_timeout")?;
        self.pool().no_space_timeout.store(seconds.saturating_mul(1_000_000_000), Ordering::Relaxed);
        Some(())
    }
}

/// What is to be done about metadata that nobody may change before they have been looked at.
fn how_to_check(pool: &Pool) -> String {
    let metadata = pool.metadata.name();
    format!(
        "the pool's metadata need a check, and nothing of them changes before: remove the pool and its volumes, and run \
         `udm thin check --clear-needs-check-flag {metadata}`; where that finds errors, \
         `udm thin repair -i {metadata} -o NEW`, and make the pool with NEW"
    )
}

impl PoolTarget {
    pub(super) fn handle(&self) -> &Arc<PoolHandle> {
        &self.handle
    }

    pub(super) fn features(&self) -> &Features {
        &self.features
    }

    /// How much of the data device is whole blocks.
    pub(super) fn whole_blocks(&self) -> Sectors {
        let block = self.pool().block.get();
        Sectors::new(self.len.get() / block * block)
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.handle.0
    }

    /// Fewer free metadata blocks than this are an event (`calc_metadata_threshold`).
    fn metadata_low_water(&self) -> u64 {
        (self.pool().metadata.sectors().get() / METADATA_BLOCK.get() / 4).min(1024)
    }

    /// The status, with a commit before unless the pool is suspended: what was freed is free after one only.
    fn ask(&self, commit: bool) -> String {
        if self.pool().mode() == PoolMode::Fail {
            return "Fail".into();
        }
        match self.pool().call(|reply| Command::Status(commit, reply)) {
            Ok(status) => self.info(&status),
            Err(_) => "Error".into(),
        }
    }

    fn info(&self, status: &PoolStatus) -> String {
        let features = &status.features;
        let mode = match self.pool().mode() {
            PoolMode::Fail => return "Fail".into(),
            PoolMode::OutOfDataSpace => "out_of_data_space",
            PoolMode::ReadOnly | PoolMode::OutOfMetadataSpace => "ro",
            PoolMode::Write => "rw",
        };
        let discard = match (features.discard, features.passdown) {
            (false, _) => "ignore_discard",
            (true, true) => "discard_passdown",
            (true, false) => "no_discard_passdown",
        };
        let ((metadata, metadata_all), (data, data_all)) = (status.metadata, status.data);
        format!(
            "{} {metadata}/{metadata_all} {data}/{data_all} {} {mode} {discard} {} {} {} {}",
            status.transaction_id,
            status.snap_root.map_or_else(|| "-".into(), |root| root.to_string()),
            if status.error_if_no_space { "error_if_no_space" } else { "queue_if_no_space" },
            if status.needs_check { "needs_check" } else { "-" },
            self.metadata_low_water(),
            if features.skips() { "skip_zero_writes" } else { "enable_zero_writes" },
        )
    }
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        // The last table and the last volume are gone. What cannot be committed now was told before.
        let _ = self.0.call(Command::Close);
    }
}

/// The pool that a device has by one of its tables.
pub(super) fn pool_of(md: &udm_core::MappedDevice) -> Option<Arc<PoolHandle>> {
    with_target(md, |target| target.handle.clone())
}

/// Does something with the pool target of a device's active table, or else of its inactive one.
pub(super) fn with_target<T>(md: &udm_core::MappedDevice, work: impl Fn(&PoolTarget) -> T) -> Option<T> {
    let tables = [TableSlot::Active, TableSlot::Inactive].into_iter().filter_map(|slot| md.table(slot));
    let mut found = None;
    for table in tables {
        found = found.or_else(|| table.find_target().map(&work));
    }
    found
}

fn same_pool(
    handle: Arc<PoolHandle>,
    metadata: &Arc<dyn BlockDevice>,
    data: &Arc<dyn BlockDevice>,
    block: Sectors,
    features: &Features,
    arg: &Arg,
) -> Result<Arc<PoolHandle>, ArgError> {
    let pool = &handle.0;
    if metadata.id() != pool.metadata.id() || data.id() != pool.data.id() || block != pool.block_len() {
        let hint = format!(
            "expected {} {} {}, which the device has until it is removed",
            pool.metadata.name(),
            pool.data.name(),
            pool.block.get()
        );
        return Err(ArgError::new("different pool cannot replace a pool").hint(hint).at(arg));
    }
    if features.discard != pool.discards {
        let hint = "whether a pool takes discards is settled when it is made; remove it first";
        return Err(ArgError::new("Discard support cannot be disabled once enabled").hint(hint));
    }
    Ok(handle)
}

fn open(
    ctr: &Ctr<'_>,
    metadata: Arc<dyn BlockDevice>,
    data: Arc<dyn BlockDevice>,
    block: Sectors,
    features: &Features,
    arg: &Arg,
) -> Result<Arc<PoolHandle>, ArgError> {
    const MESSAGE: &str = "Error creating metadata object";
    let claim = Claim::new([&metadata, &data]).map_err(|taken| {
        let (dev, message) =
            [(&metadata, "metadata device already in use by a pool"), (&data, "data device already in use by a pool")]
                [taken];
        let hint = format!("{} belongs to another pool until that one is removed", dev.name());
        ArgError::new(message).errno(Errno::EBUSY).hint(hint).at(arg)
    })?;
    let owner = Arc::downgrade(ctr.owner);
    let pool = new_pool(ctr.domain, owner, [metadata, data], block, features.discard);
    let pool = pool.map_err(|e| ArgError::new(MESSAGE).errno(Errno::of(&e)).hint(e.to_string()))?;
    let geometry = Geometry { data_block: block, data_blocks: ctr.len.get() / block.get() };
    // A pool that its table makes read-only can be made writeable by the next one; opening writes nothing.
    let options = Options { read_only: pool.metadata.read_only(), ..Options::default() };
    let opened = open_metadata(&pool, geometry, options, !features.read_only);
    opened.map_err(|e| ArgError::new(MESSAGE).errno(e.errno).hint(e.message).at(arg))?;
    Ok(Arc::new(PoolHandle(pool, claim)))
}

/// Reads a message's words.
fn read_message(words: &[&str]) -> Result<MetadataOf, Error> {
    let invalid = |message: String| Error::new(Errno::EINVAL, message);
    let count = |wanted: usize| {
        let found = words.len();
        let message = || invalid(format!("Message received with {found} arguments instead of {wanted}"));
        if found == wanted { Ok(()) } else { Err(message()) }
    };
    let number = |at: usize, what: &str| {
        let digits = words[at].bytes().all(|b| b.is_ascii_digit());
        let parsed = words[at].parse::<u64>().ok().filter(|_| digits);
        parsed.ok_or_else(|| invalid(format!("{what} {}", words[at])))
    };
    let id = |at: usize| {
        let text = "Message received with invalid device id:";
        let id = number(at, text)?;
        let fits = u32::try_from(id).ok().filter(|id| *id <= MAX_DEVICE);
        fits.ok_or_else(|| invalid(format!("{text} {id}: expected at most {MAX_DEVICE}")))
    };
    match words[0].to_ascii_lowercase().as_str() {
        "create_thin" => count(2).and_then(|()| Ok(MetadataOf::CreateThin(id(1)?))),
        "create_snap" => count(3).and_then(|()| Ok(MetadataOf::CreateSnap(id(1)?, id(2)?))),
        "delete" => count(2).and_then(|()| Ok(MetadataOf::Delete(id(1)?))),
        "set_transaction_id" => count(3).and_then(|()| {
            let old = number(1, "set_transaction_id message: Unrecognised id")?;
            Ok(MetadataOf::SetTransactionId(old, number(2, "set_transaction_id message: Unrecognised new id")?))
        }),
        "reserve_metadata_snap" => count(1).map(|()| MetadataOf::ReserveSnap),
        "release_metadata_snap" => count(1).map(|()| MetadataOf::ReleaseSnap),
        _ => Err(invalid(format!(
            "Unrecognised thin pool target message received: {}; known are create_thin, create_snap, delete, \
             set_transaction_id, reserve_metadata_snap and release_metadata_snap",
            words[0]
        ))),
    }
}
