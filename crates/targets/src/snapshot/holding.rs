//! One target's hold on a snapshot: how it is opened, handed over from table to table, and let go of.

use super::body::{Body, Dropped, Keep};
use super::hurry::Hurrying;
use super::load::{self, Found};
use super::shared::{COPIES, Origin, Snapshot, lock, serial};
use super::state::{Claim, State};
use super::tail::Tail;
use std::fmt::Write;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use udm_base::{Arg, ArgError, Errno, Sector, Sectors};
use udm_core::{Ctr, Error, MappedDevice, StatusKind};
use udm_formats::snapshot::{ChunkSize, Transient};
use udm_io::{BlockDevice, Limits};

/// What a table says besides devices and chunk size.
#[derive(Clone, Copy, Default)]
pub(super) struct Features {
    pub(super) discard_zeroes_cow: bool,
    pub(super) discard_passdown_origin: bool,
}

/// A target's hold on a snapshot.
pub(super) struct Holding {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) features: Features,
    heir: Heir,
    hurry: Hurrying,
}

/// What a target makes of its snapshot when it is resumed.
#[derive(Clone)]
struct Heir {
    /// The target.
    id: u64,
    snapshot: Arc<Snapshot>,
    merge: bool,
    /// `P`, `PO` or `N`.
    store: &'static str,
    len: Sectors,
    md: Weak<MappedDevice>,
}

/// The arguments of a table line.
struct Parsed {
    origin: Arg,
    cow: Arg,
    store: &'static str,
    /// `None`: the default, or what the header says.
    chunk: Option<ChunkSize>,
    chunk_arg: Arg,
    features: Features,
}

fn parse(ctr: &mut Ctr<'_>) -> Result<Parsed, ArgError> {
    let usage = "<origin> <COW device> P|PO|N <chunk sectors> and maybe features";
    ctr.args.expect_count(4..=usize::MAX, "requires 4 or more arguments", usage)?;
    let origin = ctr.args.need("Cannot get origin device", "a device")?;
    let cow = ctr.args.need("Cannot get COW device", "a device")?;
    let no_store = "Couldn't create exception store";
    let kind = ctr.args.need(no_store, "a store: P, PO or N")?;
    let wrong = |hint: String| ArgError::new(no_store).errno(Errno::EINVAL).hint(hint);
    // The first letter counts, and of a persistent store the second (`dm_exception_store_create`, 6.12).
    let upper = kind.text.to_ascii_uppercase();
    let store = match upper.as_bytes() {
        [b'P'] => "P",
        [b'P', b'O', ..] => "PO",
        [b'P', ..] => {
            let hint = format!("Unsupported persistent store option: expected P or PO, found {:?}", kind.text);
            return Err(wrong(hint).at(&kind));
        }
        [b'N', ..] => "N",
        _ => {
            let hint = format!("Exception store type is not P or N: expected P, PO or N, found {:?}", kind.text);
            return Err(wrong(hint).at(&kind));
        }
    };
    let (sectors, chunk_arg) = ctr.args.number(no_store, "a chunk size in sectors (Invalid chunk size)")?;
    let chunk = match sectors {
        0 if store == "N" => {
            return Err(ArgError::new("Chunk size not set").hint("expected a chunk size in sectors").at(&chunk_arg));
        }
        0 => None,
        n => Some(ChunkSize::new(Sectors::new(n)).map_err(|what| {
            wrong(format!("{what}: expected a power of two below 2^22 sectors, found {n}")).at(&chunk_arg)
        })?),
    };
    let features = parse_features(ctr)?;
    Ok(Parsed { origin, cow, store, chunk, chunk_arg, features })
}

fn parse_features(ctr: &mut Ctr<'_>) -> Result<Features, ArgError> {
    let mut features = Features::default();
    if ctr.args.left() == 0 {
        return Ok(features);
    }
    let message = "Invalid number of feature arguments";
    let (count, arg) = ctr.args.number(message, "how many features follow")?;
    if count > 2 || count > ctr.args.left() as u64 {
        let hint = format!("expected as many as follow, and at most 2, found {count}");
        return Err(ArgError::new(message).hint(hint).at(&arg));
    }
    for _ in 0..count {
        let word = ctr.args.need(message, "a feature")?;
        match word.text.to_ascii_lowercase().as_str() {
            "discard_zeroes_cow" => features.discard_zeroes_cow = true,
            "discard_passdown_origin" => features.discard_passdown_origin = true,
            _ => {
                let hint = format!("expected discard_zeroes_cow or discard_passdown_origin, found {:?}", word.text);
                return Err(ArgError::new("Unrecognised feature requested").hint(hint).at(&word));
            }
        }
    }
    if features.discard_passdown_origin && !features.discard_zeroes_cow {
        let message = "discard_passdown_origin feature depends on discard_zeroes_cow";
        return Err(ArgError::new(message).hint("add discard_zeroes_cow").at(&arg));
    }
    Ok(features)
}

