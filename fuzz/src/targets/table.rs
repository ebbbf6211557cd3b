//! Tables: what is refused is refused with its place, what is taken can be printed, loaded again,
//! made live, sent messages, and read and written at its ends.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use udm_base::{Errno, SECTOR_SIZE, Sector, Sectors};
use udm_core::{Error, HostOpener, MappedDevice, Registry, StatusKind, SuspendOptions, TableLine, TableSlot};
use udm_io::{BlockingIo, Clock, DomainBuilder, MemoryDevice, Nanos, OpFlags};

/// Words of tables.
pub const WORDS: &[&[u8]] = &[
    b"linear",
    b"striped",
    b"zero",
    b"error",
    b"ram",
    b"loop",
    b"delay",
    b"dust",
    b"ebs",
    b"flakey",
    b"switch",
    b"unstriped",
    b"\n",
    b"\n!",
    b"/dev/mapper/fuzz",
    b"600:0",
    b"memory:64 0",
    b"uniform:1ms-5ms",
    b"normal:5ms,1ms",
    b"100bios",
    b"corrupt_bio_byte 1 w 255 0",
    b"addbadblock",
    b"set_region_mappings",
];

/// A table of several lines, and messages: what follows a line's end and `!`.
pub fn fuzz_table(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (text, messages) = text.split_once("\n!").unwrap_or((&text, ""));
    let Ok(lines) = TableLine::parse_all(text) else { return };
    let printed: Vec<String> = lines.iter().map(ToString::to_string).collect();
    assert_eq!(TableLine::parse_all(&printed.join("\n")), Ok(lines.clone()), "what is printed parses to the same");

    let registry = registry();
    // Inputs may run in several threads, each on a device of its own.
    let name = format!("fuzz{:?}", std::thread::current().id());
    let md = registry.create(&name, "", None).expect("no device has this thread's name");
    if load(&md, &lines).is_ok() {
        let table = md.table(TableSlot::Inactive).expect("it was loaded");
        // But for memory, of which there need not be twice as much.
        let again = load(&md, &table.lines(StatusKind::Table));
        assert!(again.is_ok() || again == Err(Errno::ENOMEM), "what `table` prints loads again: {again:?}");
        table.lines(StatusKind::Info { noflush: false });
        md.resume(SuspendOptions::default(), &|| false).expect("a loaded table can be made live");
        touch_ends(registry, &md);
        for message in messages.split("\n!") {
            // Each may be refused, none may do worse.
            let _ = md.message(Sector::ZERO, &message.split_whitespace().collect::<Vec<_>>());
        }
        touch_ends(registry, &md);
    }
    registry.remove(&md, false).expect("nobody holds it");
}

/// Loads a table; the number of the error, whose text has said where.
fn load(md: &Arc<MappedDevice>, lines: &[TableLine]) -> Result<(), Errno> {
    md.load(lines, false, Path::new("/")).map_err(|error| {
        assert!(error.message.starts_with("line "), "an error says where: {}", error.message);
        error.errno
    })
}

/// Reads, writes and reads again the first and the last sector; each may fail, none may do worse.
fn touch_ends(registry: &Registry, md: &Arc<MappedDevice>) {
    let io = BlockingIo::new(registry.domain(), md.clone()).expect("a channel for this thread");
    let last = Sector::new(io.sectors().get() - 1);
    for sector in [Sector::ZERO, last] {
        let mut sector_of = [0; SECTOR_SIZE];
        let _ = io.read(sector, &mut sector_of);
        let _ = io.write(sector, &[7; SECTOR_SIZE], OpFlags::NONE);
        let _ = io.read(sector, &mut sector_of);
    }
    let _ = io.flush();
}

/// One for the whole process: to make one costs more than an input.
fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let clock = Arc::new(Leaping::default());
        let leaping = clock.clone();
        // Nobody waits for a delay of days.
        let domain = DomainBuilder::default().clock(clock).idle(move |timer| leaping.to(timer)).build();
        Registry::new(domain, udm_targets::TARGETS, host())
    })
}

/// A clock that goes on to the next timer whenever somebody would wait for it.
#[derive(Default)]
struct Leaping(AtomicU64);

impl Leaping {
    fn to(&self, timer: Option<Nanos>) {
        match timer {
            Some(at) => drop(self.0.fetch_max(at.0, Ordering::SeqCst)),
            None => std::thread::yield_now(),
        }
    }
}

impl Clock for Leaping {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::SeqCst))
    }
}

/// Any device that a table names is 64 sectors of memory, but for those with "no" in their names.
fn host() -> Box<HostOpener> {
    Box::new(|request| {
        if request.spec.contains("no") {
            return Err(Error::new(Errno::ENOENT, format!("{}: there is none", request.spec)));
        }
        let memory = MemoryDevice::new(Sectors::new(64)).expect("32 KiB of memory");
        Ok(Arc::new(memory))
    })
}
