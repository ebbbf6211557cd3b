//! A table: targets side by side that make up a mapped device.

pub(crate) mod depth;
mod line;

pub use line::TableLine;

use crate::capabilities::Capabilities;
use crate::handle::OpenDevice;
use crate::{
    Attributes, Ctr, DeviceOpener, MappedDevice, NewTarget, StatusKind, TableError, Target, TargetDevice, TargetType,
};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use udm_base::{Args, DevT, Errno, Sector, Sectors};
use udm_io::{BlockDevice, DeviceId, Domain, LEVELS, Limits, Memory};

/// Which of a device's two tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableSlot {
    /// The one that bios go through.
    Active,
    /// The one that the next resume makes active.
    Inactive,
}

/// A target in its place.
pub(crate) struct Placed {
    pub(crate) begin: Sector,
    pub(crate) len: Sectors,
    pub(crate) kind: &'static TargetType,
    pub(crate) target: Box<dyn Target>,
    pub(crate) capabilities: Capabilities,
    /// Its own, before they are stacked with its neighbours'.
    pub(crate) limits: Limits,
    /// Where work on its bios is done.
    pub(crate) domain: Domain,
    /// The device is being suspended: no bio is kept to a time.
    draining: AtomicBool,
}

impl Placed {
    pub(crate) fn end(&self) -> Sector {
        self.begin + self.len
    }

    /// What is measured of it, with its name and version, unless it is nothing.
    fn measured(&self, own: String) -> String {
        let (name, [major, minor, patch]) = (self.kind.name, self.kind.version);
        match own.is_empty() {
            true => own,
            false => format!("target_name={name},target_version={major}.{minor}.{patch},{own};"),
        }
    }

    /// What its timers are known by.
    pub(crate) fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub(crate) fn set_draining(&self, on: bool) {
        self.draining.store(on, Ordering::Release);
    }
}

/// The targets of a device, in order and without gaps.
pub struct Table {
    placed: Vec<Placed>,
    len: Sectors,
    limits: Limits,
    read_only: bool,
    /// Every device beneath, once.
    devices: Vec<Arc<dyn BlockDevice>>,
    /// From which of them on bios are mapped to them; those before, targets keep for themselves.
    mapped_from: usize,
    /// Those that core flushes.
    flushed: Vec<Arc<dyn BlockDevice>>,
    /// The mapped ones of them, held open.
    _holds: Vec<OpenDevice>,
}

/// What a table is made with.
pub(crate) struct TableContext<'a> {
    pub(crate) types: &'a [&'static TargetType],
    pub(crate) opener: &'a dyn DeviceOpener,
    pub(crate) domain: &'a Domain,
    pub(crate) read_only: bool,
    /// The device that the table is for, which must not be found beneath itself.
    pub(crate) owner: &'a Arc<MappedDevice>,
    /// How many mapped devices stand on that one already.
    pub(crate) above: usize,
}

impl Table {
    /// Makes every target. May block. The checks and their order are those of `dm_table_add_target` and
    /// `dm_table_complete` (`drivers/md/dm-table.c`, 6.12); sizes beneath are checked here already, which the
    /// kernel does for a reload only at resume.
    pub(crate) fn build(lines: &[TableLine], cx: &TableContext<'_>) -> Result<Self, TableError> {
        if lines.is_empty() {
            return Err(TableError::new(0, "table load rejected: no targets").hint("expected at least one line"));
        }
        let mut placed: Vec<Placed> = Vec::new();
        let mut end = Sector::ZERO;
        for (number, line) in lines.iter().enumerate() {
            let kind = check_line(number, line, end, &placed, cx)?;
            end = line.start.checked_add(line.len).filter(|e| e.checked_bytes().is_some()).ok_or_else(|| {
                let hint = format!("expected an end below 2^55 sectors, found {} + {}", line.start, line.len);
                TableError::new(number, "Target offset + length overflows").hint(hint).span(line.len_span())
            })?;
            let args = Args::parse(&line.params);
            let (begin, len, read_only) = (line.start, line.len, cx.read_only);
            let (domain, owner, opener) = (cx.domain, cx.owner, cx.opener);
            let mut ctr = Ctr { begin, len, args, read_only, domain, owner, opener };
            let made = (kind.ctr)(&mut ctr).map_err(|e| TableError::of_ctr(number, line, e))?;
            let NewTarget { target, capabilities } = made;
            check_devices(number, &capabilities, cx.owner.devt())?;
            let (limits, domain, draining) = (Limits::default(), cx.domain.clone(), AtomicBool::new(false));
            placed.push(Placed { begin, len, kind, target, capabilities, limits, domain, draining });
        }
        Self::complete(placed, end, lines, cx)
    }

