//! `state.json` and `state.log`: the state from which the devices are made again.
//!
//! The changes of a command are on disk before it is answered. The files are read strictly: a state that this udm does
//! not understand in full is not used in part.
//!
//! [`format`] has what it says, [`journal`] how it lies on disk, [`writer`] what is written when.

mod disk;
mod format;
mod journal;
mod record;
mod writer;

pub(crate) use format::{DeviceState, ExportState, NodeState, State, TableState, VhostUserState};
pub(crate) use journal::{LOG, STATE};
pub(crate) use writer::{Source, StateWriter, Unsaved, What, forget};

use disk::Directory;
use record::Kept;
use std::path::Path;

/// The state of an earlier daemon; `None` when it left nothing. The second value says what was left out of the log.
///
/// # Errors
/// The files cannot be read, or are not understood in full: why, for people.
pub(crate) fn read(dir: &Path) -> Result<Option<(State, Option<String>)>, String> {
    let named = |file: &str, why: String| format!("{}: {why}", dir.join(file).display());
    let disk = Directory::open(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let found = journal::read(&disk).map_err(|failed| named(failed.file, failed.error.to_string()))?;
    let Some(checkpoint) = found.checkpoint else { return Ok(None) };
    let state = State::parse(&checkpoint).map_err(|why| named(STATE, why))?;
    let state = replay(state, &found.records).map_err(|why| named(LOG, why))?;
    Ok(Some((state, found.left_out.map(|why| named(LOG, why)))))
}

/// Applies the changes made after the checkpoint.
fn replay(checkpoint: State, records: &[String]) -> Result<State, String> {
    let mut kept = Kept::of(checkpoint);
    for record in records {
        kept.apply(serde_json::from_str(record).map_err(|e| e.to_string())?);
    }
    Ok(kept.state())
}
