//! The daemon, its devices, and everybody who uses them.

use crate::daemon::{Daemon, Said};
use crate::load;
use crate::options::Options;
use crate::stats::Stats;
use crate::volume::Volume;
use crate::watch::{Actor, Watch, lock};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use udm_sim::Rng;

/// Sectors of a block of the load.
pub const SECTORS: u64 = (crate::content::BLOCK / 512) as u64;

/// What a device is, as far as operations care.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A thin pool, on files for metadata and data.
    Pool {
        /// The file of the metadata.
        metadata: PathBuf,
        /// The file of the data.
        data: PathBuf,
    },
    /// A volume of a pool.
    Thin {
        /// Its number.
        id: u32,
        /// It was made of another.
        snapshot: bool,
    },
    /// A device with snapshots.
    Origin {
        /// The file that it shows.
        file: PathBuf,
    },
    /// One into which a snapshot is being merged, which it shows already.
    Merging {
        /// The file of the origin.
        file: PathBuf,
        /// The file with the snapshot's exceptions.
        cow: PathBuf,
    },
    /// A snapshot.
    Snapshot {
        /// The file with its exceptions.
        cow: PathBuf,
    },
    /// One that only passes on, with nothing to know about it.
    Plain,
}

/// A device of the daemon.
pub struct Device {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// The name of the device that it stands on, or needs.
    pub on: Option<String>,
    /// Its table. Who has the lock may change it, suspend it, or remove the device.
    pub table: Mutex<String>,
    /// Its parts, one for each writer.
    pub volumes: Mutex<Vec<Arc<Volume>>>,
}

/// Everything.
pub struct World {
    /// As the command line says.
    pub options: Options,
    /// Where files are.
    pub root: PathBuf,
    /// The daemon.
    pub daemon: Daemon,
    /// Who does what.
    pub watch: Arc<Watch>,
    /// What was done.
    pub stats: Stats,
    /// Read by operations, written by those that need to be alone: a kill, a replacement.
    pub era: RwLock<()>,
    devices: Mutex<Vec<Arc<Device>>>,
    writers: Mutex<Vec<(Arc<Volume>, JoinHandle<()>)>>,
    failure: Mutex<Option<String>>,
    failed: AtomicBool,
    numbers: AtomicU64,
}

impl World {
    /// A world in `root`, without devices.
    pub fn new(options: Options, root: PathBuf) -> Arc<Self> {
        let daemon = Daemon::new(options.udm.clone(), root.join("d"));
        Arc::new(Self {
            options,
            root,
            daemon,
            watch: Arc::default(),
            stats: Stats::default(),
            era: RwLock::new(()),
            devices: Mutex::default(),
            writers: Mutex::default(),
            failure: Mutex::default(),
            failed: AtomicBool::new(false),
            numbers: AtomicU64::new(0),
        })
    }

    /// Something is wrong: the first that says so is believed.
    pub fn fail(&self, text: impl Into<String>) {
        lock(&self.failure).get_or_insert_with(|| text.into());
        self.failed.store(true, Ordering::SeqCst);
    }

