//! Who has a device's node to himself.
//!
//! What is done with a block device may wait in the kernel until the device beneath answers, and that may take somebody
//! else's command: a resume, more space. So the lock of the nodes is not held meanwhile; that one node is claimed.
//!
//! # Invariants
//! - Only who has the claim attaches or detaches a node's block device, or takes away a node that has one.
//! - Nobody waits for a claim while he has the lock or another claim. Who only follows what others did does not wait at
//!   all: what he leaves out is done at the next look.

use super::{Inner, failed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use udm_base::Errno;
use udm_core::{Error, MappedDevice};
use udm_io::Domain;

/// The nodes, as their claims see them.
pub(super) struct Shared {
    pub(super) domain: Domain,
    inner: Mutex<Inner>,
    given_back: Condvar,
}

/// A device's node, whether there is one or not yet. Others go on when it is dropped.
pub(super) struct Claim {
    pub(super) shared: Arc<Shared>,
    pub(super) md: Arc<MappedDevice>,
}

/// Those that are out.
#[derive(Default)]
pub(super) struct Claims {
    /// With what is being done.
    out: Vec<(Arc<MappedDevice>, &'static str)>,
    /// There are no more.
    ended: bool,
}

impl Claims {
    /// What is being done with the device's node.
    pub(super) fn of(&self, md: &Arc<MappedDevice>) -> Option<&'static str> {
        self.out.iter().find(|(other, _)| Arc::ptr_eq(other, md)).map(|(_, what)| *what)
    }
}

/// What is said of a node that somebody else has.
fn busy(md: &MappedDevice, what: &str) -> String {
    let name = md.device_name();
    format!(
        "the node of {name} is being {what}, which waits for {name}: if it is suspended, or what it is on, resume that"
    )
}

impl Shared {
    pub(super) fn new(domain: &Domain, inner: Inner) -> Arc<Self> {
        Arc::new(Self { domain: domain.clone(), inner: Mutex::new(inner), given_back: Condvar::new() })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, patience: Duration, waits: impl Fn(&Claims) -> bool) -> MutexGuard<'_, Inner> {
        let waited = self.given_back.wait_timeout_while(self.lock(), patience, |inner| waits(&inner.claims));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Claims a node, when whoever has it is done. `what` is going to be done with it?
    ///
    /// # Errors
    /// EBUSY: he is not done after so long. ENODEV: the nodes are ending.
    pub(super) fn claim(
        self: &Arc<Self>,
        md: &Arc<MappedDevice>,
        what: &'static str,
        patience: Duration,
    ) -> Result<Claim, Error> {
        let mut inner = self.wait_while(patience, |claims| !claims.ended && claims.of(md).is_some());
        if let Some(what) = inner.claims.of(md) {
            return Err(failed(Errno::EBUSY, busy(md, what)));
        }
        self.claim_now(&mut inner, md, what).ok_or_else(|| failed(Errno::ENODEV, "the nodes are ending"))
    }

    /// The same if nobody has it.
    pub(super) fn claim_now(
        self: &Arc<Self>,
        inner: &mut Inner,
        md: &Arc<MappedDevice>,
        what: &'static str,
    ) -> Option<Claim> {
        if inner.claims.ended || inner.claims.of(md).is_some() {
            return None;
        }
        inner.claims.out.push((md.clone(), what));
        Some(Claim { shared: self.clone(), md: md.clone() })
    }

    /// Waits until all claims are given back; `Err` says which is not, after so long.
    pub(super) fn settle(&self, patience: Duration) -> Result<(), String> {
        let inner = self.wait_while(patience, |claims| !claims.out.is_empty());
        match inner.claims.out.first() {
            None => Ok(()),
            Some((md, what)) => Err(busy(md, what)),
        }
    }

    /// No more are given out.
    pub(super) fn end_claims(&self) {
        self.lock().claims.ended = true;
        self.given_back.notify_all();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.shared.lock().claims.out.retain(|(md, _)| !Arc::ptr_eq(md, &self.md));
        self.shared.given_back.notify_all();
    }
}