    fn complete(
        mut placed: Vec<Placed>,
        end: Sector,
        lines: &[TableLine],
        cx: &TableContext<'_>,
    ) -> Result<Self, TableError> {
        let mut limits = Limits { write_cache: false, ..Limits::default() };
        let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
        for (number, p) in placed.iter_mut().enumerate() {
            let mut own = Limits::default();
            for d in &p.capabilities.devices {
                own.stack(&d.dev.limits(), d.start);
                check_range(number, d)?;
                if !devices.iter().any(|known| known.id() == d.dev.id()) {
                    devices.push(d.dev.clone());
                }
            }
            p.target.limits(&mut own);
            let flushes = p.capabilities.flushes_beneath;
            debug_assert!(!flushes || own.fua || !own.write_cache, "one that flushes by itself does FUA by itself");
            p.limits = own;
            let first = number == 0;
            let (alignment, discard, zeroes) = (limits.alignment_offset, limits.max_discard, limits.max_write_zeroes);
            limits.stack(&own, Sector::ZERO);
            limits.alignment_offset = if first { own.alignment_offset } else { alignment };
            // Discards and zeroes are served target by target: one that cannot does not hinder its neighbours.
            limits.max_discard = if first { own.max_discard } else { discard.max(own.max_discard) };
            limits.max_write_zeroes = if first { own.max_write_zeroes } else { zeroes.max(own.max_write_zeroes) };
        }
        check_blocks(&placed, &limits)?;
        let by_core = placed.iter().filter(|p| !p.capabilities.flushes_beneath).flat_map(|p| &p.capabilities.devices);
        let by_core: Vec<DeviceId> = by_core.map(|d| d.dev.id()).collect();
        let flushed = devices.iter().filter(|d| by_core.contains(&d.id())).cloned().collect();
        // Before the others, as the kernel's targets open them: metadata before data, an origin before its COW device.
        let mut kept: Vec<Arc<dyn BlockDevice>> = Vec::new();
        for dev in placed.iter().flat_map(|p| &p.capabilities.kept) {
            if !kept.iter().chain(&devices).any(|known| known.id() == dev.id()) {
                kept.push(dev.clone());
            }
        }
        let mapped_from = kept.len();
        kept.append(&mut devices);
        let devices = kept;
        check_depth(lines.len() - 1, 1 + depth::levels(&devices), cx.above)?;
        let holds = devices.iter().filter_map(|d| d.as_any().downcast_ref::<MappedDevice>());
        let holds = holds.map(|md| md.open_for_table()).collect::<Result<Vec<_>, _>>();
        let holds = holds.map_err(|e| TableError { errno: e.errno, ..TableError::new(0, e.message) })?;
        Ok(Self {
            placed,
            len: end - Sector::ZERO,
            limits,
            read_only: cx.read_only,
            devices,
            mapped_from,
            flushed,
            _holds: holds,
        })
    }

    /// Checks once more what other tables that were loaded meanwhile may have changed: that no device lies beneath
    /// itself, and how deep the stack is.
    pub(crate) fn check_place(&self, owner: &Arc<MappedDevice>) -> Result<(), TableError> {
        for (number, placed) in self.placed.iter().enumerate() {
            check_devices(number, &placed.capabilities, owner.devt())?;
        }
        check_depth(self.placed.len() - 1, self.level(), depth::height(owner))
    }

    /// How many mapped devices lie on the longest way down, the table's own included. Devices beneath may be reloaded,
    /// so it is asked anew each time.
    pub(crate) fn level(&self) -> usize {
        1 + depth::levels(&self.devices)
    }

    /// The size of a device with this table.
    pub fn sectors(&self) -> Sectors {
        self.len
    }

    /// The stacked limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether it was loaded read-only.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Every device beneath, once each: those that targets keep for themselves, then the others in the order of their
    /// first use.
    pub fn devices(&self) -> &[Arc<dyn BlockDevice>] {
        &self.devices
    }

