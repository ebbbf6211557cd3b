//! The one pointer that running channels read of a device, and how it is replaced beneath them.

use super::plan::Plan;
use std::sync::atomic::{AtomicPtr, Ordering};
use udm_io::{Cx, Domain};

/// Holds a plan, or none.
#[derive(Default)]
pub(super) struct PlanSlot(AtomicPtr<Plan>);

impl PlanSlot {
    /// The plan, for as long as the thread is inside its channel.
    #[inline]
    pub(super) fn get<'a>(&'a self, _inside: &'a Cx<'_>) -> Option<&'a Plan> {
        // SAFETY: what was published stays until `replace` has waited for every channel to leave the section that it is
        // in, and a Cx is proof of being in one.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Puts another plan here, and gives the old one back once no channel is in a section that could have seen it.
    /// Waits for these sections, which are short. Not to be called inside a channel.
    pub(super) fn replace(&self, domain: &Domain, plan: Option<Box<Plan>>) -> Option<Box<Plan>> {
        let new = plan.map_or(std::ptr::null_mut(), Box::into_raw);
        let old = self.0.swap(new, Ordering::AcqRel);
        domain.synchronize();
        // SAFETY: made by Box::into_raw, taken out by the swap, and in nobody's hands since the grace period.
        (!old.is_null()).then(|| unsafe { Box::from_raw(old) })
    }
}

impl Drop for PlanSlot {
    fn drop(&mut self) {
        let old = *self.0.get_mut();
        if !old.is_null() {
            // SAFETY: made by Box::into_raw; exclusive access means that nobody reads it.
            drop(unsafe { Box::from_raw(old) });
        }
    }
}
