//! What a simulated device holds: pages that were written, by number; all else is zero.

use std::collections::BTreeMap;
use std::sync::Arc;
use udm_base::{SECTOR_SIZE, Sector, Sectors};

const PAGE: usize = 4096;
const SECTORS: u64 = (PAGE / SECTOR_SIZE) as u64;

/// The content of a device, sparse: a clone shares its pages until one of the two changes.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Image {
    pages: BTreeMap<u64, Arc<[u8; PAGE]>>,
}

impl Image {
    /// All zeroes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads sectors from `sector`.
    ///
    /// # Panics
    /// When `buf` is not whole sectors.
    pub fn read(&self, sector: Sector, buf: &mut [u8]) {
        for (sector, piece) in sectors_of(sector, buf.chunks_exact_mut(SECTOR_SIZE)) {
            match self.pages.get(&(sector / SECTORS)) {
                Some(page) => piece.copy_from_slice(&page[offset(sector)..][..SECTOR_SIZE]),
                None => piece.fill(0),
            }
        }
    }

    /// Writes sectors from `sector`.
    ///
    /// # Panics
    /// When `data` is not whole sectors.
    pub fn write(&mut self, sector: Sector, data: &[u8]) {
        assert_eq!(data.len() % SECTOR_SIZE, 0, "whole sectors");
        for (sector, piece) in sectors_of(sector, data.chunks_exact(SECTOR_SIZE)) {
            let page = self.pages.entry(sector / SECTORS).or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[offset(sector)..][..SECTOR_SIZE].copy_from_slice(piece);
        }
    }

    /// Makes sectors read as zeroes. Cost: the pages that exist in the range, however long it is.
    pub fn zero(&mut self, sector: Sector, sectors: Sectors) {
        let (start, end) = (sector.get(), (sector + sectors).get());
        let (first, last) = (start.div_ceil(SECTORS), end / SECTORS);
        if first < last {
            let mut whole = self.pages.split_off(&first);
            self.pages.append(&mut whole.split_off(&last));
        }
        for edge in [start..end.min(first * SECTORS), start.max(last * SECTORS)..end] {
            for sector in edge {
                if let Some(page) = self.pages.get_mut(&(sector / SECTORS)) {
                    Arc::make_mut(page)[offset(sector)..][..SECTOR_SIZE].fill(0);
                }
            }
        }
    }

    /// Bytes of memory that its pages take.
    pub fn allocated(&self) -> u64 {
        (self.pages.len() * PAGE) as u64
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} pages)", self.pages.len())
    }
}

fn offset(sector: u64) -> usize {
    (sector % SECTORS) as usize * SECTOR_SIZE
}

fn sectors_of<T>(first: Sector, pieces: impl Iterator<Item = T>) -> impl Iterator<Item = (u64, T)> {
    (first.get()..).zip(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroing_edges_and_middles() {
        for (start, len) in [(0u64, 64u64), (3, 2), (3, 8), (8, 8), (7, 18), (16, 0), (15, 1), (5, 59)] {
            let mut image = Image::new();
            image.write(Sector::ZERO, &[7; 64 * 512]);
            image.zero(Sector::new(start), Sectors::new(len));
            let mut back = vec![0; 64 * 512];
            image.read(Sector::ZERO, &mut back);
            for (i, sector) in back.chunks(512).enumerate() {
                let expect = if (start..start + len).contains(&(i as u64)) { 0 } else { 7 };
                assert!(sector.iter().all(|b| *b == expect), "{start}+{len}: {i}");
            }
        }
    }

    #[test]
    fn far_sectors_cost_little() {
        let mut image = Image::new();
        image.write(Sector::new(1 << 50), &[1; 512]);
        image.zero(Sector::ZERO, Sectors::new(1 << 50));
        assert_eq!(image.allocated(), 4096);
        image.zero(Sector::ZERO, Sectors::new(1 << 51));
        assert_eq!(image, Image::new());
    }
}