/// Opens a device to be written, though the table may be for a read-only one, or if it cannot be written, to be read.
fn open_both<T>(ctr: &mut Ctr<'_>, mut open: impl FnMut(&mut Ctr<'_>) -> Result<T, ArgError>) -> Result<T, ArgError> {
    let was = std::mem::replace(&mut ctr.read_only, false);
    let mut opened = open(ctr);
    if was && opened.is_err() {
        ctr.read_only = true;
        opened = open(ctr);
    }
    ctr.read_only = was;
    opened
}

/// A COW device, and the snapshot that has it already.
type Cow = (Arc<dyn BlockDevice>, Option<Arc<Snapshot>>);

/// The COW device; with the snapshot that has it already, if that is one of the origin's.
fn open_cow(ctr: &mut Ctr<'_>, arg: &Arg, known: &[Arc<Snapshot>]) -> Result<Cow, ArgError> {
    let message = "Cannot get COW device";
    let mut opened = match known {
        [] => ctr.device_exclusive(arg, message),
        [first, ..] => ctr.device_exclusive_or(arg, message, Some(&first.cow)),
    };
    for snapshot in known.iter().skip(1) {
        if opened.is_err() {
            opened = ctr.device_exclusive_or(arg, message, Some(&snapshot.cow));
        }
    }
    let dev = opened?;
    let whose = known.iter().find(|snapshot| snapshot.cow.id() == dev.id());
    Ok((whose.map_or(dev, |snapshot| snapshot.cow.clone()), whose.cloned()))
}

impl Holding {
    /// Opens what a table line names. Blocks: it reads the store.
    pub(super) fn open(ctr: &mut Ctr<'_>, merge: bool) -> Result<Self, ArgError> {
        let Parsed { origin, cow, store, chunk, chunk_arg, features } = parse(ctr)?;
        let dev = open_both(ctr, |ctr| ctr.device(&origin, "Cannot get origin device"))?;
        if dev.sectors() < ctr.len {
            let hint = format!("expected at least the {} sectors of the target, found {}", ctr.len, dev.sectors());
            return Err(ArgError::new("Cannot get origin device").errno(Errno::EINVAL).hint(hint).at(&origin));
        }
        let no_origin =
            |e: std::io::Error| ArgError::new("Snapshot origin struct allocation failed").hint(e.to_string());
        let shared = Origin::of(ctr.domain, dev.clone()).map_err(no_origin)?;
        let same = || {
            let message = "COW device cannot be the same as origin device";
            ArgError::new(message).hint(format!("{} is both", dev.name())).at(&cow)
        };
        if cow.text == origin.text {
            return Err(same());
        }
        let known: Vec<Arc<Snapshot>> = shared.with(|s| s.bodies.iter().map(|b| b.snapshot.clone()).collect());
        let (cow_dev, source) = open_both(ctr, |ctr| open_cow(ctr, &cow, &known))?;
        if shared.is(cow_dev.id()) {
            return Err(same());
        }
        // A store is read once, whoever loads: who comes second finds the snapshot that the first has made.
        let _alone = ctr.alone_with(&cow_dev, &cow, "Cannot get COW device")?;
        let cow_id = cow_dev.id();
        let made = move |s: &mut State| Some(s.bodies.iter().find(|b| b.snapshot.cow.id() == cow_id)?.snapshot.clone());
        let source = source.or_else(|| shared.with(made));
        for (what, dev) in [("COW device", &cow_dev), ("origin", &dev)] {
            let block = Sectors::in_bytes(dev.limits().logical_block_size.into());
            if let Some(chunk) = chunk.filter(|c| c.sectors().get() % block.get().max(1) != 0) {
                let hint = format!(
                    "Chunk size is not a multiple of device blocksize: expected a multiple of the {what}'s {block} \
                     sectors, found {}",
                    chunk.sectors()
                );
                return Err(ArgError::new("Couldn't create exception store").hint(hint).at(&chunk_arg));
            }
        }
        if merge && store == "N" {
            let hint = "expected P or PO, found \"N\"";
            return Err(ArgError::new("Snapshot exception store does not support snapshot-merge.").hint(hint));
        }
        let md = Arc::downgrade(ctr.owner);
        let is_heir = source.is_some();
        let snapshot = match source {
            Some(snapshot) => snapshot,
            None => Self::load(ctr, &shared, cow_dev, store, chunk).map_err(|e| e.at(&cow))?,
        };
        let id = serial();
        let claim = Claim { target: id, snapshot: snapshot.id, merge, active: false, md: md.clone() };
        let it = snapshot.clone();
        shared.with(move |state| {
            if is_heir {
                may_take_over(state, &it, merge)?;
            }
            state.claims.push(claim);
            Ok::<_, ArgError>(())
        })?;
        // One that nobody has handed over is this target's from the beginning.
        let _ = snapshot.owner.compare_exchange(0, id, SeqCst, SeqCst);
        let heir = Heir { id, snapshot: snapshot.clone(), merge, store, len: ctr.len, md };
        Ok(Self { snapshot, features, heir, hurry: Hurrying::default() })
    }

