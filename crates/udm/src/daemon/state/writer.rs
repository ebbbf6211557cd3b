//! Which parts of the state are written, and when.
//!
//! # The cost of a command
//! Only what it touched is looked at and compared with what was written before: a device, or the exports. A record for
//! each difference goes to the log. Devices that go by themselves, at their last close, are looked for among those with
//! a deferred removal; and [`StateWriter::look_around`] checks some devices in turn, whatever may have changed them.
//!
//! # When it cannot be written
//! A command that could not be recorded is refused before it has done anything: [`StateWriter::ready`] allocates space
//! in the log, and first writes records that are still unwritten. If writing fails all the same, after the command is
//! done, the command says so; no other command that changes something is begun until everything is written.

use super::disk::Directory;
use super::journal::{self, Failed, Journal};
use super::{DeviceState, ExportState, State, VhostUserState};
use crate::daemon::Daemon;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tracing::{error, info, warn};
use udm_base::{DevT, Errno};
use udm_core::{Error, MAJOR};

/// The number of devices that are checked when nothing says that one has changed.
const AROUND: usize = 64;
/// The most that a record takes beside the command's own text: a device's fields.
const RECORD: u64 = 8 << 10;

/// The part of the state that may have changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// The device of that minor number.
    Device(u32),
    Exports,
    Everything,
}

/// The state cannot be written.
#[derive(Clone, Debug)]
pub(crate) struct Unsaved {
    pub(crate) errno: Errno,
    /// The file, and the reason.
    pub(crate) message: String,
}

impl Unsaved {
    /// The error for a command that has not begun.
    pub(crate) fn refusal(&self) -> Error {
        Error::new(self.errno, format!("nothing is done, since it could not be remembered: {}", self.message))
    }

    /// The error for a command that is done.
    pub(crate) fn confession(&self) -> Error {
        let message = format!(
            "it is done, but not remembered: {}. Until that can be written again, a daemon that is killed comes back without \
             it, and nothing else is changed",
            self.message
        );
        Error::new(self.errno, message)
    }
}

/// One change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Record {
    /// The device of this number.
    Device(Box<DeviceState>),
    /// No device has this number any more.
    Gone(u32),
    Export(ExportState),
    ExportGone(ExportState),
    VhostUser(VhostUserState),
    VhostUserGone(VhostUserState),
}

/// The state as it was written.
#[derive(Clone, Default)]
pub(super) struct Kept {
    devices: BTreeMap<u32, DeviceState>,
    exports: Vec<ExportState>,
    vhost_user: Vec<VhostUserState>,
    /// Devices that go at their last close.
    going: BTreeSet<u32>,
}

impl Kept {
    pub(super) fn of(state: State) -> Self {
        let State { version: _, devices, exports, vhost_user } = state;
        let mut kept = Self { exports, vhost_user, ..Self::default() };
        devices.into_iter().for_each(|device| kept.apply(Record::Device(Box::new(device))));
        kept
    }

    pub(super) fn state(self) -> State {
        let Self { devices, exports, vhost_user, going: _ } = self;
        State { version: super::VERSION, devices: devices.into_values().collect(), exports, vhost_user }
    }

    pub(super) fn apply(&mut self, record: Record) {
        match record {
            Record::Device(device) => {
                match device.deferred_remove {
                    true => self.going.insert(device.minor),
                    false => self.going.remove(&device.minor),
                };
                self.devices.insert(device.minor, *device);
            }
            Record::Gone(minor) => {
                self.going.remove(&minor);
                self.devices.remove(&minor);
            }
            Record::Export(export) => self.exports.push(export),
            Record::ExportGone(export) => self.exports.retain(|other| *other != export),
            Record::VhostUser(export) => self.vhost_user.push(export),
            Record::VhostUserGone(export) => self.vhost_user.retain(|other| *other != export),
        }
    }