    /// Whether something is.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// What.
    pub fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    /// A number that nobody else has.
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// A file of zeroes beneath the daemon.
    pub fn file(&self, name: &str, bytes: u64) -> Result<PathBuf, String> {
        let path = self.root.join(name);
        let made = std::fs::File::create(&path).and_then(|file| file.set_len(bytes));
        made.map(|()| path.clone()).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Deletes files of devices that have gone.
    pub fn delete<P: AsRef<Path>>(&self, files: impl IntoIterator<Item = P>) -> Result<(), String> {
        files
            .into_iter()
            .try_for_each(|file| std::fs::remove_file(&file).map_err(|e| format!("{}: {e}", file.as_ref().display())))
    }

    /// Makes a file longer.
    pub fn lengthen(&self, path: &Path, bytes: u64) -> Result<(), String> {
        let file = std::fs::File::options().write(true).open(path);
        file.and_then(|file| file.set_len(bytes)).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// The devices that are there.
    pub fn devices(&self) -> Vec<Arc<Device>> {
        lock(&self.devices).clone()
    }

    /// One that is such, by chance.
    pub fn pick(&self, rng: &mut Rng, is: impl Fn(&Device) -> bool) -> Option<Arc<Device>> {
        let all: Vec<_> = self.devices().into_iter().filter(|device| is(device)).collect();
        all.get(rng.below(all.len() as u64) as usize).cloned()
    }

    /// Any, by chance; one time in three one that others stand on.
    pub fn any(&self, rng: &mut Rng) -> Option<Arc<Device>> {
        let is_beneath =
            |device: &Device| matches!(device.kind, Kind::Pool { .. } | Kind::Origin { .. } | Kind::Merging { .. });
        let beneath = rng.one_in(3);
        self.pick(rng, |device| is_beneath(device) == beneath)
    }

    /// Devices that stand on another.
    pub fn standing_on(&self, name: &str) -> Vec<Arc<Device>> {
        let mut devices = self.devices();
        devices.retain(|device| device.on.as_deref() == Some(name));
        devices
    }

    /// Whether somebody is at the table of a device, or of one that it stands on.
    pub fn is_held(&self, name: &str) -> bool {
        let Some(device) = self.device(name) else { return true };
        let held = self.hold(&device).is_none();
        held || device.on.as_ref().is_some_and(|on| self.is_held(on))
    }

    /// A device by its name.
    pub fn device(&self, name: &str) -> Option<Arc<Device>> {
        self.devices().into_iter().find(|device| device.name == name)
    }

    /// The right to a device's table, if nobody has it and the device is still there.
    pub fn hold<'a>(&self, device: &'a Arc<Device>) -> Option<MutexGuard<'a, String>> {
        let table = match device.table.try_lock() {
            Ok(table) => table,
            Err(TryLockError::Poisoned(table)) => table.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.devices().iter().any(|other| Arc::ptr_eq(other, device)).then_some(table)
    }

    /// Makes a device known, which the daemon has.
    pub fn add(&self, name: &str, kind: Kind, on: Option<&str>, table: &str, volumes: Vec<Arc<Volume>>) -> Arc<Device> {
        let device = Arc::new(Device {
            name: name.to_owned(),
            kind,
            on: on.map(str::to_owned),
            table: Mutex::new(table.to_owned()),
            volumes: Mutex::new(volumes),
        });
        lock(&self.devices).push(device.clone());
        device
    }

    /// Forgets a device.
    pub fn forget(&self, device: &Arc<Device>) {
        lock(&self.devices).retain(|other| !Arc::ptr_eq(other, device));
    }

    /// A device is of another kind from now on, with another table; who has it is who says so. Its volumes stay as they
    /// are.
    pub fn become_another(&self, device: &Arc<Device>, kind: Kind, table: &str) {
        self.forget(device);
        let volumes = lock(&device.volumes).clone();
        self.add(&device.name, kind, device.on.as_deref(), table, volumes);
    }

    /// Starts the writer of a volume.
    pub fn start(self: &Arc<Self>, volume: &Arc<Volume>) {
        let (world, volume) = (self.clone(), volume.clone());
        let seed = self.options.seed ^ self.number().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let actor = self.watch.actor(format!("load of {}", volume.name));
        let served = volume.clone();
        let thread = std::thread::spawn(move || {
            if let Err(text) = load::run(&world, &served, &actor, seed) {
                world.fail(text);
            }
            // Whoever waits for its rest shall not wait for ever.
            served.leave();
            served.goes_on();
        });
        lock(&self.writers).push((volume, thread));
    }

    /// Has the writers of these volumes leave, and waits until they have.
    pub fn stop(&self, volumes: &[Arc<Volume>]) {
        volumes.iter().for_each(|volume| volume.leave());
        let mut left = Vec::new();
        lock(&self.writers).retain_mut(|(volume, thread)| {
            let leaves = volumes.iter().any(|other| Arc::ptr_eq(other, volume));
            if leaves {
                left.push(std::mem::replace(thread, std::thread::spawn(|| {})));
            }
            !leaves
        });
        left.into_iter().for_each(|thread| drop(thread.join()));
    }

    /// Every volume that has a writer.
    pub fn volumes(&self) -> Vec<Arc<Volume>> {
        lock(&self.writers).iter().map(|(volume, _)| volume.clone()).collect()
    }
}

/// One run of one operation.
pub struct Turn<'a> {
    /// Everything.
    pub world: &'a Arc<World>,
    /// Chance.
    pub rng: &'a mut Rng,
    /// The line in the list of what is under way.
    pub actor: &'a Actor,
    /// The operation.
    pub name: &'static str,
}

