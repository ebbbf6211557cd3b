//! PostgreSQL with its data on ext4 on a thin volume, by way of a node and a loop device: pgbench runs; a snapshot that
//! is taken under load is a second server's; and after the daemon was killed under load, nothing is missing of which a
//! client was told that it is committed.
//!
//! `UDM_PG_SECONDS` is how long to go on killing (one round without it), `UDM_PG_SEED` the times at which that happens.

mod client;
mod load;
mod server;

use crate::disks::Disk;
use crate::programs::{installed_as, outcome, run};
use crate::udm::{Udm, wait_until};
use load::{Known, Load, check, check_indexes, data};
use server::{Postgres, Server};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Of the volume, and of the pool beneath.
const SECTORS: u64 = 2 << 20;
const PORT: u16 = 5432;
const SNAPSHOT_PORT: u16 = 5433;
const SETTINGS: &str = "max_connections = 20\nshared_buffers = 16MB\nmax_wal_size = 64MB\ncheckpoint_timeout = 30s\n";

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text:?}: expected a number")))
}

/// A file system that is mounted, until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    #[track_caller]
    fn new(device: &Path, dir: PathBuf) -> Self {
        fs::create_dir_all(&dir).expect("a directory to mount on");
        run("mount", &[device.to_str().expect("text"), dir.to_str().expect("text")]);
        Self(dir)
    }

    fn unmount(&self) -> bool {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::empty()).is_ok()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.unmount() {
            let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Where it all happens. Fields go in this order: the daemon ends before what its devices stand on.
struct Stage {
    udm: Udm,
    disk: Disk,
    /// For mounts and sockets, which another user has to reach.
    open: tempfile::TempDir,
    postgres: Postgres,
}

impl Stage {
    /// `None`, and said so, where it cannot be.
    fn new() -> Option<Self> {
        let tools = ["mkfs.ext4", "e2fsck"].iter().all(|program| installed_as(program, "-V"));
        let postgres = Postgres::find().filter(|_| tools)?;
        let (udm, disk) = (Udm::new(), Disk::of_build());
        let probe = udm.run(&["create", "probe", "--node=loop", "--table", "0 8 zero"]);
        if probe.code != 0 {
            println!("SKIP {}", probe.stderr.trim());
            return None;
        }
        udm.ok(&["remove", "probe"]);
        let open = tempfile::Builder::new().prefix("udm-pg.").tempdir_in("/tmp").expect("a directory in /tmp");
        fs::set_permissions(open.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        fs::create_dir(open.path().join("sockets")).expect("it is empty");
        chown(open.path().join("sockets"), Some(postgres.uid), Some(postgres.gid)).expect("root may");
        Some(Self { udm, disk, open, postgres })
    }

    fn sockets(&self) -> PathBuf {
        self.open.path().join("sockets")
    }

    fn node(&self, name: &str) -> PathBuf {
        self.udm.nbd_socket().with_file_name("dev").join(name)
    }

    fn mount(&self, name: &str) -> Mounted {
        Mounted::new(&self.node(name), self.open.path().join(name))
    }

    /// A thin volume with an empty file system.
    fn volume(&self) {
        let (metadata, data) = (self.disk.file("metadata", 8 << 20), self.disk.file("data", SECTORS * 512));
        self.udm.create("metadata", &format!("0 {} linear {metadata} 0", (8 << 20) / 512));
        self.udm.create("data", &format!("0 {SECTORS} linear {data} 0"));
        self.udm.create("pool", &format!("0 {SECTORS} thin-pool /dev/mapper/metadata /dev/mapper/data 128 0"));
        self.udm.ok(&["message", "pool", "0", "create_thin 0"]);
        self.thin("vol", 0);
        run("mkfs.ext4", &["-q", self.node("vol").to_str().expect("text")]);
    }

    fn thin(&self, name: &str, id: u64) {
        let table = format!("0 {SECTORS} thin /dev/mapper/pool {id}");
        self.udm.ok(&["create", name, "--node=loop", "--table", &table]);
    }

    /// A database with what the load needs.
    fn database(&self, mounted: &Mounted) -> Server {
        let data = data(&mounted.0);
        fs::DirBuilder::new().mode(0o700).create(&data).expect("the file system is empty");
        chown(&data, Some(self.postgres.uid), Some(self.postgres.gid)).expect("root may");
        let name = data.to_str().expect("text");
        self.postgres.run("initdb", &["-D", name, "-U", "postgres", "-A", "trust", "-k", "--no-sync"]);
        let settings = data.join("postgresql.conf");
        let text = fs::read_to_string(&settings).expect("initdb makes it") + SETTINGS;
        fs::write(&settings, text).expect("root may");
        run("sync", &["-f", name]);
        let server = Server::start(&self.postgres, &data, &self.sockets(), PORT);
        let made = server.pgbench(&["-i", "-q", "-s", "1"]).output().expect("it is installed");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        server.client().and_then(|mut client| client.query(load::TABLES)).expect("an empty database");
        server
    }

    /// A snapshot of the volume as it is, under load, is what a power cut would leave: a second server recovers from
    /// it. What was committed before is in it, and nothing that was begun after.
    fn check_snapshot(&self, known: &Known, id: u64) {
        let told = known.told();
        self.udm.ok(&["suspend", "vol"]);
        self.udm.ok(&["message", "pool", "0", &format!("create_snap {id} 0")]);
        self.udm.ok(&["resume", "vol"]);
        let sent = known.sent();
        self.thin("snap", id);
        let mounted = self.mount("snap");
        let data = data(&mounted.0);
        fs::remove_file(data.join("postmaster.pid")).expect("of the server that goes on");
        let server = Server::start(&self.postgres, &data, &self.sockets(), SNAPSHOT_PORT);
        assert!(server.log().contains("redo starts at"), "{}", server.log());
        check(&server, &told, &sent);
        check_indexes(&server);
        server.shut_down();
        self.postgres.run("pg_checksums", &["--check", "-D", data.to_str().expect("text")]);
        drop(mounted);
        run("e2fsck", &["-f", "-n", self.node("snap").to_str().expect("text")]);
        self.udm.ok(&["remove", "snap"]);
        self.udm.ok(&["message", "pool", "0", &format!("delete {id}")]);
    }

    /// The daemon is killed under load; the next one has the volume again, and a server that goes on.
    fn kill_and_recover(&self, server: Server, load: Load, mounted: Mounted, known: &Known) -> (Server, Mounted) {
        self.udm.kill();
        server.abort();
        load.end();
        wait_until("the dead file system can be unmounted", || mounted.unmount());
        std::mem::forget(mounted);
        // The first command starts the next daemon.
        assert!(self.udm.ok(&["node"]).starts_with("vol\tloop\t"));
        let node = self.node("vol");
        // Its exit code is 1 when it has done what every crash needs, such as freeing what was removed while open.
        let (_, text) = outcome("e2fsck", &["-f", "-p", node.to_str().expect("text")]);
        assert!(!text.contains("UNEXPECTED INCONSISTENCY"), "{text}");
        run("e2fsck", &["-f", "-n", node.to_str().expect("text")]);
        let mounted = self.mount("vol");
        let server = Server::start(&self.postgres, &data(&mounted.0), &self.sockets(), PORT);
        let there = check(&server, &known.told(), &known.sent());
        known.go_on_from(there);
        (server, mounted)
    }
}

#[test]
fn nothing_committed_is_lost_when_the_daemon_is_killed() {
    let Some(stage) = Stage::new() else { return };
    let seed = setting("UDM_PG_SEED").unwrap_or(1).max(1);
    let begun = Instant::now();
    let until = begun + Duration::from_secs(setting("UDM_PG_SECONDS").unwrap_or(0));
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    stage.volume();
    let mut mounted = stage.mount("vol");
    let mut server = stage.database(&mounted);
    let ran = server.pgbench(&["-n", "-c", "2", "-t", "50"]).output().expect("it is installed");
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && text.contains("100/100"), "{text}{}", String::from_utf8_lossy(&ran.stderr));

    let known = Known::new();
    let mut round = 1;
    loop {
        let load = Load::begin(&server, &known);
        let before = known.told().iter().sum::<u64>();
        let (first, second) = (1 + random.below(200), 1 + random.below(200));
        wait_until("there is a load", || known.told().iter().sum::<u64>() > before + first);
        stage.check_snapshot(&known, round);
        let before = known.told().iter().sum::<u64>();
        wait_until("the load goes on", || known.told().iter().sum::<u64>() > before + second);
        std::thread::sleep(Duration::from_millis(random.below(50)));
        (server, mounted) = stage.kill_and_recover(server, load, mounted, &known);
        if Instant::now() >= until {
            break;
        }
        println!("round {round} of seed {seed}: {:?} transactions, {} s", known.told(), begun.elapsed().as_secs());
        round += 1;
    }
    check_indexes(&server);
    server.shut_down();
    stage.postgres.run("pg_checksums", &["--check", "-D", data(&mounted.0).to_str().expect("text")]);
    drop(mounted);
    for name in ["vol", "pool", "data", "metadata"] {
        stage.udm.ok(&["remove", name]);
    }
    let checked = stage.udm.run(&["thin", "check", stage.disk.path("metadata").to_str().expect("text")]);
    assert_eq!(checked.code, 0, "{}", checked.stderr);
}
