//! `zero-skip`: what a copy of a volume allocates when writes of zeroes to blocks that have no data are skipped.

use crate::chart::{Bar, Chart, Group, Tone};
use crate::experiment::{Experiment, Setting};
use crate::pass::{device, load, refused};
use crate::report::Report;
use crate::row::{Limit, Row, Unit};
use crate::source_tree::{self, Size};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_bench::Error;
use udm_bench::rng::Rng;
use udm_core::{MappedDevice, Registry, StatusKind, TableSlot};
use udm_io::{BlockingIo, Clock, OpFlags, Status, is_zero};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "zero-skip",
    about: "what a copy of a thin volume allocates, with and without skipping zeroes",
    wants_folder: true,
    run,
};

/// Bytes of a pool's block.
const BLOCK: usize = 64 << 10;
const BLOCK_SECTORS: u64 = (BLOCK / 512) as u64;
/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;
/// Per cent that the seed's author found allocated in the origin and in the copy.
const SEED: (f64, f64) = (22.04, 18.33);
/// Of the tree, and of the odd sizes.
const RANDOM: u64 = 2015;

/// How the client writes.
#[derive(Clone, Copy)]
enum Writes {
    /// So many bytes each.
    Of(usize),
    /// From one sector to 150 KiB, so that they begin and end anywhere in blocks.
    Odd,
}

/// What the pool does with zeroes while a volume is copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Policy {
    Skip,
    Write,
    /// Writes them during the first half and skips them in the second.
    WriteThenSkip,
    SkipThenWrite,
}

impl Policy {
    const fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip_zero_writes",
            Self::Write => "enable_zero_writes",
            Self::WriteThenSkip => "enable_zero_writes, then skip_zero_writes",
            Self::SkipThenWrite => "skip_zero_writes, then enable_zero_writes",
        }
    }

    /// Whether zeroes are skipped in the first and the second half.
    const fn skips(self) -> [bool; 2] {
        match self {
            Self::Skip => [true, true],
            Self::Write => [false, false],
            Self::WriteThenSkip => [false, true],
            Self::SkipThenWrite => [true, false],
        }
    }
}

struct Case {
    name: &'static str,
    policy: Policy,
    writes: Writes,
}

const CASES: &[Case] = &[
    Case { name: "plain copy, 64 KiB writes", policy: Policy::Write, writes: Writes::Of(64 << 10) },
    Case { name: "skipping, 4 KiB writes", policy: Policy::Skip, writes: Writes::Of(4 << 10) },
    Case { name: "skipping, 64 KiB writes", policy: Policy::Skip, writes: Writes::Of(64 << 10) },
    Case { name: "skipping, 1 MiB writes", policy: Policy::Skip, writes: Writes::Of(1 << 20) },
    Case { name: "skipping, writes of odd sizes", policy: Policy::Skip, writes: Writes::Odd },
    Case { name: "switched on half-way", policy: Policy::WriteThenSkip, writes: Writes::Of(64 << 10) },
    Case { name: "switched off half-way", policy: Policy::SkipThenWrite, writes: Writes::Of(64 << 10) },
];

fn run(setting: &Setting<'_>) -> Result<Report, Error> {
    run_with(setting, setting.or_quick(Size { image: 1 << 30, files: 9000 }, Size { image: 128 << 20, files: 2000 }))
}