    /// Those of the devices that bios are mapped to.
    pub(crate) fn mapped_to(&self) -> &[Arc<dyn BlockDevice>] {
        &self.devices[self.mapped_from..]
    }

    /// Whether every target's bios can be polled for.
    pub(crate) fn can_poll(&self) -> bool {
        self.placed.iter().all(|p| p.capabilities.can_poll())
    }

    /// Those of the devices that core sends flushes to.
    pub(crate) fn flushed(&self) -> &[Arc<dyn BlockDevice>] {
        &self.flushed
    }

    /// The targets, in order.
    pub fn targets(&self) -> impl Iterator<Item = &dyn Target> {
        self.placed.iter().map(|p| &*p.target)
    }

    /// What people see and set of the targets, of those that have something.
    pub fn attributes(&self) -> impl Iterator<Item = &dyn Attributes> {
        self.targets().filter_map(|target| target.attributes())
    }

    /// The first target of a type.
    pub fn find_target<T: Target>(&self) -> Option<&T> {
        self.targets().find_map(|target| (target as &dyn Any).downcast_ref())
    }

    pub(crate) fn placed(&self) -> &[Placed] {
        &self.placed
    }

    /// The target that a sector lies in. The sector lies within the table.
    pub(crate) fn find(&self, sector: Sector) -> &Placed {
        match &self.placed[..] {
            [one] => one,
            many => &many[many.partition_point(|p| p.end() <= sector)],
        }
    }

    /// The memory that targets and devices beneath keep their data in: the targets' in their order, then the devices'.
    pub fn memories(&self) -> impl Iterator<Item = &Memory> {
        self.target_memories().chain(self.devices.iter().filter_map(|dev| dev.memory()))
    }

    /// The memory that targets are, in their order.
    pub fn target_memories(&self) -> impl Iterator<Item = &Memory> {
        self.placed.iter().filter_map(|p| p.capabilities.memory())
    }

    /// Whether data beneath, or the way to it, is in this process's memory only. Of mapped devices beneath only their
    /// own tables know.
    pub fn is_transient(&self) -> bool {
        self.memories().next().is_some() || self.placed.iter().any(|p| p.capabilities.transient)
    }

    /// How many targets there are.
    pub fn target_count(&self) -> usize {
        self.placed.len()
    }

    /// The lines of a status, of a table, or of what `dmsetup measure` prints.
    pub fn lines(&self, kind: StatusKind) -> Vec<TableLine> {
        let line = |p: &Placed| {
            let own = p.target.status(kind);
            let params = if kind == StatusKind::Measurement { p.measured(own) } else { own };
            TableLine { start: p.begin, len: p.len, target: p.kind.name.to_owned(), params }
        };
        self.placed.iter().map(line).collect()
    }

    /// The target types in use, with the version of each, in order.
    pub fn types(&self) -> impl Iterator<Item = &'static TargetType> {
        self.placed.iter().map(|p| p.kind)
    }

    pub(crate) fn is_immutable(&self) -> Option<&'static TargetType> {
        self.types().find(|t| t.immutable)
    }

    pub(crate) fn each(&self, mut f: impl FnMut(&dyn Target)) {
        self.placed.iter().for_each(|p| f(&*p.target));
    }
}

/// The rules that a line has to keep before its constructor is called.
fn check_line(
    number: usize,
    line: &TableLine,
    end: Sector,
    placed: &[Placed],
    cx: &TableContext<'_>,
) -> Result<&'static TargetType, TableError> {
    // One that is not the first is refused below.
    if let Some(single) = placed.first().filter(|p| p.kind.singleton) {
        let hint = format!("{} must be the only target of its table", single.kind.name);
        return Err(TableError::new(number, "singleton target must appear alone in table").hint(hint));
    }
    if line.len.is_zero() {
        return Err(TableError::new(number, "zero-length target")
            .hint("expected a length of at least 1 sector")
            .span(line.len_span()));
    }
    let kind = cx.types.iter().find(|t| t.name == line.target).ok_or_else(|| unknown_type(number, line, cx.types))?;
    if kind.singleton && number > 0 {
        let hint = format!("{} must be the only target of its table", kind.name);
        return Err(TableError::new(number, "singleton target must appear alone in table")
            .hint(hint)
            .span(line.target_span()));
    }
    if kind.always_writeable && cx.read_only {
        return Err(
            TableError::new(number, "target type may not be used with read-only tables").span(line.target_span())
        );
    }
    if line.start != end {
        let hint = match number {
            0 => format!("expected a start of 0, where the device begins; found {}", line.start),
            _ => {
                let what = if line.start > end { "a gap lies between the two" } else { "the two overlap" };
                format!("expected a start of {end}, where the line before ends; found {}: {what}", line.start)
            }
        };
        return Err(TableError::new(number, "Gap in table").hint(hint).span(0..line.start.to_string().len()));
    }
    Ok(kind)
}

