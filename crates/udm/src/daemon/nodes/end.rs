//! The end of all nodes that need a file.

use super::{Inner, Nodes, is_held};
use std::sync::mpsc;
use std::time::Duration;
use tracing::warn;
use udm_export::node::loopdev::{Detached, HeldLoop, LoopDevice};
use udm_io::Domain;

/// How long requests under way may take where some of them wait for a resume that does not come.
const HELD: Duration = Duration::from_secs(1);

impl Nodes {
    /// Blocks as [`end`](Self::end).
    pub(super) fn end_files(&self, patience: Duration) {
        let domain = self.registry.domain();
        self.shared.end_claims();
        // What is under way mostly is done soon; what is not ends with the mount.
        let _ = self.shared.settle(HELD);
        let mut guard = self.lock();
        let Inner { nodes, claims, .. } = &mut *guard;
        let (mut attached, mut held, mut files_held) = (Vec::new(), Vec::new(), false);
        for node in nodes {
            node.unlink();
            let waits = is_held(&node.md) || claims.of(&node.md).is_some();
            files_held |= waits && node.loopdev.is_none();
            let loopdev = node.loopdev.take().map(|loopdev| (node.name.clone(), loopdev));
            if waits { held.extend(loopdev) } else { attached.extend(loopdev) }
        }
        drop(guard);
        // Elsewhere: over a device that does not answer this takes as long as the mount lives.
        let (done, is_done) = mpsc::channel();
        let any = !attached.is_empty();
        let of_work = domain.clone();
        let work = move || {
            attached.into_iter().for_each(|(name, loopdev)| end_block_device(&of_work, &name, &loopdev));
            let _ = done.send(());
        };
        let joiner = any.then(|| domain.executor().spawn("udm-node-end", Box::new(work)));
        if any {
            let _ = is_done.recv_timeout(patience);
        }
        for (name, loopdev) in &held {
            warn!("{name} is suspended, or what it is on: what waits for it on {} fails", loopdev.path().display());
        }
        let held: Vec<_> = held.iter().map(|(name, loopdev)| (name, loopdev.hold(domain))).collect();
        // Nobody resumes it any more.
        self.lock().end(if held.is_empty() && !files_held { patience } else { patience.min(HELD) });
        match joiner {
            Some(Ok(joiner)) => joiner.join(),
            Some(Err(error)) => warn!("block devices are left attached: {error}"),
            None => {}
        }
        for (name, loopdev) in held {
            // Only now: before, to close it would have waited for what it keeps.
            if let Err(error) = loopdev.and_then(HeldLoop::detach_when_closed) {
                warn!("{name}: {error}");
            }
        }
        if let Err(why) = self.shared.settle(patience) {
            warn!("{why}");
        }
    }
}

/// Has the kernel write what it keeps, and gives the block device back.
fn end_block_device(domain: &Domain, name: &str, loopdev: &LoopDevice) {
    let shown = loopdev.path();
    // What is in the page cache was acknowledged to nobody, but it need not be lost either.
    if let Err(error) = loopdev.flush(domain) {
        warn!("{name}, {}: {error}", shown.display());
    }
    match loopdev.detach(domain) {
        Ok(Detached::Yes) => {}
        Ok(Detached::InUse) => {
            warn!("{name} is still in use, as {}: it fails from now on", shown.display());
            let _ = loopdev.detach_when_closed(domain);
        }
        Err(error) => {
            warn!("{name}: {error}");
            let _ = loopdev.detach_when_closed(domain);
        }
    }
}
