//! What is written of the state, and when.
//!
//! # What a command costs
//! Only what it touched is looked at and compared with what was written before: a device, or the exports. A record for
//! each difference goes to the log. Devices that go by themselves, at their last close, are looked for among those that
//! were asked to; and [`StateWriter::look_around`] looks at some devices after the other, whoever may have changed
//! them.
//!
//! # When it cannot be written
//! A command that could not be remembered is refused before it has done anything: [`StateWriter::ready`] asks for room
//! in the log, and writes first what is still unwritten. Where writing fails all the same, once the command is done, it
//! says so; nothing else that changes anything is begun until all is written.

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

/// So many devices are looked at when nothing says that one has changed.
const AROUND: usize = 64;
/// A record takes no more, beside what the command has in it: a device's own words.
const RECORD: u64 = 8 << 10;

/// What may have changed.
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
    /// Which file, and why.
    pub(crate) message: String,
}

impl Unsaved {
    /// To a command that has not begun.
    pub(crate) fn refusal(&self) -> Error {
        Error::new(self.errno, format!("nothing is done, since it could not be remembered: {}", self.message))
    }

    /// To one that is done.
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
    /// Of this number there is this device.
    Device(Box<DeviceState>),
    /// Of this number there is none.
    Gone(u32),
    Export(ExportState),
    ExportGone(ExportState),
    VhostUser(VhostUserState),
    VhostUserGone(VhostUserState),
}

/// The state as far as it is written.
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

    /// What makes this `now`.
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
    /// Not everything is written: why. What it is must be found out anew.
    behind: Option<Unsaved>,
    /// Where [`StateWriter::look_around`] goes on.
    next: u32,
    /// Nothing is written any more.
    closed: bool,
}

impl StateWriter {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees to it that a command of so many bytes can be remembered. Blocks.
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

    /// Writes what has changed. Blocks until it is on disk.
    pub(crate) fn save(&self, daemon: &Daemon, what: What) -> Result<(), Unsaved> {
        self.lock().save(daemon, what)
    }

    /// Looks at some devices, and tries again what could not be written.
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
        // The log says what a checkpoint would not.
        let Some(journal) = journal.filter(|_| !behind) else { return };
        let closed = inner.kept.text().map_err(|error| Failed { file: journal::STATE, error });
        if let Err(failed) = closed.and_then(|text| journal.close(text.as_bytes())) {
            warn!("{}; what is there holds", unsaved(daemon, failed).message);
        }
    }

    /// Takes the state away, for good: no later save brings it back.
    pub(crate) fn forget(&self, dir: &Path) -> io::Result<()> {
        let mut inner = self.lock();
        (inner.closed, inner.journal) = (true, None);
        forget(dir)
    }
}

/// Takes the state of a daemon that has ended away.
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
                    // All is in the log, or in the one of the two checkpoints as in the other.
                    warn!("{}; the log goes on", unsaved(daemon, why).message);
                    journal.put_off();
                }
                return Ok(());
            }
        }
        // There is no log, or it does not take any more.
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
