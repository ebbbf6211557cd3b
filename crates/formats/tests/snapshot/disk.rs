//! A COW device in memory.

use udm_base::SECTOR_SIZE;
use udm_formats::snapshot::{AreaWrite, Batch, Content, Error, Geometry, Header, Loaded, Piece, Probe, Reader};

pub(crate) struct Disk {
    geometry: Geometry,
    pub(crate) bytes: Vec<u8>,
}

impl Disk {
    pub(crate) fn new(geometry: Geometry, noise: u8) -> Self {
        Self { geometry, bytes: vec![noise; geometry.device().as_len()] }
    }

    pub(crate) fn read(&self, piece: Piece) -> &[u8] {
        &self.bytes[piece.sector.bytes() as usize..][..piece.sectors.as_len()]
    }

    pub(crate) fn write(&mut self, batch: &Batch) {
        batch.writes().for_each(|write| self.apply(write, |_| true));
    }

    /// Does some sectors of `first` and then none, some or all of `last`.
    pub(crate) fn tear(&mut self, batch: &Batch, chance: u64) {
        let lucky = |sector: usize| (chance >> (sector % 40)) & 1 == 1;
        match chance % 4 {
            0 => batch.first.iter().for_each(|write| self.apply(write, lucky)),
            1 => self.write(batch),
            _ => {
                batch.first.iter().for_each(|write| self.apply(write, |_| true));
                self.apply(&batch.last, lucky);
            }
        }
    }

    fn apply(&mut self, write: &AreaWrite, kept: impl Fn(usize) -> bool) {
        let place = &mut self.bytes[write.sector.bytes() as usize..][..write.sectors.as_len()];
        for (number, sector) in place.chunks_exact_mut(SECTOR_SIZE).enumerate().filter(|(n, _)| kept(*n)) {
            match &write.content {
                Content::Zeroes => sector.fill(0),
                Content::Bytes(bytes) => sector.copy_from_slice(&bytes[number * SECTOR_SIZE..][..SECTOR_SIZE]),
            }
        }
    }

    pub(crate) fn load(&self) -> Result<Loaded, Error> {
        let Probe::Store(header) = Header::probe(&self.bytes)? else { panic!("there is a store") };
        let geometry = Geometry::new(header.chunk, self.geometry.device(), 512)?;
        let mut reader = Reader::new(geometry);
        while let Some(piece) = reader.want() {
            reader.feed(self.read(piece))?;
        }
        reader.finish()
    }
}
