//! Flushing every device before the end.

use std::sync::mpsc;
use std::time::{Duration, Instant};
use tracing::{error, warn};
use udm_core::Registry;
use udm_io::BlockingIo;

/// How long one device may take: the others are to have their turn.
const PATIENCE: Duration = Duration::from_secs(5);

/// Flushes every device that takes bios, one after the other, at most so long. What a suspended device holds back stays
/// undone, as its senders know; a device above one would wait for ever, and is given up.
pub(crate) fn flush_all(registry: &Registry, patience: Duration) {
    let deadline = Instant::now() + patience;
    for md in registry.list().into_iter().filter(|md| md.info().active && !md.info().suspended) {
        let (name, domain) = (md.device_name(), registry.domain().clone());
        let (done, result) = mpsc::channel();
        let work = move || {
            let flushed = BlockingIo::new(&domain, md).map_err(|e| e.to_string());
            let _ = done.send(flushed.and_then(|io| io.flush().map_err(|status| format!("{status:?}"))));
        };
        if let Err(e) = registry.domain().executor().spawn("udm-flush", Box::new(work)) {
            error!("{name} is not flushed: {e}");
            continue;
        }
        let left = deadline.saturating_duration_since(Instant::now()).min(PATIENCE);
        match result.recv_timeout(left) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => error!("{name} is not flushed: {e}"),
            Err(_) => warn!("{name} is not flushed in time"),
        }
    }
}