    fn load(
        ctr: &Ctr<'_>,
        origin: &Arc<Origin>,
        cow: Arc<dyn BlockDevice>,
        store: &str,
        chunk: Option<ChunkSize>,
    ) -> Result<Arc<Snapshot>, ArgError> {
        let persistent = store != "N";
        let found = match chunk {
            Some(chunk) if !persistent => {
                let keep = Keep::Transient(Transient::new(chunk, cow.sectors()));
                Found { chunk, keep, exceptions: Vec::new(), valid: true }
            }
            chunk => load::persistent(ctr.domain, &cow, chunk)?,
        };
        let snapshot = Arc::new(Snapshot::new(origin.clone(), cow, found.chunk, persistent, ctr.len));
        let mut body = Body::new(snapshot.clone(), found.keep, &found.exceptions);
        if !found.valid {
            snapshot.valid.store(false, SeqCst);
            snapshot.dropped.store(true, SeqCst);
            body.dropped = Dropped::Done;
        }
        origin.with(move |state| state.bodies.push(body));
        Ok(snapshot)
    }

    /// Whether bios of this target are the snapshot's.
    #[inline]
    pub(super) fn is_owner(&self) -> bool {
        self.snapshot.owner.load(SeqCst) == self.heir.id
    }

    /// Whether bios of this target can be served from the snapshot.
    #[inline]
    pub(super) fn is_valid(&self) -> bool {
        self.is_owner() && self.snapshot.valid.load(SeqCst)
    }

    fn claims(&self) -> (Option<Claim>, Option<Claim>) {
        let id = self.snapshot.id;
        self.snapshot.origin.with(move |state| {
            let mine = |c: &&Claim| c.snapshot == id;
            let source = state.claims.iter().filter(mine).rfind(|c| c.active).cloned();
            let heir = state.claims.iter().filter(mine).rfind(|c| !c.active).cloned();
            (source, heir)
        })
    }

    /// `snapshot_preresume`, `drivers/md/dm-snap.c`, 6.12.
    pub(super) fn preresume(&self) -> Result<(), Error> {
        let (Some(source), Some(_)) = self.claims() else { return Ok(()) };
        if source.target == self.heir.id {
            let message =
                "Unable to resume snapshot source until handover completes: resume the new table's device first";
            return Err(Error::new(Errno::EINVAL, message));
        }
        let suspended = source.md.upgrade().is_none_or(|md| md.info().suspended);
        if !suspended {
            let name = source.md.upgrade().map(|md| md.device_name()).unwrap_or_default();
            let message =
                format!("Unable to perform snapshot handover until source is suspended: suspend {name} first");
            return Err(Error::new(Errno::EINVAL, message));
        }
        if !self.heir.merge && self.snapshot.merge_failed.load(SeqCst) {
            // Nobody knows what its list on the device says.
            let message =
                "Unable to take a snapshot back whose merge has failed: remove what has it, and make it again";
            return Err(Error::new(Errno::EINVAL, message));
        }
        // What the resume will want.
        Tail::of(&self.snapshot, self.heir.len).map(drop).map_err(|e| {
            let message = format!("the snapshot cannot grow to {} sectors: {e}", self.heir.len);
            Error::new(Errno::of(&e), message)
        })
    }

