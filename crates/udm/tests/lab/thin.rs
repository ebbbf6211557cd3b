//! A pool that goes from udm to the kernel, back, and there once more.

use crate::guest;
use crate::host::{Host, difference, thin_check};
use crate::model::{Op, Pool, SECTORS};
use std::fmt::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use udm_sim::Rng;
use udm_sim::golden::{pattern, sha256};

const METADATA_BYTES: u64 = 4 << 20;
const DATA_BYTES: u64 = 192 << 20;

struct Disks {
    dir: tempfile::TempDir,
    metadata: PathBuf,
    data: PathBuf,
    block: u64,
}

impl Disks {
    fn new(block: u64) -> Self {
        // Beside the build, for the emulator wants direct I/O, which not every /tmp has.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let file = |name: &str, bytes: u64| {
            let path = dir.path().join(name);
            std::fs::File::create(&path).and_then(|file| file.set_len(bytes)).unwrap();
            path
        };
        let (metadata, data) = (file("metadata", METADATA_BYTES), file("data", DATA_BYTES));
        Self { dir, metadata, data, block }
    }

    fn table(&self, metadata: &Path, data: &Path) -> String {
        format!("0 {} thin-pool {} {} {} 0", DATA_BYTES / 512, metadata.display(), data.display(), self.block)
    }
}

/// udm makes a pool; the kernel opens it and goes on; udm; the kernel.
pub(crate) fn there_and_back(block: u64, seed: u64) {
    println!("-- blocks of {block} sectors, seed {seed}");
    let disks = Disks::new(block);
    let mut rng = Rng::new(seed);
    let mut pool = Pool::new(block);
    by_udm("made", &disks, &mut pool, &mut rng, 60);
    let marks = Marks::set(&disks.metadata);
    by_kernel("first", &disks, &mut pool, &mut rng, 40);
    marks.check(&disks.metadata);
    by_udm("back", &disks, &mut pool, &mut rng, 60);
    marks.check(&disks.metadata);
    by_kernel("second", &disks, &mut pool, &mut rng, 0);
}

/// Opens what is there, compares it, does more, compares again.
fn by_udm(what: &str, disks: &Disks, pool: &mut Pool, rng: &mut Rng, many: usize) {
    let host = Host::new(what);
    host.create("pool", &disks.table(&disks.metadata, &disks.data));
    let start = |id: u32| host.create(&format!("t{id}"), &format!("0 {SECTORS} thin /dev/mapper/pool {id}"));
    let compare = |pool: &Pool, when: &str| {
        for (id, expect) in &pool.volumes {
            let got = host.read(&format!("t{id}"), expect.len());
            let wrong = difference(&got, expect);
            assert!(wrong.is_none(), "{what}, {when}: volume {id}: {}", wrong.unwrap());
        }
    };
    pool.volumes.keys().copied().for_each(start);
    compare(pool, "opened");
    for op in pool.random(rng, many) {
        let message = |text: &str| drop(host.udm(&["message", "pool", "0", text]));
        match op {
            Op::Create(id) => {
                message(&format!("create_thin {id}"));
                start(id);
            }
            Op::Snap { id, of } => {
                host.udm(&["suspend", &format!("t{of}")]);
                message(&format!("create_snap {id} {of}"));
                host.udm(&["resume", &format!("t{of}")]);
                start(id);
            }
            Op::Delete(id) => {
                host.udm(&["remove", &format!("t{id}")]);
                message(&format!("delete {id}"));
            }
            Op::Put { id, sector, count, generation } => {
                host.write(&format!("t{id}"), sector, &pattern(id as u16, sector, count, generation));
            }
            Op::Zero { id, sector, count } => host.write(&format!("t{id}"), sector, &vec![0; count as usize * 512]),
            Op::Discard { id, sector, count } => host.discard(&format!("t{id}"), sector, count),
        }
    }
    compare(pool, "written");
    println!("{}", host.status("pool"));
    for id in pool.volumes.keys() {
        host.udm(&["remove", &format!("t{id}")]);
    }
    host.udm(&["remove", "pool"]);
    drop(host);
    thin_check(&disks.metadata);
}

