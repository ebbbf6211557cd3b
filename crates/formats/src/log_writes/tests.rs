use super::*;
use proptest::prelude::*;
use udm_base::{Sector, Sectors};

fn block(bytes: u32) -> BlockSize {
    BlockSize::new(bytes).unwrap()
}

fn entry(sector: u64, nr_sectors: u64, flags: Flags) -> Entry {
    Entry { sector, nr_sectors, flags, mark: Vec::new() }
}

/// A log device with these entries, whose data is the entry's number.
fn log(unit: BlockSize, entries: &[Entry], device: Sectors) -> Vec<u8> {
    let mut bytes = vec![0; device.as_len()];
    let mut layout = Layout::new(unit, device);
    for (number, entry) in entries.iter().enumerate() {
        let data = if entry.flags.contains(Flags::DISCARD) { 0 } else { entry.nr_sectors };
        let data = unit.units(data).unwrap();
        let at = Sectors::new(layout.place(data).unwrap().get()).as_len();
        let data_at = at + unit.bytes() as usize;
        entry.encode(&mut bytes[at..data_at]);
        bytes[data_at..][..data.as_len()].fill(number as u8);
    }
    let superblock = Superblock { entries: layout.entries(), block: unit }.encode();
    bytes[..superblock.len()].copy_from_slice(&superblock);
    bytes
}

/// What a log device holds, read to the end.
fn read(bytes: &[u8]) -> Result<Vec<Record>, Error> {
    let device = Sectors::in_bytes(bytes.len() as u64);
    let superblock = Superblock::decode(bytes, device)?;
    let mut reader = Reader::new(superblock, device);
    let mut records = Vec::new();
    while let Some((at, len)) = reader.want() {
        reader.check()?;
        let from = Sectors::new(at.get()).as_len();
        records.push(reader.feed(&bytes[from..from + len.as_len()])?);
    }
    Ok(records)
}

fn some_entries(unit: BlockSize) -> Vec<Entry> {
    vec![
        entry(8, 2, Flags::NONE),
        entry(0, 0, Flags::FLUSH),
        entry(100, 1, Flags::FUA),
        entry(1 << 40, 1 << 30, Flags::DISCARD),
        Entry::mark(b"here", unit),
        entry(5, 1, Flags::METADATA),
    ]
}

#[test]
fn what_was_written_is_read() {
    for unit in [512, 4096] {
        let unit = block(unit);
        let entries = some_entries(unit);
        let device = Sectors::new(unit.sectors().get() * 12);
        let records = read(&log(unit, &entries, device)).unwrap();
        assert_eq!(records.iter().map(|r| r.entry.clone()).collect::<Vec<_>>(), entries);
        let factor = unit.sectors().get();
        let places: Vec<_> = records.iter().map(|r| r.at.get() / factor).collect();
        assert_eq!(places, [1, 4, 5, 7, 8, 9], "discards and marks have no data");
        assert_eq!(records[0].data, (Sector::new(2 * factor), Sectors::new(2 * factor)));
        assert_eq!(records[0].sector, Sector::new(8 * factor));
        assert_eq!((records[3].data.1, records[3].sectors.get()), (Sectors::ZERO, factor << 30));
    }
}