    /// `snapshot_resume`, ibid. Blocks while the origin's writes in flight end, on every device that shows it; a merge
    /// freezes nothing, and waits for nobody.
    ///
    /// Devices are held in the order of their numbers, and the origin's switching within: whoever resumes a merge holds
    /// its device already when it comes to the switching.
    pub(super) fn resume(&self) {
        // After a suspension that was interrupted, too.
        self.hurry.end();
        let _hurry = self.snapshot.origin.copier(COPIES).hurry();
        let mut tail = Tail::of(&self.snapshot, self.heir.len);
        // It could be had a moment ago.
        self.snapshot.origin.domain().drain(|| {
            if tail.is_err() {
                tail = Tail::of(&self.snapshot, self.heir.len);
            }
            tail.is_ok()
        });
        let tail = tail.ok().flatten();
        loop {
            let heir = self.heir.clone();
            let above = self.snapshot.origin.with(move |state| heir.above(state));
            if self.switch_over(&above, &above, tail.as_ref()) {
                return;
            }
        }
    }

    /// Makes the snapshot this target's while nothing is in flight in any of the devices `above`, of which the first
    /// are held already but for `rest`. False when there are others by now.
    fn switch_over(&self, above: &[Arc<MappedDevice>], rest: &[Arc<MappedDevice>], tail: Option<&Tail>) -> bool {
        if let Some((md, rest)) = rest.split_first() {
            let held = md.while_suspended(|| self.switch_over(above, rest, tail));
            // In one that is being removed nothing is in flight.
            return held.unwrap_or_else(|_| self.switch_over(above, rest, tail));
        }
        let origin = self.snapshot.origin.clone();
        let _switching = lock(&origin.switching);
        let merges = origin.with(stop_merges);
        origin.domain().drain(|| !origin.with(|state| is_merging(state)));
        let filled = tail.map_or(Ok(()), |tail| tail.fill(&self.snapshot));
        // One that comes later finds the snapshot in the list before its first write.
        let heir = self.heir.clone();
        let held: Vec<_> = above.iter().map(|md| md.devt()).collect();
        origin.with(move |state| {
            let same = heir.above(state).iter().map(|md| md.devt()).eq(held);
            if same {
                heir.activate(state);
            }
            if let Err(status) = filled {
                tracing::error!("snapshot: the end of the snapshot cannot grow: {status:?}");
                state.invalidate(heir.snapshot.id);
            }
            merges.into_iter().for_each(|id| state.start_merge(id));
            same
        })
    }

    /// What is waited for from here on waits for no throttle, until the suspension is over.
    pub(super) fn presuspend(&self) {
        self.hurry.begin(&self.snapshot.origin);
        if self.heir.merge {
            self.stop_merge();
        }
    }

    pub(super) fn postsuspend(&self) {
        self.hurry.end();
    }

    /// Has the merge stop, and waits until it has.
    fn stop_merge(&self) {
        if !self.is_owner() {
            return;
        }
        let (origin, id) = (self.snapshot.origin.clone(), self.snapshot.id);
        origin.with(move |state| state.body(id).into_iter().for_each(|body| body.merging.stop()));
        let is_over = move |state: &mut State| state.body(id).is_none_or(|body| !body.merging.is_running());
        origin.domain().drain(|| origin.with(is_over));
    }

    /// Has the merge go on.
    pub(super) fn start_merge(&self) {
        if self.is_owner() {
            let id = self.snapshot.id;
            self.snapshot.origin.with(move |state| state.start_merge(id));
        }
    }

