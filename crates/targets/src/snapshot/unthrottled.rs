//! During a suspension the throttle must not delay the copies that the suspension waits for.

use super::shared::{COPIES, Origin, lock};
use std::sync::Mutex;
use udm_kcopyd::Unthrottled;

#[derive(Default)]
pub(super) struct Unthrottling(Mutex<Option<Unthrottled>>);

impl Unthrottling {
    pub(super) fn begin(&self, origin: &Origin) {
        let unthrottled = origin.copier(COPIES).unthrottle();
        *lock(&self.0) = Some(unthrottled);
    }

    pub(super) fn end(&self) {
        let unthrottled = lock(&self.0).take();
        drop(unthrottled);
    }
}
