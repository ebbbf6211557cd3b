//! Reads a snapshot's store when a table is loaded, and makes one where there is none. Blocks.

use super::body::Keep;
use udm_base::{AlignedBuf, ArgError, Errno, Sector};
use udm_formats::snapshot::{
    Batch, ChunkSize, Content, Error, Exception, Geometry, HEADER_BYTES, Header, Loaded, Probe, Reader, Store,
};
use udm_io::{BlockDevice, BlockingIo, Domain, OpFlags, Status};

/// What was found on a COW device.
pub(super) struct Found {
    pub(super) chunk: ChunkSize,
    pub(super) keep: Keep,
    pub(super) exceptions: Vec<Exception>,
    pub(super) valid: bool,
}

fn failed(why: impl std::fmt::Display) -> ArgError {
    ArgError::new("Failed to read snapshot metadata").errno(Errno::EINVAL).hint(why.to_string())
}

fn io_failed(what: &str, sector: Sector, status: Status) -> ArgError {
    let errno = status.errno().unwrap_or(Errno::EIO);
    failed(format!("{what} sector {sector} of the COW device: {errno}")).errno(errno)
}

/// The store on `cow`; `table` is the chunk size that the table says, of which the header's has precedence.
pub(super) fn persistent(
    domain: &Domain,
    cow: &std::sync::Arc<dyn BlockDevice>,
    table: Option<ChunkSize>,
) -> Result<Found, ArgError> {
    let block = cow.limits().logical_block_size;
    let io = BlockingIo::new(domain, cow.clone()).map_err(failed)?;
    let first = AlignedBuf::zeroed(HEADER_BYTES.next_multiple_of(block as usize).max(512));
    let mut first = first;
    if (first.len() as u64) > cow.sectors().bytes() {
        let (found, expected) = (cow.sectors().bytes(), first.len());
        return Err(failed(format!("the COW device has {found} bytes, expected at least the {expected} of a header")));
    }
    io.read(Sector::ZERO, &mut first).map_err(|s| io_failed("cannot read", Sector::ZERO, s))?;
    match Header::probe(&first).map_err(failed)? {
        Probe::Empty => {
            let chunk = table.unwrap_or_else(|| ChunkSize::default_for(block));
            let geometry = Geometry::new(chunk, cow.sectors(), block).map_err(failed)?;
            let (mut store, batch) = Store::format(geometry);
            write(&io, &batch).map_err(|(sector, s)| io_failed("cannot write", sector, s))?;
            store.finish(&batch, true);
            Ok(Found { chunk, keep: Keep::Persistent(store), exceptions: Vec::new(), valid: true })
        }
        Probe::Store(header) => {
            let geometry = Geometry::new(header.chunk, cow.sectors(), block).map_err(failed)?;
            if !header.valid {
                // Nothing of it is looked at; a store that is never used stands for it.
                let keep = Keep::Transient(udm_formats::snapshot::Transient::new(header.chunk, cow.sectors()));
                return Ok(Found { chunk: header.chunk, keep, exceptions: Vec::new(), valid: false });
            }
            let Loaded { exceptions, store } = read(&io, geometry)?;
            Ok(Found { chunk: header.chunk, keep: Keep::Persistent(store), exceptions, valid: true })
        }
    }
}

fn read(io: &BlockingIo, geometry: Geometry) -> Result<Loaded, ArgError> {
    let wrong = |e: Error| failed(e);
    let mut reader = Reader::new(geometry);
    let mut buf = AlignedBuf::zeroed(0);
    while let Some(piece) = reader.want() {
        if buf.len() < piece.sectors.as_len() {
            buf = AlignedBuf::zeroed(piece.sectors.as_len());
        }
        let bytes = &mut buf[..piece.sectors.as_len()];
        io.read(piece.sector, bytes).map_err(|s| io_failed("cannot read", piece.sector, s))?;
        reader.feed(bytes).map_err(wrong)?;
    }
    reader.finish().map_err(wrong)
}

/// Zeroes that are written at a time.
const ZEROES: usize = 1 << 20;

fn write(io: &BlockingIo, batch: &Batch) -> Result<(), (Sector, Status)> {
    for area in &batch.first {
        match &area.content {
            Content::Bytes(bytes) => io.write(area.sector, bytes, OpFlags::NONE).map_err(|s| (area.sector, s))?,
            Content::Zeroes => {
                let zeroes = AlignedBuf::zeroed(area.sectors.as_len().min(ZEROES));
                let (mut sector, end) = (area.sector, area.sector + area.sectors);
                while sector < end {
                    let len = (end - sector).as_len().min(ZEROES);
                    io.write(sector, &zeroes[..len], OpFlags::NONE).map_err(|s| (sector, s))?;
                    sector += udm_base::Sectors::in_bytes(len as u64);
                }
            }
        }
    }
    io.flush().map_err(|s| (Sector::ZERO, s))?;
    if let Content::Bytes(bytes) = &batch.last.content {
        io.write(batch.last.sector, bytes, OpFlags::NONE).map_err(|s| (batch.last.sector, s))?;
    }
    io.flush().map_err(|s| (Sector::ZERO, s))
}
