//! `udm snapshot`: what is on a COW device, and how it goes back to the origin ([`merge`]).
//!
//! To look into it the device is opened for reading only, and never written. One that is in use is read all the same,
//! and said to be.

mod merge;

use crate::places::Places;
use clap::{Args, Subcommand};
use serde_json::json;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_files::OpenErrorKind;
use udm_formats::snapshot::{
    Changes, Error, Exception, Geometry, HEADER_BYTES, Header, Picture, Piece, Probe, Reader, Run, Store, VERSION,
    runs, size,
};
use udm_io::{BlockingIo, Domain, Status};
use udm_nbd::uri::{Endpoint, Uri};
use udm_stack::OpenOptions;

/// How often a device that changes under the reader is begun again.
const TRIES: usize = 5;
/// How much is compared at once.
const COMPARE: u64 = 1 << 20;

#[derive(Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Subcommand)]
enum SnapshotCommand {
    /// How large, how full, how much has changed, and whether it is valid
    Info {
        #[command(flatten)]
        cow: CowArgs,
    },
    /// Every exception: where on the origin, and where on the COW device, in sectors
    Ls {
        #[command(flatten)]
        cow: CowArgs,
    },
    /// What changed since the snapshot was made, as ranges of the origin's sectors
    Diff {
        #[command(flatten)]
        cow: CowArgs,
        /// Compare with this device, sector by sector; without it, a chunk that was written counts as changed
        #[arg(long, value_name = "DEVICE")]
        origin: Option<String>,
        /// Draw it, too: where on the origin, and in what order
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Take a snapshot back: what it shows becomes what the origin holds, while both are in use
    Merge(merge::MergeArgs),
}

#[derive(Args)]
struct CowArgs {
    /// The COW device: a file, a block device, a URI, or a device of the daemon
    #[arg(value_name = "COW")]
    name: String,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// Runs the command. Returns the exit code.
pub(crate) fn run(args: &SnapshotArgs, places: &Result<Places, String>) -> Result<u8, String> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    // Without a directory there is no daemon, and its devices are the only ones that are out of reach.
    let finder = Finder { domain: Domain::default(), socket: places.as_ref().ok().map(Places::nbd) };
    let done = match &args.command {
        SnapshotCommand::Info { cow } => {
            let read = finder.cow(&cow.name)?;
            info(&read, cow, &mut out)
        }
        SnapshotCommand::Ls { cow } => {
            let read = finder.cow(&cow.name)?;
            list(&read, read.valid()?, cow, &mut out)
        }
        SnapshotCommand::Diff { cow, origin, svg } => {
            let read = finder.cow(&cow.name)?;
            let origin = origin.as_deref().map(|name| finder.open(name)).transpose()?;
            diff(&read, origin.as_ref(), svg.as_deref(), cow, &mut out)?
        }
        SnapshotCommand::Merge(args) => return merge::run(args, places.as_ref().map_err(Clone::clone)?),
    };
    match done.and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(format!("writing the result: {e}")),
        _ => Ok(0),
    }
}

struct Finder {
    domain: Domain,
    /// Where the daemon's devices are found by name; it need not exist.
    socket: Option<PathBuf>,
}

/// A device that is open for reading.
struct Device {
    name: String,
    io: BlockingIo,
    block: u32,
    /// Who writes to it meanwhile.
    in_use: Option<String>,
}

/// A COW device that was read.
struct Cow {
    device: Device,
    header: Header,
    geometry: Geometry,
    /// What the areas hold. `None` for a snapshot that is invalid: the kernel does not look at them either.
    content: Option<Content>,
}

struct Content {
    exceptions: Vec<Exception>,
    store: Store,
}

impl Finder {
    fn open(&self, name: &str) -> Result<Device, String> {
        let spec = self.daemons_device(name).unwrap_or_else(|| name.to_owned());
        let cwd = std::env::current_dir().unwrap_or_default();
        let mut options = OpenOptions { read_only: true, exclusive: true, cwd, ..OpenOptions::new(&self.domain) };
        let (opened, in_use) = match udm_stack::open_beneath(&spec, &options) {
            // Readers among themselves do not mind each other, so it is a writer.
            Err(e) if e.kind() == OpenErrorKind::Busy => {
                options.exclusive = false;
                (udm_stack::open_beneath(&spec, &options), Some(e.to_string()))
            }
            opened => (opened, None),
        };
        let device = opened.map_err(|e| e.to_string())?;
        let block = device.limits().logical_block_size;
        let io = BlockingIo::new(&self.domain, Arc::clone(&device)).map_err(|e| format!("{name}: {e}"))?;
        if let Some(holder) = &in_use {
            eprintln!("udm: {holder}: it may change while it is read, and what is shown may be of different moments");
        }
        Ok(Device { name: name.to_owned(), io, block, in_use })
    }

