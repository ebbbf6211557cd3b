//! Tables: what is refused is refused with its place, what is taken can be printed, loaded again,
//! made live, and read and written at its ends.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use udm_base::{Errno, SECTOR_SIZE, Sector, Sectors};
use udm_core::{Error, HostOpener, MappedDevice, Registry, StatusKind, SuspendOptions, TableLine, TableSlot};
use udm_io::{BlockingIo, Domain, MemoryDevice, OpFlags};

/// Words of tables.
pub const WORDS: &[&[u8]] =
    &[b"linear", b"striped", b"zero", b"error", b"ram", b"loop", b"\n", b"/dev/mapper/fuzz", b"600:0", b"memory:64 0"];

/// A table of several lines.
pub fn fuzz_table(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(lines) = TableLine::parse_all(&text) else { return };
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
    REGISTRY.get_or_init(|| Registry::new(Domain::default(), udm_targets::TARGETS, host()))
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
