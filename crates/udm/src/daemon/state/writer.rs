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
use super::format::{DeviceState, ExportState, State, VhostUserState};
use super::journal::{self, Failed, Journal};
use super::record::{Kept, Record, differences};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tracing::{error, info, warn};
use udm_base::Errno;
use udm_core::Error;

/// The number of devices that are checked when nothing says that one has changed.
const AROUND: usize = 64;
/// The most that a record takes beside the command's own text: a device's fields.
const RECORD: u64 = 8 << 10;

/// What is remembered: devices and exports as they are now.
pub(crate) trait Source {
    /// The device of that minor number, if there is one.
    fn device(&self, minor: u32) -> Option<DeviceState>;

    /// The exports.
    fn exports(&self) -> (Vec<ExportState>, Vec<VhostUserState>);

    /// Everything.
    fn all(&self) -> State;
}

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

/// Keeps the state on disk.
pub(crate) struct StateWriter {
    /// Held while a state is taken and written, so that an older one never follows a newer.
    inner: Mutex<Inner>,
}

struct Inner {
    /// Where it lies.
    dir: PathBuf,
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
    /// Nothing is written yet.
    pub(crate) fn new(dir: &Path) -> Self {
        let (dir, journal, kept) = (dir.to_owned(), None, Kept::default());
        Self { inner: Mutex::new(Inner { dir, journal, kept, behind: None, next: 0, closed: false }) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that a command of this many bytes can be recorded. Blocks.
    pub(crate) fn ready(&self, source: &dyn Source, bytes: usize) -> Result<(), Unsaved> {
        let mut inner = self.lock();
        if inner.behind.is_some() || inner.journal.as_ref().is_none_or(|journal| !journal.has_log()) {
            inner.save(source, What::Everything)?;
        }
        // As JSON it may be twice as long.
        let bytes = RECORD + 2 * bytes as u64;
        let reserved = inner.journal.as_mut().map_or(Ok(()), |journal| journal.reserve(bytes));
        reserved.map_err(|failed| unsaved(&inner.dir, failed))
    }

    /// Writes the changes. Blocks until they are on disk.
    pub(crate) fn save(&self, source: &dyn Source, what: What) -> Result<(), Unsaved> {
        self.lock().save(source, what)
    }

    /// Checks some devices, and tries again to write what could not be written.
    pub(crate) fn look_around(&self, source: &dyn Source) {
        let mut inner = self.lock();
        if inner.behind.is_some() {
            let _ = inner.save(source, What::Everything);
            return;
        }
        let from = inner.next;
        let some: Vec<u32> = inner.kept.devices.range(from..).map(|(minor, _)| *minor).take(AROUND).collect();
        inner.next = if some.len() < AROUND { 0 } else { some.last().map_or(0, |last| last.saturating_add(1)) };
        let mut changes: Vec<Record> = some.into_iter().filter_map(|minor| inner.change_of(source, minor)).collect();
        inner.changes_of_exports(source, &mut changes);
        let _ = inner.write(changes);
    }

    /// Writes the last checkpoint, of what was saved last. Nothing is written any more.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        let (journal, behind) = (inner.journal.take(), inner.behind.is_some());
        // The log has records that this checkpoint would not have.
        let Some(journal) = journal.filter(|_| !behind) else { return };
        let closed = inner.kept.text().map_err(|error| Failed { file: journal::STATE, error });
        if let Err(failed) = closed.and_then(|text| journal.close(text.as_bytes())) {
            warn!("{}; what is there holds", unsaved(&inner.dir, failed).message);
        }
    }

    /// Removes the state for good: no later save brings it back.
    pub(crate) fn forget(&self) -> io::Result<()> {
        let mut inner = self.lock();
        (inner.closed, inner.journal) = (true, None);
        let named = |e: io::Error| {
            io::Error::new(e.kind(), format!("{} cannot be removed: {e}", inner.dir.join(journal::STATE).display()))
        };
        forget(&inner.dir).map_err(named)
    }
}

/// Removes the state of a daemon that has ended.
pub(crate) fn forget(dir: &Path) -> io::Result<()> {
    journal::forget(&Directory::open(dir)?)
}

impl Inner {
    fn save(&mut self, source: &dyn Source, what: What) -> Result<(), Unsaved> {
        let what = if self.behind.is_some() || self.journal.is_none() { What::Everything } else { what };
        let mut changes = Vec::new();
        match what {
            What::Everything => {
                let mut now = source.all();
                now.devices.iter_mut().for_each(DeviceState::hide_secrets);
                changes = self.kept.changes_to(now);
            }
            What::Device(minor) => {
                let mut minors = self.kept.going.clone();
                minors.insert(minor);
                changes.extend(minors.into_iter().filter_map(|minor| self.change_of(source, minor)));
            }
            What::Exports => self.changes_of_exports(source, &mut changes),
        }
        self.write(changes)
    }

    fn change_of(&self, source: &dyn Source, minor: u32) -> Option<Record> {
        let was = self.kept.devices.get(&minor);
        let Some(mut now) = source.device(minor) else { return was.map(|_| Record::Gone(minor)) };
        now.hide_secrets();
        (was != Some(&now)).then(|| Record::Device(Box::new(now)))
    }

    fn changes_of_exports(&self, source: &dyn Source, all: &mut Vec<Record>) {
        let (exports, vhost_user) = source.exports();
        differences(&self.kept.exports, exports, Record::ExportGone, Record::Export, all);
        differences(&self.kept.vhost_user, vhost_user, Record::VhostUserGone, Record::VhostUser, all);
    }

    fn write(&mut self, changes: Vec<Record>) -> Result<(), Unsaved> {
        if self.closed {
            return Ok(());
        }
        let written = self.try_write(changes).map_err(|failed| unsaved(&self.dir, failed));
        match (&written, &self.behind) {
            (Err(why), None) if self.dir.exists() => error!("{}", why.message),
            (Ok(()), Some(_)) => info!("the state is written again"),
            _ => {}
        }
        self.behind = written.as_ref().err().cloned();
        written
    }

    fn try_write(&mut self, changes: Vec<Record>) -> Result<(), Failed> {
        let failed = |error| Failed { file: journal::STATE, error };
        let journal = match &mut self.journal {
            Some(journal) => journal,
            none => none.insert(Journal::new(Directory::open(&self.dir).map_err(failed)?)),
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
                    warn!("{}; the log goes on", unsaved(&self.dir, why).message);
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

fn unsaved(dir: &Path, failed: Failed) -> Unsaved {
    let path = dir.join(failed.file);
    let message = format!("{} cannot be written: {}", path.display(), failed.error);
    Unsaved { errno: Errno::of(&failed.error), message }
}