    /// The URI of a device of the daemon, when that is what `name` means and there is no file of that name.
    fn daemons_device(&self, name: &str) -> Option<String> {
        let socket = self.socket.as_ref().filter(|socket| socket.exists())?;
        let plain = name.strip_prefix("/dev/mapper/").unwrap_or(name);
        if plain.contains(['/', ':']) || Path::new(name).exists() {
            return None;
        }
        Some(Uri { endpoint: Endpoint::Unix(socket.clone()), export: plain.to_owned() }.to_string())
    }

    fn cow(&self, name: &str) -> Result<Cow, String> {
        let device = self.open(name)?;
        for _ in 1..TRIES {
            match load(&device) {
                // Who writes may have been between two writes.
                Err(_) if device.in_use.is_some() => {}
                loaded => return loaded.map(|(header, geometry, content)| Cow { device, header, geometry, content }),
            }
        }
        load(&device).map(|(header, geometry, content)| Cow { device, header, geometry, content })
    }
}

fn load(device: &Device) -> Result<(Header, Geometry, Option<Content>), String> {
    let wrong = |e: Error| format!("{}: {e}", device.name);
    let sectors = device.io.sectors();
    let start =
        device.read(Piece { sector: Sector::ZERO, sectors: sectors.min(Sectors::covering(HEADER_BYTES as u64)) })?;
    let header = match Header::probe(&start).map_err(wrong)? {
        Probe::Store(header) => header,
        Probe::Empty => {
            return Err(format!(
                "{}: chunk 0, magic: found zero: there is no snapshot here, or a transient one, which leaves nothing",
                device.name
            ));
        }
    };
    let geometry = Geometry::new(header.chunk, sectors, device.block).map_err(wrong)?;
    if !header.valid {
        return Ok((header, geometry, None));
    }
    let mut reader = Reader::new(geometry);
    while let Some(piece) = reader.want() {
        reader.feed(&device.read(piece)?).map_err(wrong)?;
    }
    let loaded = reader.finish().map_err(wrong)?;
    Ok((header, geometry, Some(Content { exceptions: loaded.exceptions, store: loaded.store })))
}

impl Device {
    /// Reads sectors, however the device wants them aligned.
    fn read(&self, piece: Piece) -> Result<Vec<u8>, String> {
        let block = u64::from(self.block.max(4096)) / udm_base::SECTOR_SIZE as u64;
        let from = piece.sector.get() / block * block;
        let end = (piece.sector + piece.sectors).get();
        let to = end.next_multiple_of(block).min(self.io.sectors().get()).max(end);
        let mut buf = AlignedBuf::zeroed(Sectors::new(to - from).as_len());
        self.io.read(Sector::new(from), &mut buf).map_err(|status| self.failed(piece.sector, status))?;
        let skip = Sectors::new(piece.sector.get() - from).as_len();
        Ok(buf[skip..skip + piece.sectors.as_len()].to_vec())
    }

    fn failed(&self, sector: Sector, status: Status) -> String {
        format!("{}: reading at sector {sector} failed: {status:?}", self.name)
    }
}

impl Cow {
    fn valid(&self) -> Result<&Content, String> {
        self.content.as_ref().ok_or_else(|| {
            format!(
                "{}: the snapshot is invalid: its COW device was full or failed once, and what it holds is not what the \
                 origin was; make a new one",
                self.device.name
            )
        })
    }
}

fn info(cow: &Cow, args: &CowArgs, out: &mut impl Write) -> io::Result<()> {
    let (chunk, total) = (cow.geometry.chunk(), cow.geometry.device());
    let content = cow.content.as_ref();
    let usage = content.map(|c| c.store.usage());
    let count = content.map(|c| c.exceptions.len() as u64);
    let changes = content.map(|c| Changes::of_exceptions(&c.exceptions, chunk, None));
    if args.json {
        let value = json!({
            "cow": args.name,
            "valid": cow.header.valid,
            "version": VERSION,
            "chunk_size": chunk.sectors().get(),
            "total": total.get(),
            "allocated": usage.map(|u| u.allocated.get()),
            "metadata": usage.map(|u| u.metadata.get()),
            "exceptions": count,
            "changed": changes.as_ref().map(|c| c.total().get()),
            "ranges": changes.as_ref().map(|c| c.ranges().len()),
            "changed_end": changes.as_ref().map(|c| c.end().get()),
            "in_use": cow.device.in_use,
        });
        return writeln!(out, "{value}");
    }
    let sectors = |n: Sectors| format!("{n} sectors ({})", size(n));
    let mut line = |key: &str, value: String| writeln!(out, "{key:<14}{value}");
    line("COW device:", args.name.clone())?;
    line("State:", if cow.header.valid { "valid" } else { "Invalid" }.into())?;
    line("Version:", VERSION.to_string())?;
    line("Chunk size:", sectors(chunk.sectors()))?;
    line("Size:", sectors(total))?;
    if let (Some(usage), Some(count), Some(changes)) = (usage, count, changes) {
        let percent = usage.allocated.get() as f64 * 100.0 / total.get() as f64;
        line("Allocated:", format!("{}, {percent:.1} %", sectors(usage.allocated)))?;
        line("Metadata:", sectors(usage.metadata))?;
        line("Exceptions:", format!("{count} of chunks, in {} ranges", changes.ranges().len()))?;
        line("Changed:", sectors(changes.total()))?;
        line("Status:", usage.to_string())?;
    }
    Ok(())
}