fn by_kernel(what: &str, disks: &Disks, pool: &mut Pool, rng: &mut Rng, many: usize) {
    let sums = |pool: &Pool| pool.volumes.iter().map(|(id, b)| (id.to_string(), sha256(b))).collect::<Vec<_>>();
    let mut script = format!(
        "modprobe dm-thin-pool\n\
         dmsetup create pool --table '{}'\n\
         start() {{ dmsetup create t$1 --table \"0 {SECTORS} thin /dev/mapper/pool $1\"; }}\n\
         volumes() {{ local id; for id; do echo \"volume $id $(digest /dev/mapper/t$id)\"; done; }}\n",
        disks.table(Path::new("/dev/vda"), Path::new("/dev/vdb"))
    );
    let ids = |pool: &Pool| pool.volumes.keys().map(u32::to_string).collect::<Vec<_>>().join(" ");
    writeln!(script, "for id in {}; do start $id; done", ids(pool)).unwrap();
    writeln!(script, "volumes {}\necho written", ids(pool)).unwrap();
    let opened = sums(pool);
    for op in pool.random(rng, many) {
        match op {
            Op::Create(id) => writeln!(script, "dmsetup message pool 0 'create_thin {id}'; start {id}"),
            Op::Snap { id, of } => writeln!(
                script,
                "dmsetup suspend t{of}; dmsetup message pool 0 'create_snap {id} {of}'; dmsetup resume t{of}; start {id}"
            ),
            Op::Delete(id) => writeln!(script, "dmsetup remove t{id}; dmsetup message pool 0 'delete {id}'"),
            Op::Put { id, sector, count, generation } => {
                writeln!(script, "put /dev/mapper/t{id} {id} {sector} {count} {generation}")
            }
            Op::Zero { id, sector, count } => writeln!(
                script,
                "dd if=/dev/zero of=/dev/mapper/t{id} bs=512 seek={sector} count={count} oflag=direct conv=notrunc status=none"
            ),
            Op::Discard { id, sector, count } => {
                let (offset, length) = (sector * 512, count * 512);
                writeln!(script, "blkdiscard -o {offset} -l {length} /dev/mapper/t{id}")
            }
        }
        .unwrap();
    }
    writeln!(script, "volumes {}", ids(pool)).unwrap();
    writeln!(script, "dmsetup status pool\nfor id in {}; do dmsetup remove t$id; done", ids(pool)).unwrap();
    writeln!(script, "dmsetup remove pool\nthin_check /dev/vda").unwrap();
    let said = guest::run(disks.dir.path(), what, &[&disks.metadata, &disks.data], &script);
    let (before, after) = said.split_once("\nwritten\n").expect("both halves");
    guest::compare(&format!("{what}, opened"), before, opened);
    guest::compare(&format!("{what}, written"), after, sums(pool));
    println!("{}", after.lines().find(|line| line.contains("thin-pool")).unwrap_or_default());
}

/// Bytes of the superblock that udm knows nothing of: the uuid, and what follows the last field.
struct Marks;

impl Marks {
    const BLOCK: usize = 4096;
    const UUID: std::ops::Range<usize> = 16..32;
    const AFTER: std::ops::Range<usize> = 1024..4096;
    /// What the checksum of a superblock is xored with (dm-thin-metadata.c, kernel 6.12).
    const SALT: u32 = 160_774;

    fn byte(at: usize) -> u8 {
        (at * 7 + 1) as u8
    }

    fn set(metadata: &Path) -> Self {
        let file = std::fs::File::options().read(true).write(true).open(metadata).unwrap();
        let mut block = [0; Self::BLOCK];
        file.read_exact_at(&mut block, 0).unwrap();
        for at in Self::UUID.chain(Self::AFTER) {
            block[at] = Self::byte(at);
        }
        // The kernel's crc32c does not invert at its end.
        let sum = !crc32c::crc32c(&block[4..]) ^ Self::SALT;
        block[..4].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&block, 0).unwrap();
        Self
    }

    fn check(&self, metadata: &Path) {
        let block = std::fs::read(metadata).unwrap();
        for at in Self::UUID.chain(Self::AFTER) {
            assert_eq!(block[at], Self::byte(at), "byte {at} of the superblock did not survive");
        }
    }
}
