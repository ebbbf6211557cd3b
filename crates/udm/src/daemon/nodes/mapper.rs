//! Links in `/dev/mapper`, where the host has the names of its mapped devices.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tracing::{info, warn};

const MAPPER: &str = "/dev/mapper";

/// Makes the link of that name; an error names it.
pub(super) fn link(name: &str, to: &Path) -> io::Result<PathBuf> {
    let link = Path::new(MAPPER).join(name);
    let made = fs::create_dir_all(MAPPER).and_then(|()| std::os::unix::fs::symlink(to, &link));
    made.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", link.display())))?;
    Ok(link)
}

/// Removes a link, if there is one.
pub(super) fn unlink(link: &mut Option<PathBuf>) {
    if let Some(link) = link.take()
        && let Err(error) = fs::remove_file(&link)
    {
        warn!("{}: {error}", link.display());
    }
}

/// Removes the links that lead to nodes of a daemon that was killed.
pub(super) fn remove_stale(dir: &Path) {
    for entry in fs::read_dir(MAPPER).into_iter().flatten().flatten() {
        if fs::read_link(entry.path()).is_ok_and(|to| to.starts_with(dir)) {
            info!("removing {}, which a daemon before has left", entry.path().display());
            let _ = fs::remove_file(entry.path());
        }
    }
}