#[test]
fn bytes_as_the_kernel_lays_them() {
    let bytes = log(block(512), &[entry(0x1122, 1, Flags::FUA), Entry::mark(b"ab", block(512))], Sectors::new(8));
    let (magic, version) = ([0x72, 0x68, 0x73, 0x77, 0x66, 0x73, 0x6a, 0], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[..8], magic);
    assert_eq!(bytes[8..16], version);
    assert_eq!(bytes[16..32], [2, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[512..544], {
        let mut expect = [0; 32];
        (expect[0], expect[1], expect[8], expect[16]) = (0x22, 0x11, 1, 2);
        expect
    });
    assert_eq!(bytes[1536..1536 + 36], {
        let mut expect = [0; 36];
        (expect[16], expect[24]) = (8, 2);
        expect[32..34].copy_from_slice(b"ab");
        expect
    });
}

#[test]
fn a_mark_is_cut_where_the_kernel_cuts_it() {
    for (unit, len, expect) in [(512, 3, 3), (512, 479, 479), (512, 480, 479), (4096, 5000, 4063)] {
        assert_eq!(Entry::mark(&vec![b'x'; len], block(unit)).mark.len(), expect, "{len} in {unit}");
    }
    assert_eq!(Entry::mark(b"ab\0cd", block(512)).mark, b"ab");
}

#[test]
fn places_until_the_device_is_full() {
    // The last sector is never reached: `next_sector >= end_sector` in `log_writes_kthread`.
    for (device, data, expect) in
        [(4, 1, Ok(1)), (3, 1, Err(Full)), (3, 0, Ok(1)), (2, 0, Err(Full)), (0, 0, Err(Full))]
    {
        let mut layout = Layout::new(block(512), Sectors::new(device));
        assert_eq!(layout.place(Sectors::new(data)).map(Sector::get), expect, "{data} of {device}");
        assert_eq!((layout.next().get(), layout.entries()), (2 + data, u64::from(expect.is_ok())));
    }
    let mut layout = Layout::new(block(512), Sectors::new(100));
    assert_eq!(layout.place(Sectors::MAX), Err(Full));
    assert_eq!(layout.place(Sectors::ZERO), Err(Full), "it stays full");
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    /// What is done to a log, and what is said then.
    type Row = (&'static str, fn(&mut Vec<u8>), ErrorKind, &'static str);
    const ROWS: &[Row] = &[
        ("no bytes", |b| b.truncate(16), ErrorKind::Truncated, "superblock, length: the log device ends after 16"),
        ("foreign", |b| b[0] ^= 1, ErrorKind::Foreign, "superblock, magic: found 0x006a736677736873, expected 0x006a"),
        ("empty", |b| b.fill(0), ErrorKind::Foreign, "send the device a `mark`"),
        ("version", |b| b[8] = 2, ErrorKind::Version, "superblock, version: found 2, expected 1"),
        ("sector size", |b| b[24] = 1, ErrorKind::SectorSize, "sectorsize: found 513, expected a power of two"),
        ("huge sectors", |b| b[27] = 1, ErrorKind::SectorSize, "sectorsize: found 16777728"),
        ("entries", |b| b[23] = 1, ErrorKind::Truncated, "nr_entries: found 72057594037927942, and on a device of 12"),
        (
            "cut short",
            |b| b.truncate(9 * 512),
            ErrorKind::Truncated,
            "entry 5 at sector 9, length: the entry reaches past",
        ),
        ("data cut", |b| b.truncate(10 * 512), ErrorKind::Truncated, "entry 5 at sector 9, nr_sectors: its data of 1"),
        (
            "flags",
            |b| b[4 * 512 + 16] |= 64,
            ErrorKind::Corrupt,
            "entry 1 at sector 4, flags: found 0x41, expected none",
        ),
        ("no flags", |b| b[4 * 512 + 16] = 0, ErrorKind::Corrupt, "there is no entry here"),
        ("two", |b| b[7 * 512 + 16] |= 1, ErrorKind::Corrupt, "entry 3 at sector 7, flags: found FLUSH|DISCARD"),
        ("mark and", |b| b[8 * 512 + 16] |= 1, ErrorKind::Corrupt, "found FLUSH|MARK: a mark is nothing else"),
        ("long mark", |b| b[8 * 512 + 25] = 2, ErrorKind::Corrupt, "data_len: a mark of 0 sectors and 516 bytes"),
        ("short mark", |b| b[8 * 512 + 24] = 3, ErrorKind::Corrupt, "padding: byte 35 of the sector is 0x65"),
        ("zero in mark", |b| b[8 * 512 + 33] = 0, ErrorKind::Corrupt, "mark: a text with a zero byte"),
        ("data_len", |b| b[512 + 24] = 9, ErrorKind::Corrupt, "data_len: found 9, expected 0"),
        ("padding", |b| b[512 + 500] = 9, ErrorKind::Corrupt, "byte 500 of the sector is 0x09, expected zero"),
        ("sector", |b| b[512 + 7] = 255, ErrorKind::Corrupt, "entry 0 at sector 1, sector: 18374686479671623688 + 2"),
        ("length", |b| b[512 + 12] = 1, ErrorKind::Truncated, "its data of 4294967298 sectors reaches past"),
    ];
    for (name, harm, kind, expect) in ROWS {
        let mut bytes = log(block(512), &some_entries(block(512)), Sectors::new(12));
        harm(&mut bytes);
        let error = read(&bytes).expect_err(name);
        assert_eq!(error.kind, *kind, "{name}: {error}");
        assert!(error.to_string().contains(expect), "{name}: {error}");
    }
}

#[test]
fn inline_data_of_older_kernels_is_read() {
    let mut bytes = log(block(512), &some_entries(block(512)), Sectors::new(12));
    bytes[512 + 25] = 4;
    assert_eq!(read(&bytes).unwrap()[0].data.1, Sectors::new(2));
}

proptest! {
    /// A flipped bit is either told, or it is in what the log cannot check: data, places and lengths, a mark's text,
    /// and the padding of the superblock.
    #[test]
    fn no_flip_goes_unseen(bit in 0..12 * 512 * 8usize) {
        let good = log(block(512), &some_entries(block(512)), Sectors::new(12));
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(records) = read(&bytes) {
            for record in &records {
                prop_assert!(record.end().get() <= 12);
            }
            let before = read(&good).unwrap();
            let is_entry = before.iter().any(|r| (r.at.get() as usize * 512..r.at.get() as usize * 512 + 512).contains(&(bit / 8)));
            if is_entry {
                prop_assert_ne!(records, before);
            }
        }
    }
}
