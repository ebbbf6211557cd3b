//! An exception store that goes from udm to the kernel and back, and merges that one of them begins and the other ends.

use crate::guest;
use crate::host::{Host, difference};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use udm_sim::Rng;
use udm_sim::golden::{pattern, sha256};

/// The origin's sectors: no whole number of chunks.
const SECTORS: u64 = 32768 + 12;
const COW_SECTORS: u64 = 65536;

struct Disks {
    dir: tempfile::TempDir,
    origin: PathBuf,
    cow: PathBuf,
    kind: String,
    chunk: u64,
}

/// What must be read, and what was done to get there.
struct Model {
    origin: Vec<u8>,
    snapshot: Vec<u8>,
    generation: u32,
}

/// A write: to the snapshot or to the origin.
struct Put {
    snapshot: bool,
    sector: u64,
    count: u64,
    generation: u32,
}

impl Put {
    fn bytes(&self) -> Vec<u8> {
        pattern(1 + u16::from(self.snapshot), self.sector, self.count, self.generation)
    }
}

impl Model {
    fn apply(&mut self, put: &Put) {
        let volume = if put.snapshot { &mut self.snapshot } else { &mut self.origin };
        let bytes = put.bytes();
        volume[put.sector as usize * 512..][..bytes.len()].copy_from_slice(&bytes);
    }

    fn random(&mut self, rng: &mut Rng, chunk: u64, many: usize) -> Vec<Put> {
        (0..many)
            .map(|_| {
                let count = match rng.below(3) {
                    0 => 1 + rng.below(8),
                    1 => chunk,
                    _ => 1 + rng.below(chunk * 5),
                };
                let sector = rng.below(SECTORS);
                let sector = if rng.one_in(2) { sector / chunk * chunk } else { sector };
                self.generation += 1;
                let snapshot = rng.one_in(2);
                let count = count.min(SECTORS - sector);
                let put = Put { snapshot, sector, count, generation: self.generation };
                self.apply(&put);
                put
            })
            .collect()
    }

    fn sums(&self) -> [(String, String); 2] {
        [("origin".into(), sha256(&self.origin)), ("snapshot".into(), sha256(&self.snapshot))]
    }
}

pub(crate) fn there_and_back(kind: &str, chunk: u64, seed: u64) {
    println!("-- a store {kind} with chunks of {chunk} sectors, seed {seed}");
    let mut rng = Rng::new(seed);
    let disks = Disks::new(kind, chunk);
    let origin = pattern(1, 0, SECTORS, 0);
    std::fs::write(&disks.origin, &origin).unwrap();
    let mut model = Model { snapshot: origin.clone(), origin, generation: 0 };
    by_udm("made", &disks, &mut model, &mut rng, 60);
    by_kernel("first", &disks, &mut model, &mut rng, 40);
    by_udm("back", &disks, &mut model, &mut rng, 60);
    by_kernel("second", &disks, &mut model, &mut rng, 0);

    // The kernel begins to merge, udm ends it.
    kernel_merges_a_part(&disks, &model);
    let host = Host::new("half merged by the kernel");
    devices(&host, &disks, &disks.origin.display().to_string());
    host.create("snapshot", &disks.table("snapshot", "/dev/mapper/base", "/dev/mapper/cow"));
    expect(&host, "snapshot", &model.snapshot, "a store that the kernel merged half of");
    host.udm(&["remove", "snapshot"]);
    host.create("merge", &disks.table("snapshot-merge", "/dev/mapper/base", "/dev/mapper/cow"));
    until_merged(&host);
    model.origin.clone_from(&model.snapshot);
    expect(&host, "merge", &model.origin, "merged to the end");
    host.udm(&["remove", "merge"]);
    expect(&host, "base", &model.origin, "the origin after the merge");
    drop(host);

    // udm begins to merge, the kernel ends it.
    // Many chunks: udm merges some hundred at a time, and stops between.
    by_udm("used again", &disks, &mut model, &mut rng, 700);
    if udm_merges_a_part(&disks, &model) {
        kernel_merges_the_rest(&disks, &model);
    }
}