    /// The target's part of a status or table line.
    pub(super) fn status(&self, kind: StatusKind) -> String {
        let it = &self.snapshot;
        match kind {
            StatusKind::Info { .. } if !self.has_a_hold() || !it.valid.load(SeqCst) => "Invalid".into(),
            // One that waits for its exceptions has an empty store, of which not even the chunk is known.
            StatusKind::Info { .. } if !self.is_owner() => format!("0/{} 0", it.cow.sectors()),
            StatusKind::Info { .. } if it.merge_failed.load(SeqCst) => "Merge failed".into(),
            StatusKind::Info { .. } if it.overflowed.load(SeqCst) => "Overflow".into(),
            StatusKind::Info { .. } => {
                let id = it.id;
                let usage = it.origin.with(move |state| state.body(id).map(|body| body.usage().to_string()));
                usage.unwrap_or_else(|| "Unknown".into())
            }
            StatusKind::Table => {
                let (origin, cow) = (it.origin.dev.name(), it.cow.name());
                let mut out = format!("{origin} {cow} {} {}", self.heir.store, it.chunk.sectors());
                let Features { discard_zeroes_cow, discard_passdown_origin } = self.features;
                let count = u8::from(discard_zeroes_cow) + u8::from(discard_passdown_origin);
                if count > 0 {
                    let _ = write!(out, " {count}");
                }
                out += if discard_zeroes_cow { " discard_zeroes_cow" } else { "" };
                out += if discard_passdown_origin { " discard_passdown_origin" } else { "" };
                out
            }
            StatusKind::Measurement => self.measurement(),
        }
    }

    /// Whether the snapshot is this target's, or will be.
    fn has_a_hold(&self) -> bool {
        let id = self.heir.id;
        let active = self.snapshot.origin.with(move |s| s.claims.iter().any(|c| c.target == id && c.active));
        self.is_owner() || (!active && self.snapshot.owner.load(SeqCst) != 0)
    }

    /// What is measured of it (`STATUSTYPE_IMA`, 6.12).
    fn measurement(&self) -> String {
        let it = &self.snapshot;
        let yes = |is: bool| if is { 'y' } else { 'n' };
        format!(
            "snap_origin_name={},snap_cow_name={},snap_valid={},snap_merge_failed={},snapshot_overflowed={}",
            it.origin.dev.name(),
            it.cow.name(),
            yes(self.is_valid()),
            yes(it.merge_failed.load(SeqCst)),
            yes(it.overflowed.load(SeqCst))
        )
    }

    /// Messages of udm's own.
    pub(super) fn message(&self, words: &[&str]) -> Result<String, Error> {
        let it = &self.snapshot;
        match words {
            ["fill_levels", levels @ ..] => {
                let level = |word: &&str| word.parse::<u64>().ok().filter(|n| (1..=100).contains(n));
                let mut levels: Vec<u64> = levels.iter().map(level).collect::<Option<_>>().ok_or_else(|| {
                    let message = format!("fill_levels: expected percentages from 1 to 100, found {:?}", &words[1..]);
                    Error::new(Errno::EINVAL, message)
                })?;
                levels.sort_unstable();
                let id = it.id;
                it.origin
                    .with(move |state| state.body(id).into_iter().for_each(|body| body.set_levels(levels.clone())));
                Ok(String::new())
            }
            ["copy_stats"] => {
                let s = it.origin.copier(COPIES).stats();
                Ok(format!(
                    "jobs={} merged={} reads={} writes={} bytes_read={} bytes_written={} out_of_order={} \
                     page_waits={} pool_peak={} outstanding={}",
                    s.jobs,
                    s.merged,
                    s.reads,
                    s.writes,
                    s.bytes_read,
                    s.bytes_written,
                    s.out_of_order,
                    s.page_waits,
                    s.pool_peak,
                    s.outstanding
                ))
            }
            ["copy_throttle", percent] => {
                let percent = percent.parse().ok().filter(|n| (1..=100).contains(n)).ok_or_else(|| {
                    Error::new(Errno::EINVAL, format!("copy_throttle: expected 1 to 100 percent, found {percent:?}"))
                })?;
                it.origin.copier(COPIES).set_throttle(percent);
                Ok(String::new())
            }
            _ => {
                let message = format!("expected fill_levels, copy_stats or copy_throttle, found {:?}", words.join(" "));
                Err(Error::new(Errno::EINVAL, message))
            }
        }
    }

