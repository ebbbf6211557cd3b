//! Whether this program runs within `udm exec`.

use std::path::PathBuf;
use udm_exec::WITHIN;

/// Refuses to start a daemon within a namespace, where its devices would be seen by nobody else and end with it.
///
/// # Errors
/// This process is in one.
pub(crate) fn check_outside() -> Result<(), String> {
    match std::env::var_os(WITHIN) {
        None => Ok(()),
        Some(dir) => Err(format!(
            "this program runs within `udm exec`, on the daemon in {}: start a daemon from outside",
            PathBuf::from(dir).display()
        )),
    }
}