impl Disks {
    fn new(kind: &str, chunk: u64) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (origin, cow) = (dir.path().join("origin"), dir.path().join("cow"));
        std::fs::File::create(&cow).and_then(|file| file.set_len(COW_SECTORS * 512)).unwrap();
        Self { dir, origin, cow, kind: kind.into(), chunk }
    }

    fn table(&self, target: &str, origin: &str, cow: &str) -> String {
        format!("0 {SECTORS} {target} {origin} {cow} {} {}", self.kind, self.chunk)
    }

    fn kernel(&self, what: &str, script: &str) -> String {
        let head = format!(
            "modprobe dm-snapshot\nmodprobe dm-delay\n\
             dmsetup create base --table '0 {SECTORS} linear /dev/vda 0'\n\
             snapshot() {{ dmsetup create snapshot --table '{}'; }}\n\
             origin() {{ dmsetup create origin --table '0 {SECTORS} snapshot-origin /dev/mapper/base'; }}\n\
             sums() {{ local n; for n; do echo \"volume $n $(digest /dev/mapper/$n)\"; done; }}\n\
             merged() {{ dmsetup status --noflush merge | awk '{{ split($4, a, \"/\"); exit !(a[1] == $5 && $5 > 0) }}'; }}\n",
            self.table("snapshot", "/dev/mapper/base", "/dev/vdb")
        );
        guest::run(self.dir.path(), what, &[&self.origin, &self.cow], &(head + script))
    }
}

fn devices(host: &Host, disks: &Disks, origin: &str) {
    host.create("base", &format!("0 {SECTORS} linear {origin} 0"));
    host.create("cow", &format!("0 {COW_SECTORS} linear {} 0", disks.cow.display()));
}

fn expect(host: &Host, name: &str, bytes: &[u8], what: &str) {
    let wrong = difference(&host.read(name, bytes.len()), bytes);
    assert!(wrong.is_none(), "{what}: {name}: {}", wrong.unwrap());
}

fn by_udm(what: &str, disks: &Disks, model: &mut Model, rng: &mut Rng, many: usize) {
    let host = Host::new(what);
    devices(&host, disks, &disks.origin.display().to_string());
    host.create("snapshot", &disks.table("snapshot", "/dev/mapper/base", "/dev/mapper/cow"));
    host.create("origin", &format!("0 {SECTORS} snapshot-origin /dev/mapper/base"));
    let both = |model: &Model, when: &str| {
        expect(&host, "origin", &model.origin, &format!("{what}, {when}"));
        expect(&host, "snapshot", &model.snapshot, &format!("{what}, {when}"));
    };
    both(model, "opened");
    for put in model.random(rng, disks.chunk, many) {
        host.write(if put.snapshot { "snapshot" } else { "origin" }, put.sector, &put.bytes());
    }
    both(model, "written");
    println!("{}", host.status("snapshot"));
    for name in ["snapshot", "origin", "cow", "base"] {
        host.udm(&["remove", name]);
    }
}

fn by_kernel(what: &str, disks: &Disks, model: &mut Model, rng: &mut Rng, many: usize) {
    let opened = model.sums();
    let mut script = String::from("snapshot\norigin\nsums origin snapshot\necho written\n");
    for put in model.random(rng, disks.chunk, many) {
        let (name, volume) = if put.snapshot { ("snapshot", 2) } else { ("origin", 1) };
        writeln!(script, "put /dev/mapper/{name} {volume} {} {} {}", put.sector, put.count, put.generation).unwrap();
    }
    script += "sums origin snapshot\ndmsetup status snapshot\ndmsetup remove snapshot\ndmsetup remove origin\n";
    let said = disks.kernel(what, &script);
    let (before, after) = said.split_once("\nwritten\n").expect("both halves");
    guest::compare(&format!("{what}, opened"), before, opened);
    guest::compare(&format!("{what}, written"), after, model.sums());
    println!("{}", after.lines().find(|line| line.contains("snapshot ")).unwrap_or_default());
}