impl Turn<'_> {
    /// Runs a command.
    pub fn run(&self, words: &[&str]) -> Result<Said, String> {
        let line = words.join(" ");
        self.actor.begin(format!("{}: udm {line}", self.name));
        let begun = Instant::now();
        let said = self.world.daemon.run(words).map_err(|e| format!("udm {line}: {e}"));
        self.world.stats.command(self.name, &line, begun.elapsed());
        self.actor.begin(self.name);
        said
    }

    /// Runs a command that has to succeed. What it printed.
    pub fn ok(&self, words: &[&str]) -> Result<String, String> {
        let said = self.run(words)?;
        if said.ok { Ok(said.out) } else { Err(self.failed(words, &said)) }
    }

    /// Runs a command that may be refused with one of these errors; whether it succeeded.
    pub fn may(&self, words: &[&str], errors: &[&str]) -> Result<bool, String> {
        Ok(self.said(words, errors)?.is_some())
    }

    /// As [`may`](Self::may): what it printed, if it succeeded.
    pub fn said(&self, words: &[&str], errors: &[&str]) -> Result<Option<String>, String> {
        let said = self.run(words)?;
        if said.ok {
            return Ok(Some(said.out));
        }
        if errors.iter().any(|error| said.err.contains(error)) {
            self.world.stats.refused(self.name, said.error());
            return Ok(None);
        }
        Err(self.failed(words, &said))
    }

    /// A command was refused that must not be. Told at once: who returns with it may have to wait for what that left
    /// undone.
    fn failed(&self, words: &[&str], said: &Said) -> String {
        let text = format!("udm {}: {}", words.join(" "), said.err.trim());
        self.world.fail(format!("{}: {text}", self.name));
        text
    }

    /// Runs a command until it is not refused with one of these errors.
    pub fn until(&self, words: &[&str], errors: &[&str]) -> Result<(), String> {
        let line = words.join(" ");
        while !self.may(words, errors)? {
            self.actor.begin(format!("{}: again and again udm {line}", self.name));
            std::thread::sleep(Duration::from_millis(10));
            if self.world.has_failed() {
                return Err("another has failed".to_owned());
            }
        }
        Ok(())
    }

    /// Removes devices, those above first, each as soon as nobody has it open.
    pub fn remove<S: AsRef<str>>(&self, devices: impl IntoIterator<Item = S>) -> Result<(), String> {
        devices
            .into_iter()
            .try_for_each(|device| self.until(&["remove", device.as_ref()], &["Device or resource busy"]))
    }

    /// Does nothing for up to so many milliseconds.
    pub fn pause(&mut self, most: u64) {
        self.actor.begin(format!("{}: a pause", self.name));
        std::thread::sleep(Duration::from_millis(self.rng.below(most)));
    }

    /// Waits until the load of every device has gone on, but for those with these names, and those that somebody else
    /// stops.
    pub fn others_go_on(&self, while_what: &str, except: &[&str]) -> Result<(), String> {
        const PROGRESS: u64 = 20;
        let mut behind = self.world.volumes();
        behind.retain(|volume| !except.contains(&volume.name.as_str()));
        let before: Vec<u64> = behind.iter().map(|volume| volume.answers()).collect();
        let mut behind: Vec<_> = behind.into_iter().zip(before).collect();
        self.wait(&format!("others go on {while_what}"), || {
            behind.retain(|(volume, before)| {
                volume.answers() < before + PROGRESS && !volume.is_wanted() && !self.world.is_held(&volume.name)
            });
            behind.is_empty()
        })
    }

    /// Waits for something that has to come.
    pub fn wait(&self, what: &str, mut holds: impl FnMut() -> bool) -> Result<(), String> {
        self.actor.begin(format!("{}: waits until {what}", self.name));
        while !holds() {
            std::thread::sleep(Duration::from_millis(10));
            if self.world.has_failed() {
                return Err("another has failed".to_owned());
            }
        }
        self.actor.begin(self.name);
        Ok(())
    }
}