    /// The changes from this state to `now`.
    fn changes_to(&self, now: State) -> Vec<Record> {
        let now = Self::of(now);
        let gone =
            self.devices.keys().filter(|minor| !now.devices.contains_key(minor)).map(|minor| Record::Gone(*minor));
        let mut all: Vec<Record> = gone.collect();
        for (minor, device) in now.devices {
            if self.devices.get(&minor) != Some(&device) {
                all.push(Record::Device(Box::new(device)));
            }
        }
        differences(&self.exports, now.exports, Record::ExportGone, Record::Export, &mut all);
        differences(&self.vhost_user, now.vhost_user, Record::VhostUserGone, Record::VhostUser, &mut all);
        all
    }

    fn text(&self) -> io::Result<String> {
        Ok(self.clone().state().text()?)
    }
}

fn differences<T: Clone + PartialEq>(
    before: &[T],
    now: Vec<T>,
    gone: impl Fn(T) -> Record,
    new: impl Fn(T) -> Record,
    all: &mut Vec<Record>,
) {
    all.extend(before.iter().filter(|one| !now.contains(one)).cloned().map(gone));
    all.extend(now.into_iter().filter(|one| !before.contains(one)).map(new));
}

/// Keeps the state on disk.
#[derive(Default)]
pub(crate) struct StateWriter {
    /// Held while a state is taken and written, so that an older one never follows a newer.
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    journal: Option<Journal<Directory>>,
    kept: Kept,
    /// Not everything is written, for this reason. The missing part has to be determined again.
    behind: Option<Unsaved>,
    /// The place where [`StateWriter::look_around`] goes on.
    next: u32,
    /// Nothing is written any more.
    closed: bool,
}

impl StateWriter {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that a command of this many bytes can be recorded. Blocks.
    pub(crate) fn ready(&self, daemon: &Daemon, bytes: usize) -> Result<(), Unsaved> {
        let mut inner = self.lock();
        if inner.behind.is_some() || inner.journal.as_ref().is_none_or(|journal| !journal.has_log()) {
            inner.save(daemon, What::Everything)?;
        }
        // As JSON it may be twice as long.
        let bytes = RECORD + 2 * bytes as u64;
        let reserved = inner.journal.as_mut().map_or(Ok(()), |journal| journal.reserve(bytes));
        reserved.map_err(|failed| unsaved(daemon, failed))
    }

    /// Writes the changes. Blocks until they are on disk.
    pub(crate) fn save(&self, daemon: &Daemon, what: What) -> Result<(), Unsaved> {
        self.lock().save(daemon, what)
    }

    /// Checks some devices, and tries again to write what could not be written.
    pub(crate) fn look_around(&self, daemon: &Daemon) {
        let mut inner = self.lock();
        if inner.behind.is_some() {
            let _ = inner.save(daemon, What::Everything);
            return;
        }
        let from = inner.next;
        let some: Vec<u32> = inner.kept.devices.range(from..).map(|(minor, _)| *minor).take(AROUND).collect();
        inner.next = if some.len() < AROUND { 0 } else { some.last().map_or(0, |last| last.saturating_add(1)) };
        let mut changes: Vec<Record> = some.into_iter().filter_map(|minor| inner.change_of(daemon, minor)).collect();
        inner.changes_of_exports(daemon, &mut changes);
        let _ = inner.write(daemon, changes);
    }

    /// Writes the last checkpoint, of what was saved last. Nothing is written any more.
    pub(crate) fn close(&self, daemon: &Daemon) {
        let mut inner = self.lock();
        inner.closed = true;
        let (journal, behind) = (inner.journal.take(), inner.behind.is_some());
        // The log has records that this checkpoint would not have.
        let Some(journal) = journal.filter(|_| !behind) else { return };
        let closed = inner.kept.text().map_err(|error| Failed { file: journal::STATE, error });
        if let Err(failed) = closed.and_then(|text| journal.close(text.as_bytes())) {
            warn!("{}; what is there holds", unsaved(daemon, failed).message);
        }
    }

    /// Removes the state for good: no later save brings it back.
    pub(crate) fn forget(&self, dir: &Path) -> io::Result<()> {
        let mut inner = self.lock();
        (inner.closed, inner.journal) = (true, None);
        forget(dir)
    }
}

