//! The kernel's records in `tests/goldens`, and the images beside them: what a device held, packed page by page.
//!
//! # Format (`*.pages.gz`, written by `tests/goldens/pack.py`)
//! A gzip stream of: the image's size in bytes (u64, little-endian); then for each page of 4096 bytes that is not all
//! zero, in ascending order, its number (u64, little-endian) and its bytes. A last page that the size cuts short is
//! padded with zeroes.

mod record;
mod sha256;

pub use record::Record;
pub use sha256::sha256;

use std::io::{self, Read};

const PAGE: usize = 4096;
/// Larger than any golden; an image is held in memory whole.
const LARGEST: u64 = 1 << 30;

/// Unpacks the image, its full size with zeroes where nothing was packed.
///
/// # Errors
/// `InvalidData` when the stream is no packed image (which page, and what is wrong), or names more than 1 GiB.
pub fn unpack(packed: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = flate2::read::GzDecoder::new(packed);
    let mut word = [0; 8];
    stream.read_exact(&mut word)?;
    let size = u64::from_le_bytes(word);
    if size > LARGEST {
        return Err(invalid(format!("the image has {size} bytes, more than {LARGEST}")));
    }
    let mut image = vec![0; size as usize];
    let mut next = 0;
    while read_or_end(&mut stream, &mut word)? {
        let number = u64::from_le_bytes(word);
        if number < next || number >= size.div_ceil(PAGE as u64) {
            return Err(invalid(format!("page {number} where one from {next} on was expected, in {size} bytes")));
        }
        let mut page = [0; PAGE];
        stream.read_exact(&mut page)?;
        let start = number as usize * PAGE;
        let length = PAGE.min(image.len() - start);
        image[start..start + length].copy_from_slice(&page[..length]);
        next = number + 1;
    }
    Ok(image)
}

/// Fills `word`, or says that the stream ended before it.
fn read_or_end(stream: &mut impl Read, word: &mut [u8; 8]) -> io::Result<bool> {
    if stream.read(&mut word[..1])? == 0 {
        return Ok(false);
    }
    stream.read_exact(&mut word[1..])?;
    Ok(true)
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The sectors that `put` of `tests/lab/guest-lib.sh` writes: a line of 32 bytes with the volume, the page
/// (sector / 8) and the generation, sixteen times a sector.
pub fn pattern(volume: u16, sector: u64, count: u64, generation: u32) -> Vec<u8> {
    let line = |sector: u64| format!("udm v{volume:04x} p{:08x} g{generation:08x}  \n", sector / 8);
    (sector..sector + count).flat_map(|sector| line(sector).repeat(16).into_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn pack(bytes: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    }

    fn image(size: u64, pages: &[(u64, u8)]) -> Vec<u8> {
        let mut bytes = size.to_le_bytes().to_vec();
        for (number, fill) in pages {
            bytes.extend(number.to_le_bytes());
            bytes.extend([*fill; PAGE]);
        }
        pack(&bytes)
    }

    #[test]
    fn an_image_has_its_size_and_its_pages() {
        assert_eq!(unpack(&image(0, &[])).unwrap(), []);
        let got = unpack(&image(3 * 4096 + 512, &[(1, 7), (3, 9)])).unwrap();
        assert_eq!(got.len(), 3 * 4096 + 512);
        assert!(got[..4096].iter().all(|b| *b == 0) && got[4096..8192].iter().all(|b| *b == 7));
        assert!(got[8192..12288].iter().all(|b| *b == 0) && got[12288..].iter().all(|b| *b == 9));
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let mut cut = 8192u64.to_le_bytes().to_vec();
        cut.extend([0; 12]);
        for bad in [
            b"no gzip".to_vec(),
            pack(&[1, 2]),
            pack(&cut),
            image(8192, &[(2, 1)]),
            image(8192, &[(1, 1), (0, 1)]),
            image(8192, &[(0, 1), (0, 1)]),
            image(u64::MAX, &[]),
        ] {
            assert!(unpack(&bad).is_err());
        }
    }

    #[test]
    fn the_pattern_names_where_it_belongs() {
        let sectors = pattern(0x10, 15, 2, 3);
        assert_eq!(sectors.len(), 1024);
        assert_eq!(&sectors[..64], b"udm v0010 p00000001 g00000003  \nudm v0010 p00000001 g00000003  \n");
        assert_eq!(&sectors[512..544], b"udm v0010 p00000002 g00000003  \n");
    }

    /// Every image of the tree unpacks.
    #[test]
    fn the_goldens_unpack() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens");
        let mut images = 0;
        for directory in ["thin", "snapshot"] {
            for entry in std::fs::read_dir(root.join(directory)).unwrap() {
                let path = entry.unwrap().path();
                if path.to_string_lossy().ends_with(".pages.gz") {
                    let image = unpack(&std::fs::read(&path).unwrap()).unwrap_or_else(|e| panic!("{path:?}: {e}"));
                    assert!(image.len().is_multiple_of(512) && !image.is_empty(), "{path:?}");
                    images += 1;
                }
            }
        }
        assert!(images >= 2, "there are goldens");
    }
}
