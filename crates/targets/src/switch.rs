//! # Purpose
//! Sends each region of the device to one of several paths, as a table in memory says that a message changes: for
//! storage whose ports each serve other parts best.
//! # Table
//! `<start> <length> switch <paths> <region sectors> 0 [<device> <start sector>]+`
//! # Status
//! Empty.
//! # Messages
//! `set_region_mappings [<region>]:<path>… R<cycle>,<count>…`, all numbers in hexadecimal.
//! # Differences from the kernel
//! The table takes 16 MiB at most (`drivers/md/dm-switch.c`, 6.12: as much as there is). A message with an error
//! changes nothing; in the kernel what stands before the error stays done. Flushes reach all paths; in the kernel none,
//! since the target asks for none.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use udm_base::{ArgError, Divisor, Errno, Sector, Sectors};
use udm_core::{Ctr, Error, Map, NewTarget, StatusKind, Target, TargetDevice, TargetType};
use udm_io::{Bio, Cx, Limits};

pub(crate) static TYPE: TargetType = TargetType::new("switch", [1, 1, 0], ctr);

/// What fits in the kernel's largest piece of memory: 4 MiB, less what the target has beside its paths.
const PATHS_MAX: u64 = ((4 << 20) - 40) / 16;
/// Words of the table of regions at most.
const WORDS_MAX: u64 = 1 << 21;

struct Switch {
    paths: Vec<TargetDevice>,
    region: Divisor,
    table: Regions,
    /// Messages come one after the other.
    changing: Mutex<()>,
}

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    let (count, count_arg) = ctr.args.number_within(1..=PATHS_MAX, "Invalid number of paths", "a number of paths")?;
    let (region, region_arg) =
        ctr.args.number_within(1..=u64::from(u32::MAX), "Invalid region size", "a region size in sectors")?;
    const OPTIONAL: &str = "Invalid number of optional args";
    ctr.args.number_within(0..=0, OPTIONAL, "a number of optional arguments, of which there are none,")?;
    if ctr.args.left() as u64 != count * 2 {
        let hint = format!("expected {count} times <device> <start sector>, found {} arguments", ctr.args.left());
        return Err(ArgError::new("Incorrect number of path arguments").hint(hint).at(&count_arg));
    }
    let paths = (0..count).map(|_| path(ctr)).collect::<Result<Vec<_>, _>>()?;
    let regions = ctr.len.get().div_ceil(region);
    let most = WORDS_MAX * Regions::in_word(count);
    if regions > most {
        let hint = format!("expected at most {most} regions, found {regions} of {region} sectors");
        return Err(ArgError::new("Region table too large").hint(hint).at(&region_arg));
    }
    let table = Regions::in_turn(regions, count);
    let target = Switch { paths: paths.clone(), region: Divisor::new(region), table, changing: Mutex::new(()) };
    Ok(NewTarget::new(target).maps_to(paths).in_place().split_at(Sectors::new(region)).whole_discards())
}

impl Target for Switch {
    /// A discard takes the path of the region that it begins in: all lead to the same storage.
    fn map(&self, _: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        let path = &self.paths[self.table.get(self.region.split(at.get()).0) as usize];
        bio.set_sector(path.start + at);
        Map::Remapped(bio, &*path.dev)
    }

    fn status(&self, kind: StatusKind) -> String {
        let mut out = String::new();
        if kind == StatusKind::Table {
            let _ = write!(out, "{} {} 0", self.paths.len(), self.region.get());
            for path in &self.paths {
                let _ = write!(out, " {} {}", path.dev.name(), path.start);
            }
        }
        out
    }

    fn limits(&self, limits: &mut Limits) {
        limits.max_write_zeroes = Sectors::ZERO;
    }

    fn message(&self, words: &[&str]) -> Result<String, Error> {
        match words.split_first() {
            Some((word, words)) if word.eq_ignore_ascii_case("set_region_mappings") => {
                let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
                let changes = self.changes(words)?;
                changes.into_iter().for_each(|change| self.table.change(change));
                Ok(String::new())
            }
            _ => Err(refused("Unrecognised message received.".into())),
        }
    }
}

fn path(ctr: &mut Ctr<'_>) -> Result<TargetDevice, ArgError> {
    const NO_DEVICE: &str = "Device lookup failed";
    let name = ctr.args.need(NO_DEVICE, "a device")?;
    let dev = ctr.device(&name, NO_DEVICE)?;
    let (start, _) = ctr.args.number("Invalid device starting offset", "a start sector")?;
    Ok(TargetDevice { dev, start: Sector::new(start), len: ctr.len })
}

