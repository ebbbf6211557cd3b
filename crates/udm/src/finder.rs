//! Devices for commands that look into one, or write one, without a table: files, block devices, URIs, and the daemon's
//! own by their names.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use udm_base::{AlignedBuf, SECTOR_SIZE, Sector, Sectors};
use udm_files::OpenErrorKind;
use udm_io::{BlockDevice, BlockingIo, Domain, Limits, Op, OpFlags, Status};
use udm_nbd::uri::{Endpoint, Uri};
use udm_stack::OpenOptions;

use crate::places::Places;

/// How much is written at once.
const PIECE: Sectors = Sectors::in_bytes(1 << 20);

pub(crate) struct Finder {
    domain: Domain,
    /// Where the daemon's devices are found by name; it need not exist.
    socket: Option<PathBuf>,
}

/// A device that is open.
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) io: BlockingIo,
    pub(crate) limits: Limits,
    /// The device that writes to it meanwhile, if it was opened for reading.
    pub(crate) in_use: Option<String>,
}

impl Finder {
    /// Without a directory there is no daemon, and its devices are the only ones that are out of reach.
    pub(crate) fn new(places: &Result<Places, String>) -> Self {
        Self { domain: Domain::default(), socket: places.as_ref().ok().map(Places::nbd) }
    }

    /// Opens a device for reading. One that somebody writes to is opened all the same, and said to be.
    pub(crate) fn open(&self, name: &str) -> Result<Device, String> {
        let mut options = OpenOptions { read_only: true, exclusive: true, ..self.options() };
        let (opened, in_use) = match udm_stack::open_beneath(&self.spec(name), &options) {
            // Readers among themselves do not mind each other, so it is a writer.
            Err(e) if e.kind() == OpenErrorKind::Busy => {
                options.exclusive = false;
                (udm_stack::open_beneath(&self.spec(name), &options), Some(e.to_string()))
            }
            opened => (opened, None),
        };
        let device = opened.map_err(|e| e.to_string())?;
        if let Some(holder) = &in_use {
            eprintln!("udm: {holder}: it may change while it is read, and what is shown may be of different moments");
        }
        self.device(name, device, in_use)
    }

    /// Opens a device to write to it, shared with others: what is written is looked at by other programs meanwhile.
    pub(crate) fn open_to_write(&self, name: &str) -> Result<Device, String> {
        let device = udm_stack::open_beneath(&self.spec(name), &self.options()).map_err(|e| e.to_string())?;
        self.device(name, device, None)
    }

    fn options(&self) -> OpenOptions {
        OpenOptions { cwd: std::env::current_dir().unwrap_or_default(), ..OpenOptions::new(&self.domain) }
    }

    fn device(&self, name: &str, device: Arc<dyn BlockDevice>, in_use: Option<String>) -> Result<Device, String> {
        let limits = device.limits();
        let io = BlockingIo::new(&self.domain, device).map_err(|e| format!("{name}: {e}"))?;
        Ok(Device { name: name.to_owned(), io, limits, in_use })
    }

    fn spec(&self, name: &str) -> String {
        self.daemons_device(name).unwrap_or_else(|| name.to_owned())
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
}

impl Device {
    /// Reads sectors, however the device wants them aligned.
    pub(crate) fn read(&self, sector: Sector, sectors: Sectors) -> Result<Vec<u8>, String> {
        let block = u64::from(self.limits.logical_block_size.max(4096)) / SECTOR_SIZE as u64;
        let from = sector.get() / block * block;
        let end = (sector + sectors).get();
        let to = end.next_multiple_of(block).min(self.io.sectors().get()).max(end);
        let mut buf = AlignedBuf::zeroed(Sectors::new(to - from).as_len());
        self.io.read(Sector::new(from), &mut buf).map_err(|status| self.failed("reading", sector, status))?;
        let skip = Sectors::new(sector.get() - from).as_len();
        Ok(buf[skip..skip + sectors.as_len()].to_vec())
    }

    /// Writes sectors, however many the device takes at once.
    pub(crate) fn write(&self, sector: Sector, bytes: &[u8]) -> Result<(), String> {
        let most = self.limits.max_sectors.min(PIECE);
        let mut at = sector;
        for piece in bytes.chunks(most.as_len()) {
            let mut memory = AlignedBuf::zeroed(piece.len());
            memory.copy_from_slice(piece);
            self.io.write(at, &memory, OpFlags::NONE).map_err(|status| self.failed("writing", at, status))?;
            at += Sectors::in_bytes(piece.len() as u64);
        }
        Ok(())
    }

    /// Makes sectors zeroes, by writing them where the device has no other way.
    pub(crate) fn zero(&self, sector: Sector, sectors: Sectors) -> Result<(), String> {
        let makes = self.limits.max_write_zeroes;
        let most = if makes.is_zero() { self.limits.max_sectors.min(PIECE) } else { makes };
        self.pieces(sector, sectors, most, "zeroing", |at, len| match makes.is_zero() {
            true => self.io.write(at, &AlignedBuf::zeroed(len.as_len()), OpFlags::NONE),
            false => self.io.range(Op::WriteZeroes, OpFlags::NONE, at, len),
        })
    }

    /// Discards sectors, on a device that takes discards.
    pub(crate) fn discard(&self, sector: Sector, sectors: Sectors) -> Result<(), String> {
        let most = self.limits.max_discard;
        self.pieces(sector, sectors, most, "discarding", |at, len| self.io.range(Op::Discard, OpFlags::NONE, at, len))
    }

    fn pieces(
        &self,
        sector: Sector,
        sectors: Sectors,
        most: Sectors,
        doing: &str,
        work: impl Fn(Sector, Sectors) -> Result<(), Status>,
    ) -> Result<(), String> {
        let mut done = Sectors::ZERO;
        while done < sectors {
            let (at, len) = (sector + done, most.min(sectors - done));
            work(at, len).map_err(|status| self.failed(doing, at, status))?;
            done += len;
        }
        Ok(())
    }

    /// Makes durable what was written.
    pub(crate) fn flush(&self) -> Result<(), String> {
        self.io.flush().map_err(|status| format!("{}: the flush failed: {status:?}", self.name))
    }

    /// What is said of an operation that failed.
    pub(crate) fn failed(&self, doing: &str, sector: Sector, status: Status) -> String {
        format!("{}: {doing} at sector {sector} failed: {status:?}", self.name)
    }
}