fn unknown_type(number: usize, line: &TableLine, types: &[&'static TargetType]) -> TableError {
    let mut near: Vec<_> =
        types.iter().map(|t| (distance(&line.target, t.name), t.name)).filter(|(d, _)| *d <= SLIP).collect();
    near.sort_unstable();
    let names: Vec<_> =
        if near.is_empty() { types.iter().map(|t| t.name).collect() } else { near.iter().map(|n| n.1).collect() };
    let hint = match near.is_empty() {
        true => format!("found {:?}; known are {}", line.target, names.join(", ")),
        false => format!("found {:?}; did you mean {}?", line.target, names.join(" or ")),
    };
    TableError::new(number, "unknown target type").hint(hint).span(line.target_span())
}

/// Words that differ by more letters than this were not meant to be the same.
const SLIP: usize = 2;

/// The edit distance of two short words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(64).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// No device may lie beneath itself.
fn check_devices(number: usize, beneath: &Capabilities, owner: DevT) -> Result<(), TableError> {
    for dev in beneath.devices.iter().map(|d| &d.dev).chain(&beneath.kept) {
        if depth::reaches(&**dev, owner) {
            let name = match dev.as_any().downcast_ref::<MappedDevice>() {
                Some(md) => format!("{} ({})", md.device_name(), md.devt()),
                None => dev.name(),
            };
            let hint = if dev.id() == DeviceId::Number(owner) {
                format!("{name} is the device that the table is for")
            } else {
                format!("{name} leads back to {owner}, the device that the table is for")
            };
            return Err(TableError { errno: Errno::ELOOP, ..TableError::new(number, "Loop in the stack").hint(hint) });
        }
    }
    Ok(())
}

/// Bios have reserves for so many levels.
fn check_depth(number: usize, level: usize, above: usize) -> Result<(), TableError> {
    if level + above < LEVELS {
        return Ok(());
    }
    let most = LEVELS - 1;
    let hint = format!("expected at most {most} mapped devices above each other, found {level} and {above} above");
    Err(TableError { errno: Errno::ELOOP, ..TableError::new(number, "Stack too deep").hint(hint) })
}

/// `device_area_is_invalid` (`drivers/md/dm-table.c`, 6.12).
fn check_range(number: usize, d: &TargetDevice) -> Result<(), TableError> {
    let size = d.dev.sectors();
    let fits = d.start.checked_add(d.len).is_some_and(|end| end <= size.from_start());
    if !fits {
        let hint = format!("expected {} sectors from {}, found a device of {size} sectors", d.len, d.start);
        return Err(TableError::new(number, format!("{} too small for target", d.dev.name())).hint(hint));
    }
    let block = u64::from(d.dev.limits().logical_block_size) / 512;
    for (what, n) in [("start", d.start.get()), ("length", d.len.get())] {
        if block > 1 && n % block != 0 {
            let hint = format!("expected a multiple of {block} sectors, {}'s logical block, found {n}", d.dev.name());
            return Err(TableError::new(number, format!("{what} not aligned to h/w logical block size")).hint(hint));
        }
    }
    Ok(())
}

/// Borders between targets must lie on the blocks of the stacked limits (`validate_hardware_logical_block_alignment`).
fn check_blocks(placed: &[Placed], limits: &Limits) -> Result<(), TableError> {
    let block = u64::from(limits.logical_block_size) / 512;
    for (number, p) in placed.iter().enumerate() {
        if block > 1 && (p.begin.get() % block != 0 || p.len.get() % block != 0) {
            let hint = format!("expected multiples of {block} sectors, the logical block of a device beneath");
            return Err(TableError::new(number, "not aligned to h/w logical block size").hint(hint));
        }
    }
    Ok(())
}