    /// Narrows the limits: what is read comes from the origin too.
    pub(super) fn limits(&self, limits: &mut Limits) {
        let (write_cache, fua) = (limits.write_cache, limits.fua);
        limits.stack(&self.snapshot.origin.dev.limits(), Sector::ZERO);
        if !self.heir.merge {
            // Flushes are for the COW device only.
            (limits.write_cache, limits.fua) = (write_cache, fua);
        }
        limits.max_write_zeroes = Sectors::ZERO;
        if self.features.discard_zeroes_cow {
            limits.max_discard = self.snapshot.chunk.sectors();
            limits.discard_granularity = u32::try_from(limits.max_discard.bytes()).unwrap_or(1 << 31);
        } else {
            limits.max_discard = Sectors::ZERO;
        }
    }
}

impl Heir {
    /// Devices that may have writes to the origin in flight.
    fn above(&self, state: &State) -> Vec<Arc<MappedDevice>> {
        if self.merge {
            return Vec::new();
        }
        let merging = state.claims.iter().filter(|c| c.merge && c.active).map(|c| &c.md);
        let all = state.origins.iter().map(|(_, md)| md).chain(merging);
        let mut all: Vec<_> = all.filter(|md| !Weak::ptr_eq(&self.md, md)).filter_map(Weak::upgrade).collect();
        all.sort_by_key(|md| md.devt());
        all.dedup_by_key(|md| md.devt());
        all
    }

    fn activate(&self, state: &mut State) {
        let it = &self.snapshot;
        let claims = &mut state.claims;
        let Some(mine) = claims.iter_mut().find(|c| c.target == self.id) else { return };
        let first = !std::mem::replace(&mut mine.active, true);
        let owner = it.owner.load(SeqCst);
        let source_there = claims.iter().any(|c| c.target == owner);
        if first && owner != self.id && source_there {
            it.owner.store(self.id, SeqCst);
        }
        if it.owner.load(SeqCst) == self.id {
            it.sectors.store(self.len.get(), SeqCst);
            it.may_overflow.store(self.store == "PO", SeqCst);
            if it.merging.swap(self.merge, SeqCst)
                && !self.merge
                && let Some(body) = state.body(it.id)
            {
                body.stop_merging();
            }
            it.active.store(true, SeqCst);
            if let Some(body) = state.body(it.id) {
                body.md = self.md.clone();
                body.reach(self.len.from_start());
            }
        }
        state.joined();
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let it = self.snapshot.clone();
        let _hurry = it.origin.copier(COPIES).hurry();
        let (origin, id, target) = (it.origin.clone(), it.id, self.heir.id);
        if !self.is_owner() {
            return origin.with(move |state| state.claims.retain(|c| c.target != target));
        }
        if self.heir.merge {
            self.stop_merge();
        }
        // From here on writes to the origin make no exceptions for it.
        it.active.store(false, SeqCst);
        origin.with(|state| state.left());
        let is_still = move |state: &mut State| state.body(id).is_none_or(|body| !body.is_busy());
        origin.domain().drain(|| origin.with(is_still));
        origin.with(move |state| {
            state.claims.retain(|c| c.target != target);
            // An heir that waits is left with nothing: it is invalid.
            it.owner.store(0, SeqCst);
            state.bodies.retain(|body| body.snapshot.id != id);
        });
    }
}

/// `__validate_exception_handover`, `drivers/md/dm-snap.c`, 6.12.
fn may_take_over(state: &State, snapshot: &Snapshot, merge: bool) -> Result<(), ArgError> {
    let claims: Vec<&Claim> = state.claims.iter().filter(|c| c.snapshot == snapshot.id).collect();
    if claims.len() >= 2 || claims.iter().any(|c| !c.active) {
        let hint = "another table with this COW device is loaded: resume or clear it first";
        return Err(ArgError::new("Snapshot cow pairing for exception table handover failed").hint(hint));
    }
    if merge && state.claims.iter().any(|c| c.merge) {
        return Err(ArgError::new("A snapshot is already merging.").hint("an origin takes one back at a time"));
    }
    if merge && !snapshot.persistent {
        return Err(ArgError::new("Snapshot exception store does not support snapshot-merge."));
    }
    Ok(())
}

/// Has all merges stop. Returns whose were running.
fn stop_merges(state: &mut State) -> Vec<u64> {
    let running = state.bodies.iter_mut().filter(|body| body.merging.is_running());
    running
        .map(|body| {
            body.merging.stop();
            body.snapshot.id
        })
        .collect()
}

fn is_merging(state: &State) -> bool {
    state.bodies.iter().any(|body| body.merging.is_running())
}
