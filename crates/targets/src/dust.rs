//! # Purpose
//! A disk with bad blocks, which are named while it runs: reads of them fail, and a write makes them good again.
//! # Table
//! `<start> <length> dust <device> <start sector> <block size in bytes>`
//! # Status
//! `<device> <fail_read_on_bad_block or bypass> <quiet or verbose>`
//! # Messages
//! `addbadblock <block> [<writes that fail>]`, `removebadblock <block>`, `queryblock <block>`, `countbadblocks`,
//! `listbadblocks`, `clearbadblocks`, `enable`, `disable`, `quiet`.
//! # Differences from the kernel
//! A flush is no write: the kernel takes it for one of the block that the target begins in (`drivers/md/dm-dust.c`,
//! 6.12). Lists are not cut off where the caller's buffer ends.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use udm_base::{ArgError, Errno, Sector, Sectors};
use udm_core::{Ctr, Error, Map, NewTarget, StatusKind, Target, TargetDevice, TargetType};
use udm_io::{Bio, Cx, ExtentsReply, Limits, Status};

pub(crate) static TYPE: TargetType = TargetType::new("dust", [1, 0, 0], ctr);

/// Bytes of a block at most (`DUST_MAX_BLKSZ_SECTORS`).
const BLOCK_MAX: u64 = 1 << 30;

struct Dust {
    to: TargetDevice,
    /// Bytes of a block, a power of two.
    block: u64,
    /// Reads of bad blocks fail.
    enabled: AtomicBool,
    quiet: AtomicBool,
    /// There may be bad blocks, and they count: else a bio need not look for them.
    dusty: AtomicBool,
    /// Blocks of the device beneath, each with how many writes of it still fail.
    bad: Mutex<BTreeMap<u64, u8>>,
}

fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    const SIZE: &str = "Invalid block size parameter";
    const NO_DEVICE: &str = "Device lookup failed";
    ctr.args.expect_count(3..=3, "Invalid argument count", "<device> <start sector> <block size>")?;
    let name = ctr.args.need(NO_DEVICE, "a device")?;
    let start = ctr.args.number("Invalid device offset sector", "a start sector");
    let (block, arg) = ctr.args.number_within(1..=u64::from(u32::MAX), SIZE, "a block size in bytes")?;
    let longest = BLOCK_MAX.min(ctr.len.checked_bytes().unwrap_or(u64::MAX));
    let refused = match block {
        ..512 => Some("Block size must be at least 512"),
        _ if !block.is_power_of_two() => Some("Block size must be a power of 2"),
        _ if block > longest => Some("Block size is too large"),
        _ => None,
    };
    if let Some(message) = refused {
        let hint = format!("expected a power of two from 512 to {longest} bytes, found {block}");
        return Err(ArgError::new(message).hint(hint).at(&arg));
    }
    let start = Sector::new(start?.0);
    let to = TargetDevice { dev: ctr.device(&name, NO_DEVICE)?, start, len: ctr.len };
    let off = || AtomicBool::new(false);
    let dust = Dust { to: to.clone(), block, enabled: off(), quiet: off(), dusty: off(), bad: Mutex::default() };
    Ok(NewTarget::new(dust).maps_to([to]).in_place().split_at(Sectors::in_bytes(block)).whole_discards())
}

impl Target for Dust {
    #[inline]
    fn map(&self, _: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
        bio.set_sector(self.to.start + at);
        if self.dusty.load(Ordering::Relaxed) && self.fails(&bio) {
            return Map::Ended(bio, Status::Io);
        }
        Map::Remapped(bio, &*self.to.dev)
    }

    fn status(&self, kind: StatusKind) -> String {
        let name = self.to.dev.name();
        match kind {
            StatusKind::Info { .. } => {
                let fails = if self.enabled.load(Ordering::Relaxed) { "fail_read_on_bad_block" } else { "bypass" };
                let tells = if self.is_quiet() { "quiet" } else { "verbose" };
                format!("{name} {fails} {tells}")
            }
            StatusKind::Table => format!("{name} {} {}", self.to.start, self.block),
            StatusKind::Measurement => String::new(),
        }
    }

    fn limits(&self, limits: &mut Limits) {
        limits.max_write_zeroes = Sectors::ZERO;
    }

    fn extents(&self, cx: &Cx<'_>, at: Sectors, sectors: Sectors, reply: ExtentsReply) {
        self.to.dev.extents(cx, self.to.start + at, sectors, reply);
    }

