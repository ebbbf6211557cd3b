//! Devices as a record names them, and the few commands that records consist of.

use crate::record::commands;
use crate::rig::{Rig, resume, suspend};
use std::path::Path;
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_core::{MappedDevice, StatusKind, TableLine, TableSlot};
use udm_io::{BlockingIo, Limits, Op, OpFlags};
use udm_sim::golden::{Record, pattern, sha256};
use udm_testing::eventually;

pub(crate) struct World {
    name: String,
    rig: Rig,
}

impl World {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), rig: Rig::default() }
    }

    /// A disk with this content, `/dev/mapper/NAME` in tables.
    pub(crate) fn disk(&self, name: &str, content: Vec<u8>) {
        let limits = Limits { discard_granularity: 512, ..Limits::default() };
        let disk = self.rig.disk_with(&format!("/dev/mapper/{name}"), content.len() as u64 / 512, limits);
        if content.iter().any(|b| *b != 0) {
            let io = BlockingIo::new(&self.rig.domain, disk).unwrap();
            io.write(Sector::ZERO, &content, OpFlags::NONE).unwrap();
        }
    }

    fn device(&self, name: &str) -> Arc<MappedDevice> {
        self.rig.registry.by_name(name).unwrap_or_else(|| panic!("{}: no device {name}", self.name))
    }

    fn io(&self, name: &str) -> BlockingIo {
        match self.rig.registry.by_name(name) {
            Some(md) => self.rig.io(&md),
            None => {
                let dev = self.rig.named(&format!("/dev/mapper/{name}"));
                BlockingIo::new(&self.rig.domain, dev.unwrap_or_else(|| panic!("no device {name}"))).unwrap()
            }
        }
    }

    /// Does a command of a record. The error is for the reader.
    pub(crate) fn run(&self, words: &[&str]) -> Result<(), String> {
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let told = |e: udm_core::Error| e.to_string();
        match words {
            ["dmsetup", "create", name, "--table", ..] => {
                if ["snap", "merge"].contains(name) {
                    // Taken up again, or merged: the record does not say that what was there is removed before.
                    for md in ["org", "snap", "merge"].iter().filter_map(|name| self.rig.registry.by_name(name)) {
                        self.rig.registry.remove(&md, false).map_err(told)?;
                    }
                }
                let md = self.rig.registry.create(name, "", None).map_err(told)?;
                self.load(&md, &words[4..])?;
                resume(&md);
            }
            ["dmsetup", "load", name, "--table", ..] => self.load(&self.device(name), &words[4..])?,
            ["dmsetup", "message", name, "0", ..] => {
                self.device(name).message(Sector::ZERO, &words[4..]).map_err(told)?;
            }
            ["dmsetup", "suspend", name] => suspend(&self.device(name)),
            ["dmsetup", "resume", name] => resume(&self.device(name)),
            ["dmsetup", "remove", name] => {
                self.rig.registry.remove(&self.device(name), false).map_err(told)?;
            }
            ["put", path, ..] => {
                let io = self.io(path.rsplit('/').next().unwrap());
                let (volume, sector, count, generation) = (number(2), number(3), number(4), number(5));
                // As dd writes it: 64 KiB at a time, to the first error.
                for at in (sector..sector + count).step_by(128) {
                    let bytes = pattern(volume as u16, at, 128.min(sector + count - at), generation as u32);
                    io.write(Sector::new(at), &bytes, OpFlags::NONE).map_err(|status| format!("{status:?}"))?;
                }
            }
            ["blkdiscard", "-o", _, "-l", _, path] => {
                let io = self.io(path.rsplit('/').next().unwrap());
                let (sector, sectors) = (Sector::new(number(2) / 512), Sectors::new(number(4) / 512));
                io.range(Op::Discard, OpFlags::NONE, sector, sectors).map_err(|status| format!("{status:?}"))?;
            }
            ["dd", ..] => {
                self.io("snap").read(Sector::ZERO, &mut [0; 4096]).map_err(|status| format!("{status:?}"))?;
            }
            _ => panic!("{}: what is {words:?}?", self.name),
        }
        Ok(())
    }

    fn load(&self, md: &Arc<MappedDevice>, table: &[&str]) -> Result<(), String> {
        let lines = TableLine::parse_all(table.join(" ").trim_end()).unwrap();
        md.load(&lines, false, Path::new("/")).map_err(|e| e.to_string())
    }

    /// Makes a pool live with the last table of its record, and the volumes that were live at its end.
    pub(crate) fn open_pool(&self, record: &Record) {
        let loads = |words: &Vec<&str>| matches!(words[..3], ["dmsetup", "create" | "load", "pool"]);
        let last = commands(record).rfind(loads).expect("a record makes its pool");
        let create = [&["dmsetup", "create", "pool"], &last[3..]].concat();
        self.run(&create).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        for words in record.lines("table").filter(|words| words[1] != "pool") {
            let created = |command: &Vec<&str>| command[..3] == ["dmsetup", "create", words[1]];
            let table = commands(record).rfind(created);
            let thin = |command: Vec<&str>| self.run(&command).unwrap_or_else(|e| panic!("{}: {e}", self.name));
            match table {
                Some(command) => thin(command),
                None => {
                    let line = format!(
                        "dmsetup create {} --table 0 {} thin /dev/mapper/pool {}",
                        words[1], words[3], words[6]
                    );
                    thin(line.split(' ').collect());
                }
            }
        }
    }

    /// Every volume and every status of a record of which nothing but its end is said.
    pub(crate) fn check_volumes(&self, record: &Record) {
        for words in record.lines("volume") {
            self.check_volume(words[1], words[2].parse().unwrap(), words[3]);
        }
        for words in record.lines("status") {
            self.check_status(words[1], &words[2..].join(" "), usize::MAX);
        }
    }

    /// What is said last of each volume and each status.
    pub(crate) fn check_last(&self, record: &Record) {
        for name in ["org", "snap", "base"] {
            if let Some(words) = record.lines("volume").rfind(|words| words[1] == name) {
                self.check_volume(name, words[2].parse().unwrap(), words[3]);
            }
            if let Some(words) = record.lines("status").rfind(|words| words[1] == name) {
                self.check_status(name, &words[2..].join(" "), usize::MAX);
            }
        }
    }

    /// The checksum that a record of which nothing is left but the origin's device gives of it.
    pub(crate) fn expect_base(&self, record: &Record) {
        let words = record.lines("volume").next_back().expect("a volume");
        self.check_volume("base", words[2].parse().unwrap(), words[3]);
    }

    /// Makes a volume of the pool live that is not. Whether it was not.
    fn made_live(&self, device: &str, sectors: u64) -> bool {
        let id = device.strip_prefix('t').filter(|id| id.parse::<u32>().is_ok());
        let Some(id) = id.filter(|_| self.rig.registry.by_name(device).is_none()) else { return false };
        let line = format!("dmsetup create {device} --table 0 {sectors} thin /dev/mapper/pool {id}");
        self.run(&line.split(' ').collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        true
    }

    /// A volume has this checksum. One of a pool that is not live is made so for it.
    pub(crate) fn check_volume(&self, name: &str, sectors: u64, sha: &str) {
        let thin = name.parse::<u32>().is_ok();
        let device = if thin { format!("t{name}") } else { name.to_owned() };
        let made = self.made_live(&device, sectors);
        let mut bytes = vec![0xaa; sectors as usize * 512];
        let read = self.io(&device).read(Sector::ZERO, &mut bytes);
        assert!(read.is_ok(), "{}: {device}: {read:?}", self.name);
        assert_eq!(sha256(&bytes), sha, "{}: {device}", self.name);
        if made {
            self.run(&["dmsetup", "remove", &device]).unwrap();
        }
    }

    /// A snapshot is made of what is there, and merged: the origin's device shows what the snapshot did, at once and at
    /// the end.
    pub(crate) fn merge(&self, sectors: u64, store: &str, sum: &str) {
        let target = |target: &str| format!("0 {sectors} {target} /dev/mapper/base /dev/mapper/cow {store}");
        let own = format!("0 {sectors} snapshot-origin /dev/mapper/base");
        let top = self.rig.device("top", &own);
        let snap = self.rig.device("snap", &target("snapshot"));
        self.check_volume("snap", sectors, sum);
        suspend(&snap);
        self.rig.reload(&top, &target("snapshot-merge"));
        self.rig.registry.remove(&snap, false).unwrap();
        self.check_volume("top", sectors, sum);
        loop {
            let status = self.status("top");
            let words: Vec<&str> = status.split([' ', '/']).collect();
            assert!(words.len() == 6, "{}: {status}", self.name);
            if words[3] == words[5] {
                break;
            }
            std::thread::yield_now();
        }
        self.rig.reload(&top, &own);
        self.check_volume("top", sectors, sum);
    }

    /// A device's status as the kernel would print it: without the word that only udm's pools have at the end.
    fn status(&self, name: &str) -> String {
        let table = self.device(name).table(TableSlot::Active).unwrap();
        let shown = &table.lines(StatusKind::Info { noflush: false })[0];
        let text = format!("{} {} {} {}", shown.start.get(), shown.len.get(), shown.target, shown.params);
        let text = text.trim_end();
        ["skip_zero_writes", "enable_zero_writes"].iter().find_map(|w| text.strip_suffix(w)).unwrap_or(text).to_owned()
    }

    /// A device has this status: the kernel's. Where the metadata was written here it may take another number of
    /// blocks.
    pub(crate) fn check_status(&self, name: &str, expect: &str, line: usize) {
        let words: Vec<&str> = expect.split(' ').collect();
        let made = self.made_live(name, words[1].parse().unwrap());
        if line == usize::MAX && (words.contains(&"out_of_data_space") || self.name == "needs-check-64k") {
            // The one is found out by the first write that needs a block; the other told of a mapping that it never
            // committed.
            return;
        }
        let mut found = self.status(name);
        if name == "merge" {
            // It takes its time; one that never ends is told by what it has come to.
            eventually(|| {
                found = self.status(name);
                found.trim_end() == expect.trim_end()
            });
        }
        let cut = |text: &str| {
            let mut words: Vec<&str> = text.trim_end().split(' ').collect();
            if words[2] == "thin-pool" && line != usize::MAX {
                // Where the held root lies is up to the writer, too.
                words[4] = "-";
                words[6] = if words[6] == "-" { "-" } else { "held" };
            }
            words.join(" ")
        };
        assert_eq!(cut(&found), cut(expect), "{}: {name}", self.name);
        if made {
            self.run(&["dmsetup", "remove", name]).unwrap();
        }
    }
}