fn run_with(setting: &Setting<'_>, size: Size) -> Result<Report, Error> {
    let folder = setting.folder.expect("the experiment wants a folder");
    let image = source_tree::make(folder, size, RANDOM, setting.progress)?;
    let pool = Pool::new(setting, size.image)?;

    (setting.progress)("writing the file system to the origin");
    let origin = pool.volume("origin", 1)?;
    write_image(&pool, &origin, &image)?;
    let survey = Survey::of(&origin, size.image)?;
    let origin_mapped = origin.mapped()?;

    let mut rows = Vec::new();
    let mut bars = Vec::new();
    for case in CASES {
        (setting.progress)(&format!("copying: {}", case.name));
        pool.skip(case.policy.skips()[0])?;
        let copy = pool.volume("copy", 2)?;
        let nanos = copy_volume(&pool, &origin, &copy, case, &**setting.domain.clock())?;
        same(&origin, &copy, size.image)?;
        let mapped = copy.mapped()?;
        let expect = survey.expect(case.policy);
        let row = Row {
            experiment: EXPERIMENT.name,
            row: case.name.to_owned(),
            policy: Some(case.policy.name().to_owned()),
            disk: Some("ram".to_owned()),
            chunk: Some(BLOCK as u64),
            size: match case.writes {
                Writes::Of(bytes) => Some(bytes as u64),
                Writes::Odd => None,
            },
            baseline: Some(expect as f64),
            figure: Some(mapped as f64),
            ratio: Some(mapped as f64 / expect as f64),
            unit: Unit::Blocks,
            command: setting.command.clone(),
            ..Row::default()
        };
        rows.push(row.clone().judged(Limit::Exactly(1.0)));
        rows.push(Row {
            row: format!("{}: how fast", case.name),
            baseline: None,
            figure: Some(size.image as f64 * 1e3 / nanos as f64),
            ratio: None,
            unit: Unit::MegabytesPerSecond,
            ..row
        });
        let tone = if case.policy == Policy::Skip { Tone::Ours } else { Tone::Other };
        bars.push(Bar { label: case.name.to_owned(), value: mapped as f64, tone });
        pool.delete(copy)?;
    }
    // As the seed's author counted: what the origin has allocated, and what a copy that skips zeroes has.
    rows.push(
        Row {
            experiment: EXPERIMENT.name,
            row: "copy that skips, beside its origin".to_owned(),
            policy: Some(Policy::Skip.name().to_owned()),
            disk: Some("ram".to_owned()),
            chunk: Some(BLOCK as u64),
            seed_figure: Some(SEED.1),
            seed_ratio: Some(SEED.1 / SEED.0),
            baseline: Some(survey.per_cent(origin_mapped)),
            figure: Some(survey.per_cent(survey.expect(Policy::Skip))),
            ratio: Some(survey.expect(Policy::Skip) as f64 / origin_mapped as f64),
            unit: Unit::PerCent,
            command: setting.command.clone(),
            ..Row::default()
        }
        .judged(Limit::AtMost(1.0)),
    );
    bars.insert(0, Bar { label: "the origin".to_owned(), value: origin_mapped as f64, tone: Tone::Seed });
    let title = "Copies of a thin volume that skip zeroes";
    Ok(Report {
        name: EXPERIMENT.name,
        title,
        method: vec![
            format!(
                "An ext4 of {} MiB with {} source files is written to a thin volume, the origin: what mkfs wrote, and nothing \
                 else. The whole volume is then copied to a new one by plain writes, in several sizes, with the pool as named. \
                 Afterwards both volumes are read and compared byte by byte (crc32c {:08x}).",
                size.image >> 20,
                size.files,
                survey.checksum
            ),
            format!(
                "Of {} blocks of 64 KiB {} hold a byte that is not zero. `baseline` is how many blocks the copy has to have: \
                 exactly these where zeroes are skipped, all where they are not. The rates are one copy each, for comparison \
                 within the run.",
                survey.nonzero.len(),
                survey.expect(Policy::Skip)
            ),
        ],
        rows,
        charts: vec![Chart::Bars {
            title: format!("blocks that are allocated, of {}", survey.nonzero.len()),
            unit: "blocks of 64 KiB",
            groups: vec![Group { label: String::new(), bars, goal: None }],
        }],
        quick: setting.quick,
        command: setting.command.clone(),
    })
}

/// A pool in memory, and the registry it lives in. Of the memory, only what is written is used.
struct Pool<'a> {
    setting: &'a Setting<'a>,
    registry: Registry,
    blocks: u64,
    tables: [String; 2],
}

/// A volume, opened.
struct Volume {
    md: Arc<MappedDevice>,
    id: u32,
    io: BlockingIo,
}

fn failed(md: &str, op: &'static str, at: u64, bytes: usize) -> impl Fn(Status) -> Error {
    let device = md.to_owned();
    move |status| Error::Io { device: device.clone(), op, offset: at, bytes, status }
}

impl<'a> Pool<'a> {
    fn new(setting: &'a Setting<'a>, volume: u64) -> Result<Self, Error> {
        let blocks = volume.div_ceil(BLOCK as u64);
        // Room for the origin and one whole copy.
        let data_sectors = 2 * blocks * BLOCK_SECTORS;
        let table = |features: &str| {
            format!("0 {data_sectors} thin-pool /dev/mapper/meta /dev/mapper/data {BLOCK_SECTORS} 0 {features}")
        };
        let tables = [table("1 enable_zero_writes"), table("0")];
        let pool = Self { setting, registry: udm_stack::registry(setting.domain.clone()), blocks, tables };
        pool.device("meta", "0 65536 ram")?;
        pool.device("data", &format!("0 {data_sectors} ram"))?;
        pool.device("pool", &pool.tables[0])?;
        Ok(pool)
    }