/// Removes the state of a daemon that has ended.
pub(crate) fn forget(dir: &Path) -> io::Result<()> {
    journal::forget(&Directory::open(dir)?)
}

impl Inner {
    fn save(&mut self, daemon: &Daemon, what: What) -> Result<(), Unsaved> {
        let what = if self.behind.is_some() || self.journal.is_none() { What::Everything } else { what };
        let mut changes = Vec::new();
        match what {
            What::Everything => changes = self.kept.changes_to(State::of_daemon(daemon)),
            What::Device(minor) => {
                let mut minors = self.kept.going.clone();
                minors.insert(minor);
                changes.extend(minors.into_iter().filter_map(|minor| self.change_of(daemon, minor)));
            }
            What::Exports => self.changes_of_exports(daemon, &mut changes),
        }
        self.write(daemon, changes)
    }

    fn change_of(&self, daemon: &Daemon, minor: u32) -> Option<Record> {
        let was = self.kept.devices.get(&minor);
        match daemon.registry.by_devt(DevT::new(MAJOR, minor)) {
            None => was.map(|_| Record::Gone(minor)),
            Some(md) => {
                let mut now = DeviceState::of(&md, &daemon.lost, &daemon.nodes);
                now.hide_secrets();
                (was != Some(&now)).then(|| Record::Device(Box::new(now)))
            }
        }
    }

    fn changes_of_exports(&self, daemon: &Daemon, all: &mut Vec<Record>) {
        let (exports, vhost_user) = State::exports_of(&daemon.tcp, &daemon.vhost);
        differences(&self.kept.exports, exports, Record::ExportGone, Record::Export, all);
        differences(&self.kept.vhost_user, vhost_user, Record::VhostUserGone, Record::VhostUser, all);
    }

    fn write(&mut self, daemon: &Daemon, changes: Vec<Record>) -> Result<(), Unsaved> {
        if self.closed {
            return Ok(());
        }
        let written = self.try_write(daemon, changes).map_err(|failed| unsaved(daemon, failed));
        match (&written, &self.behind) {
            (Err(why), None) if daemon.places.dir().exists() => error!("{}", why.message),
            (Ok(()), Some(_)) => info!("the state is written again"),
            _ => {}
        }
        self.behind = written.as_ref().err().cloned();
        written
    }

    fn try_write(&mut self, daemon: &Daemon, changes: Vec<Record>) -> Result<(), Failed> {
        let failed = |error| Failed { file: journal::STATE, error };
        let journal = match &mut self.journal {
            Some(journal) => journal,
            none => none.insert(Journal::new(Directory::open(daemon.places.dir()).map_err(failed)?)),
        };
        if journal.has_log() {
            if changes.is_empty() {
                return Ok(());
            }
            let texts = changes.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>();
            if journal.append(&texts.map_err(|e| failed(e.into()))?).is_ok() {
                changes.into_iter().for_each(|change| self.kept.apply(change));
                if journal.is_due()
                    && let Err(why) =
                        self.kept.text().map_err(failed).and_then(|text| journal.checkpoint(text.as_bytes()))
                {
                    // Everything is in the log, or the same in both checkpoints.
                    warn!("{}; the log goes on", unsaved(daemon, why).message);
                    journal.put_off();
                }
                return Ok(());
            }
        }
        // There is no log, or it accepts no more records.
        let mut next = self.kept.clone();
        changes.into_iter().for_each(|change| next.apply(change));
        let written = next.text().map_err(failed).and_then(|text| journal.checkpoint(text.as_bytes()));
        // A checkpoint without a log is not enough: it may not be on disk by its name.
        written.map(|()| self.kept = next)
    }
}

fn unsaved(daemon: &Daemon, failed: Failed) -> Unsaved {
    let path = daemon.places.dir().join(failed.file);
    let message = format!("{} cannot be written: {}", path.display(), failed.error);
    Unsaved { errno: Errno::of(&failed.error), message }
}