fn refused(what: String) -> Error {
    Error::new(Errno::EINVAL, what)
}

/// What one word of a message changes.
enum Change {
    /// A region gets a path.
    Set { region: u64, path: u64 },
    /// So many regions from one on get what lies so many regions before each of them.
    Repeat { from: u64, cycle: u64, count: u64 },
}

impl Switch {
    /// What the words of a message change, all of them checked (`process_set_region_mappings`).
    fn changes(&self, words: &[&str]) -> Result<Vec<Change>, Error> {
        let mut at: u64 = 0;
        let one = |word: &&str| self.word(word, &mut at);
        words.iter().map(one).collect()
    }

    /// One word; `at` is the region that was changed last.
    fn word(&self, word: &str, at: &mut u64) -> Result<Change, Error> {
        let regions = self.table.regions;
        let bad = || refused(format!("invalid set_region_mappings argument: '{word}'"));
        if let Some(repeat) = word.strip_prefix(['R', 'r']) {
            let (cycle, count) = repeat.split_once(',').ok_or_else(bad)?;
            let (cycle, count) = (hex(cycle).ok_or_else(bad)?, hex(count).ok_or_else(bad)?);
            if cycle == 0 || cycle - 1 > *at {
                let lag = cycle.wrapping_sub(1);
                return Err(refused(format!("invalid set_region_mappings cycle length: {lag} > {at}")));
            }
            let last = at.checked_add(count).filter(|last| *last < regions).ok_or_else(|| {
                refused(format!("invalid set_region_mappings region number: {at} + {count} >= {regions}"))
            })?;
            let from = std::mem::replace(at, last) + 1;
            return Ok(Change::Repeat { from, cycle, count });
        }
        let (region, path) = word.split_once(':').ok_or_else(bad)?;
        let region = if region.is_empty() { at.saturating_add(1) } else { hex(region).ok_or_else(bad)? };
        let path = hex(path).ok_or_else(bad)?;
        if region >= regions {
            return Err(refused(format!("invalid set_region_mappings region number: {region} >= {regions}")));
        }
        if path >= self.paths.len() as u64 {
            return Err(refused(format!("invalid set_region_mappings device: {path} >= {}", self.paths.len())));
        }
        *at = region;
        Ok(Change::Set { region, path })
    }
}

fn hex(text: &str) -> Option<u64> {
    let is_hex = !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| is_hex)
}

/// The path of each region, in as few bits as that takes. Read by anybody, written by one at a time.
struct Regions {
    regions: u64,
    bits: u32,
    in_word: Divisor,
    words: Box<[AtomicU64]>,
}

impl Regions {
    /// How many bits tell so many paths apart.
    const fn bits(paths: u64) -> u32 {
        let bits = u64::BITS - (paths - 1).leading_zeros();
        if bits == 0 { 1 } else { bits }
    }

    /// How many regions a word tells of.
    const fn in_word(paths: u64) -> u64 {
        (u64::BITS / Self::bits(paths)) as u64
    }

    /// One region for each path in turn, and again.
    fn in_turn(regions: u64, paths: u64) -> Self {
        let (bits, in_word) = (Self::bits(paths), Self::in_word(paths));
        let words = (0..regions.div_ceil(in_word)).map(|_| AtomicU64::new(0)).collect();
        let table = Self { regions, bits, in_word: Divisor::new(in_word), words };
        let mut path = 0;
        for region in 0..regions {
            table.set(region, path);
            path = if path + 1 == paths { 0 } else { path + 1 };
        }
        table
    }

    #[inline]
    fn place(&self, region: u64) -> (&AtomicU64, u32, u64) {
        let (word, into) = self.in_word.split(region);
        (&self.words[word as usize], into as u32 * self.bits, u64::MAX >> (u64::BITS - self.bits))
    }

    #[inline]
    fn get(&self, region: u64) -> u64 {
        let (word, shift, mask) = self.place(region);
        word.load(Ordering::Relaxed) >> shift & mask
    }

    fn set(&self, region: u64, path: u64) {
        let (word, shift, mask) = self.place(region);
        let others = word.load(Ordering::Relaxed) & !(mask << shift);
        word.store(others | path << shift, Ordering::Relaxed);
    }

    fn change(&self, change: Change) {
        match change {
            Change::Set { region, path } => self.set(region, path),
            Change::Repeat { from, cycle, count } => {
                (from..from + count).for_each(|region| self.set(region, self.get(region - cycle)));
            }
        }
    }
}