    fn device(&self, name: &str, table: &str) -> Result<Arc<MappedDevice>, Error> {
        device(&self.registry, name, table)
    }

    fn pool(&self) -> Result<Arc<MappedDevice>, Error> {
        self.registry.by_name("pool").ok_or_else(|| Error::Stack("the pool is gone".to_owned()))
    }

    fn message(&self, words: &[&str]) -> Result<(), Error> {
        self.pool()?.message(Sector::ZERO, words).map_err(refused(&words.join(" "))).map(drop)
    }

    /// Reloads the live pool with skipping on or off.
    fn skip(&self, on: bool) -> Result<(), Error> {
        load(&self.pool()?, "pool", &self.tables[usize::from(on)])?;
        let status = info(&*self.pool()?);
        let word = if on { "skip_zero_writes" } else { "enable_zero_writes" };
        // What was asked for is what is measured.
        if !status.split(' ').any(|w| w == word) {
            return Err(Error::Stack(format!("pool: its status is {status:?}, without {word}")));
        }
        Ok(())
    }

    fn volume(&self, name: &str, id: u32) -> Result<Volume, Error> {
        self.message(&["create_thin", &id.to_string()])?;
        let table = format!("0 {} thin /dev/mapper/pool {id}", self.blocks * BLOCK_SECTORS);
        let md = self.device(name, &table)?;
        let system = |source| Error::System { what: format!("opening {name}"), source };
        let io = BlockingIo::new(self.setting.domain, md.clone()).map_err(system)?;
        Ok(Volume { md, id, io })
    }

    fn delete(&self, volume: Volume) -> Result<(), Error> {
        let Volume { md, id, io } = volume;
        drop(io);
        self.registry.remove(&md, false).map_err(refused("removing a copy"))?;
        drop(md);
        self.message(&["delete", &id.to_string()])
    }
}

fn info(md: &MappedDevice) -> String {
    let table = md.table(TableSlot::Active);
    let lines = table.map(|table| table.lines(StatusKind::Info { noflush: false })).unwrap_or_default();
    lines.into_iter().map(|line| line.params).next().unwrap_or_default()
}

impl Volume {
    /// How many blocks have data, as the volume's status says.
    fn mapped(&self) -> Result<u64, Error> {
        let status = info(&self.md);
        let sectors = status.split(' ').next().and_then(|word| word.parse::<u64>().ok());
        let sectors = sectors.ok_or_else(|| Error::Stack(format!("a volume's status is {status:?}")))?;
        Ok(sectors / BLOCK_SECTORS)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        let bytes = into.len();
        let done = self.io.read(Sector::ZERO + Sectors::in_bytes(at), into);
        done.map_err(failed(&self.md.device_name(), "read", at, bytes))
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), Error> {
        let done = self.io.write(Sector::ZERO + Sectors::in_bytes(at), from, OpFlags::NONE);
        done.map_err(failed(&self.md.device_name(), "write", at, from.len()))
    }
}

/// Writes what the image holds, but not its holes.
fn write_image(pool: &Pool<'_>, origin: &Volume, image: &Path) -> Result<(), Error> {
    let system = |source: std::io::Error| Error::System { what: format!("reading {}", image.display()), source };
    let mut file = File::open(image).map_err(system)?;
    let end = pool.blocks * BLOCK as u64;
    let mut buffer = vec![0; BLOCK];
    let mut at = 0;
    while at < end {
        let next = match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
            Ok(next) => next,
            Err(rustix::io::Errno::NXIO) => break,
            Err(e) => return Err(system(e.into())),
        };
        // Whole 4 KiB blocks of the file system, as it would write them.
        at = next / 4096 * 4096;
        let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(next)).map_err(|e| system(e.into()))?;
        while at < hole.min(end) {
            let bytes = (hole.next_multiple_of(4096).min(end) - at).min(BLOCK as u64 - at % BLOCK as u64) as usize;
            file.seek(SeekFrom::Start(at)).map_err(system)?;
            file.read_exact(&mut buffer[..bytes]).map_err(system)?;
            origin.write(at, &buffer[..bytes])?;
            at += bytes as u64;
        }
    }
    Ok(())
}

/// What there is to copy.
struct Survey {
    /// Of each block, whether a byte is not zero.
    nonzero: Vec<bool>,
    checksum: u32,
}