/// Merges over an origin that is slow to write, and stops when a part is done.
fn kernel_merges_a_part(disks: &Disks, model: &Model) {
    let script = format!(
        "dmsetup create slow --table '0 {SECTORS} delay /dev/mapper/base 0 0 /dev/mapper/base 0 30'\n\
         dmsetup create merge --table '{}'\n\
         first=$(dmsetup status --noflush merge | cut -d ' ' -f 4); first=${{first%/*}}\n\
         while :; do now=$(dmsetup status --noflush merge | cut -d ' ' -f 4); now=${{now%/*}}\n\
         ((now * 10 > first * 7)) || break; done\n\
         dmsetup suspend merge\ndmsetup status merge\n! merged\ndmsetup remove merge\ndmsetup remove slow\n\
         snapshot\nsums snapshot\ndmsetup remove snapshot\n",
        disks.table("snapshot-merge", "/dev/mapper/slow", "/dev/vdb")
    );
    let said = disks.kernel("merges a part", &script);
    guest::compare("merges a part", &said, [("snapshot".into(), sha256(&model.snapshot))]);
    println!("{}", said.lines().find(|line| line.contains("snapshot-merge")).unwrap_or_default());
}

fn kernel_merges_the_rest(disks: &Disks, model: &Model) {
    let script = format!(
        "snapshot\nsums snapshot\ndmsetup remove snapshot\n\
         dmsetup create merge --table '{}'\nuntil merged; do sleep 0.1; done\nsums merge\n\
         dmsetup remove merge\nsums base\n",
        disks.table("snapshot-merge", "/dev/mapper/base", "/dev/vdb")
    );
    let said = disks.kernel("merges the rest", &script);
    let names = ["snapshot", "merge", "base"];
    guest::compare("merges the rest", &said, names.map(|name| (name.into(), sha256(&model.snapshot))));
}

/// Chunks that are not merged yet, as sectors; nothing when the status does not say.
fn left(status: &str) -> Option<u64> {
    let words: Vec<_> = status.split(' ').collect();
    let allocated: u64 = words.get(3)?.split('/').next()?.parse().ok()?;
    Some(allocated - words.get(4)?.parse::<u64>().ok()?)
}

fn until_merged(host: &Host) {
    crate::common::until("the store is merged", || left(&host.status("merge")) == Some(0));
}

/// A server of the origin that is slow to write.
struct Slow(Child);

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Begins to merge, and stops when a part is done; without nbdkit, says so.
fn udm_merges_a_part(disks: &Disks, model: &Model) -> bool {
    let socket = tempfile::Builder::new().prefix("udm-lab-").tempdir_in("/tmp").unwrap();
    let path = socket.path().join("s");
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--filter=delay", "--unix"]).arg(&path);
    command.arg("file").arg(&disks.origin).arg("wdelay=100ms").stdin(Stdio::null());
    let Ok(child) = command.spawn() else {
        println!("SKIP a merge that udm begins: nbdkit is not installed");
        return false;
    };
    let _slow = Slow(child);
    crate::common::until("nbdkit listens", || path.exists());
    let host = Host::new("merges a part");
    devices(&host, disks, &format!("nbd+unix:///?socket={}", path.display()));
    host.create("snapshot", &disks.table("snapshot", "/dev/mapper/base", "/dev/mapper/cow"));
    let all = left(&host.status("snapshot")).expect("a count");
    host.udm(&["remove", "snapshot"]);
    host.create("merge", &disks.table("snapshot-merge", "/dev/mapper/base", "/dev/mapper/cow"));
    crate::common::until("some of it is merged", || left(&host.status("merge")).is_some_and(|left| left < all));
    host.udm(&["suspend", "merge"]);
    let status = host.status("merge");
    println!("{status}");
    assert!(left(&status).is_some_and(|left| left > 0 && left < all), "a part of {all}: {status}");
    host.udm(&["remove", "merge"]);
    host.create("snapshot", &disks.table("snapshot", "/dev/mapper/base", "/dev/mapper/cow"));
    expect(&host, "snapshot", &model.snapshot, "a store that udm merged half of");
    true
}