    fn message(&self, words: &[&str]) -> Result<String, Error> {
        let word = words.first().map_or(String::new(), |word| word.to_ascii_lowercase());
        match (word.as_str(), &words[words.len().min(1)..]) {
            ("addbadblock" | "removebadblock" | "queryblock", []) => {
                Err(refused(format!("{} requires an additional argument", words[0])))
            }
            ("enable", []) => Ok(self.enable(true)),
            ("disable", []) => Ok(self.enable(false)),
            ("quiet", []) => {
                self.quiet.fetch_not(Ordering::Relaxed);
                Ok(String::new())
            }
            ("countbadblocks", []) => Ok(format!("countbadblocks: {} badblock(s) found", self.bad().len())),
            ("listbadblocks", []) => Ok(self.list()),
            ("clearbadblocks", []) => Ok(self.clear()),
            ("addbadblock", [block]) => self.add(self.block_of(block)?, 0),
            ("removebadblock", [block]) => self.remove(self.block_of(block)?),
            ("queryblock", [block]) => self.query(self.block_of(block)?),
            ("addbadblock", [block, count]) => {
                let count = count.parse().map_err(|_| {
                    refused(format!("selected write fail count out of range: expected 0 to 255, found {count:?}"))
                })?;
                self.add(self.block_of(block)?, count)
            }
            (_, [] | [_] | [_, _]) => Err(refused(format!("unrecognized message '{word}' received"))),
            _ => Err(refused(format!("invalid number of arguments '{}'", words.len()))),
        }
    }
}

fn refused(what: String) -> Error {
    Error::new(Errno::EINVAL, what)
}

impl Dust {
    fn bad(&self) -> MutexGuard<'_, BTreeMap<u64, u8>> {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    /// To be called with the list locked, after a change of it or of `enabled`.
    fn note(&self, bad: &BTreeMap<u64, u8>) {
        self.dusty.store(self.enabled.load(Ordering::Relaxed) && !bad.is_empty(), Ordering::Relaxed);
    }

    /// Whether a bio, which has its place beneath already, fails. A write that does not makes its block good. Of a
    /// discard the first block counts, as in the kernel, which does not split it either.
    #[cold]
    fn fails(&self, bio: &Bio) -> bool {
        let block = bio.sector().bytes() / self.block;
        let mut bad = self.bad();
        if !self.enabled.load(Ordering::Relaxed) {
            return false;
        }
        let Entry::Occupied(mut found) = bad.entry(block) else { return false };
        if !bio.op().is_write() {
            return true;
        }
        if let Some(left) = found.get().checked_sub(1) {
            found.insert(left);
            return true;
        }
        found.remove();
        self.note(&bad);
        if !self.is_quiet() {
            tracing::info!("dust: block {block} removed from badblocklist by write");
        }
        false
    }

    fn enable(&self, on: bool) -> String {
        let bad = self.bad();
        self.enabled.store(on, Ordering::Relaxed);
        self.note(&bad);
        String::new()
    }

    /// The number of a block of the device beneath; as in the kernel the first one past its end too.
    fn block_of(&self, word: &str) -> Result<u64, Error> {
        let blocks = self.to.dev.sectors().bytes() / self.block;
        let block = word.parse().ok().filter(|block| *block <= blocks);
        block.ok_or_else(|| {
            refused(format!("selected block value out of range: expected a block from 0 to {blocks}, found {word:?}"))
        })
    }

    fn add(&self, block: u64, count: u8) -> Result<String, Error> {
        let mut bad = self.bad();
        match bad.entry(block) {
            Entry::Occupied(_) => Err(refused(format!("dust_add_block: block {block} already in badblocklist"))),
            Entry::Vacant(place) => {
                place.insert(count);
                self.note(&bad);
                if !self.is_quiet() {
                    tracing::info!("dust: badblock added at block {block} with write fail count {count}");
                }
                Ok(String::new())
            }
        }
    }

    fn remove(&self, block: u64) -> Result<String, Error> {
        let mut bad = self.bad();
        if bad.remove(&block).is_none() {
            return Err(refused(format!("dust_remove_block: block {block} not found in badblocklist")));
        }
        self.note(&bad);
        if !self.is_quiet() {
            tracing::info!("dust: badblock removed at block {block}");
        }
        Ok(String::new())
    }

    fn query(&self, block: u64) -> Result<String, Error> {
        let not = if self.bad().contains_key(&block) { "" } else { "not " };
        Ok(format!("dust_query_block: block {block} {not}found in badblocklist"))
    }

    fn list(&self) -> String {
        let bad = self.bad();
        if bad.is_empty() {
            return "No blocks in badblocklist".into();
        }
        let mut out = String::new();
        for block in bad.keys() {
            let _ = writeln!(out, "{block}");
        }
        out
    }

    fn clear(&self) -> String {
        let mut bad = self.bad();
        let had = !std::mem::take(&mut *bad).is_empty();
        self.note(&bad);
        if had { "dust_clear_badblocks: badblocks cleared" } else { "dust_clear_badblocks: no badblocks found" }.into()
    }
}