impl Survey {
    fn of(volume: &Volume, bytes: u64) -> Result<Self, Error> {
        let (mut nonzero, mut checksum) = (Vec::new(), 0);
        let mut buffer = vec![0; PIECE];
        for at in (0..bytes).step_by(PIECE) {
            volume.read(at, &mut buffer)?;
            checksum = crc32c::crc32c_append(checksum, &buffer);
            nonzero.extend(buffer.chunks(BLOCK).map(|block| !is_zero(block)));
        }
        Ok(Self { nonzero, checksum })
    }

    /// How many blocks a copy has to have.
    fn expect(&self, policy: Policy) -> u64 {
        let halves = self.nonzero.split_at(self.nonzero.len() / 2);
        let count = |blocks: &[bool], skips: bool| blocks.iter().filter(|nonzero| **nonzero || !skips).count() as u64;
        let [first, second] = policy.skips();
        count(halves.0, first) + count(halves.1, second)
    }

    fn per_cent(&self, blocks: u64) -> f64 {
        blocks as f64 * 100.0 / self.nonzero.len() as f64
    }
}

/// Copies all of a volume. Gives the nanoseconds that it took, without the change of the pool half-way.
fn copy_volume(pool: &Pool<'_>, from: &Volume, to: &Volume, case: &Case, clock: &dyn Clock) -> Result<u64, Error> {
    let bytes = pool.blocks / 2 * BLOCK as u64;
    let mut nanos = 0;
    let mut random = Rng::new(RANDOM, 1);
    let mut buffer = vec![0; PIECE];
    for (half, skips) in case.policy.skips().into_iter().enumerate() {
        let range = if half == 0 { 0..bytes } else { bytes..pool.blocks * BLOCK as u64 };
        if half == 1 && skips != case.policy.skips()[0] {
            pool.skip(skips)?;
        }
        let start = clock.now();
        let mut at = range.start;
        while at < range.end {
            let piece = (range.end - at).min(PIECE as u64) as usize;
            from.read(at, &mut buffer[..piece])?;
            let mut done = 0;
            while done < piece {
                let one = match case.writes {
                    Writes::Of(bytes) => bytes,
                    Writes::Odd => (1 + random.below(300) as usize) * 512,
                };
                let one = one.min(piece - done);
                to.write(at + done as u64, &buffer[done..done + one])?;
                done += one;
            }
            at += piece as u64;
        }
        nanos += clock.now().0 - start.0;
    }
    to.io.flush().map_err(failed("copy", "flush", 0, 0))?;
    Ok(nanos.max(1))
}

/// Compares two volumes byte by byte.
fn same(one: &Volume, other: &Volume, bytes: u64) -> Result<(), Error> {
    let (mut left, mut right) = (vec![0; PIECE], vec![1; PIECE]);
    for at in (0..bytes).step_by(PIECE) {
        one.read(at, &mut left)?;
        other.read(at, &mut right)?;
        if let Some(place) = left.iter().zip(&right).position(|(a, b)| a != b) {
            return Err(Error::Verify {
                device: other.md.device_name(),
                offset: at + place as u64,
                detail: format!("the origin has {:#04x}, the copy {:#04x}", left[place], right[place]),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use udm_io::Domain;

    #[test]
    fn small_but_whole() {
        let folder = tempfile::tempdir().unwrap();
        let domain = Domain::default();
        let setting = Setting {
            domain: &domain,
            quick: true,
            folder: Some(folder.path()),
            fio_engine: None,
            only: None,
            progress: &|_| (),
            command: "udm bench zero-skip".into(),
        };
        let report = match run_with(&setting, Size { image: 24 << 20, files: 300 }) {
            Err(Error::System { what, source }) if what.starts_with("mkfs") => {
                println!("SKIP {what}: {source}");
                return;
            }
            other => other.unwrap(),
        };
        for row in &report.rows {
            println!("{}: {:?} of {:?}", row.row, row.figure, row.baseline);
            assert_ne!(row.verdict, Some("fail"), "{}: {:?}, not {:?}", row.row, row.figure, row.baseline);
        }
        let mapped = |name: &str| report.rows.iter().find(|r| r.row == name).unwrap().figure.unwrap();
        assert_eq!(mapped("plain copy, 64 KiB writes"), 384.0);
        assert!(mapped("skipping, 64 KiB writes") < 300.0, "there were zeroes to skip");
    }
}