fn list(cow: &Cow, content: &Content, args: &CowArgs, out: &mut impl Write) -> io::Result<()> {
    let chunk = cow.geometry.chunk();
    let all = runs(&mut content.exceptions.clone());
    let row = |run: &Run| (chunk.start(run.old), run.len * chunk.sectors().get(), chunk.start(run.new));
    if args.json {
        let rows: Vec<_> = all
            .iter()
            .map(row)
            .map(|(origin, length, cow)| json!({"origin": origin.get(), "length": length, "cow": cow.get()}))
            .collect();
        return writeln!(out, "{}", json!({"chunk_size": chunk.sectors().get(), "exceptions": rows}));
    }
    writeln!(out, "{:>16} {:>12} {:>16}", "ORIGIN", "LENGTH", "COW")?;
    for (origin, length, cow) in all.iter().map(row) {
        writeln!(out, "{:>16} {length:>12} {:>16}", origin.get(), cow.get())?;
    }
    Ok(())
}

fn diff(
    cow: &Cow,
    origin: Option<&Device>,
    svg: Option<&Path>,
    args: &CowArgs,
    out: &mut impl Write,
) -> Result<io::Result<()>, String> {
    let content = cow.valid()?;
    let chunk = cow.geometry.chunk();
    let changes = match origin {
        Some(origin) => compare(cow, content, origin)?,
        None => Changes::of_exceptions(&content.exceptions, chunk, None),
    };
    let origin_size = origin.map(|origin| origin.io.sectors());
    if let Some(path) = svg {
        let reach = Changes::of_exceptions(&content.exceptions, chunk, None).end() - Sector::ZERO;
        let picture = Picture {
            title: &args.name,
            origin: origin_size.unwrap_or(reach),
            origin_is_known: origin_size.is_some(),
            chunk,
            changes: &changes,
            exceptions: &content.exceptions,
            usage: content.store.usage(),
        };
        std::fs::write(path, picture.svg()).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(show_diff(&changes, origin_size, cow, args, out))
}

fn show_diff(
    changes: &Changes,
    origin: Option<Sectors>,
    cow: &Cow,
    args: &CowArgs,
    out: &mut impl Write,
) -> io::Result<()> {
    if args.json {
        let ranges: Vec<_> =
            changes.ranges().iter().map(|c| json!({"start": c.start.get(), "length": c.length.get()})).collect();
        let value = json!({
            "chunk_size": cow.geometry.chunk().sectors().get(),
            "compared": origin.is_some(),
            "origin_size": origin.map(Sectors::get),
            "changed": changes.total().get(),
            "ranges": ranges,
        });
        return writeln!(out, "{value}");
    }
    writeln!(out, "{:>16} {:>12}", "START", "LENGTH")?;
    for change in changes.ranges() {
        writeln!(out, "{:>16} {:>12}", change.start.get(), change.length.get())?;
    }
    Ok(())
}

/// The sectors of the chunks with exceptions that hold something else on the origin now.
fn compare(cow: &Cow, content: &Content, origin: &Device) -> Result<Changes, String> {
    let (chunk, end) = (cow.geometry.chunk(), Sector::ZERO + origin.io.sectors());
    let mut changes = Changes::new();
    for run in runs(&mut content.exceptions.clone()) {
        let length = run.len * chunk.sectors().get();
        if chunk.start(run.old) >= end {
            return Err(format!(
                "{}: it ends at sector {end}, and the snapshot has an exception at {}: expected the device that the \
                 snapshot was made of",
                origin.name,
                chunk.start(run.old)
            ));
        }
        let mut at = 0;
        while at < length {
            let (old, new) = (chunk.start(run.old) + Sectors::new(at), chunk.start(run.new) + Sectors::new(at));
            let most = Sectors::in_bytes(COMPARE).min(Sectors::new(length - at));
            let Some(sectors) = end.checked_since(old).map(|left| left.min(most)).filter(|n| !n.is_zero()) else {
                break;
            };
            let now = origin.read(Piece { sector: old, sectors })?;
            let then = cow.device.read(Piece { sector: new, sectors })?;
            let pairs = now.chunks_exact(udm_base::SECTOR_SIZE).zip(then.chunks_exact(udm_base::SECTOR_SIZE));
            for (n, _) in (0..).zip(pairs).filter(|(_, (now, then))| now != then) {
                changes.push(old + Sectors::new(n), Sectors::new(1));
            }
            at += sectors.get();
        }
    }
    Ok(changes)
}
