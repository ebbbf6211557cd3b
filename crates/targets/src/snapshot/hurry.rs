//! A suspension's hurry: it is not to wait for what the throttle of copies holds back.

use super::shared::{COPIES, Origin, lock};
use std::sync::Mutex;
use udm_kcopyd::Hurry;

#[derive(Default)]
pub(super) struct Hurrying(Mutex<Option<Hurry>>);

impl Hurrying {
    pub(super) fn begin(&self, origin: &Origin) {
        let hurry = origin.copier(COPIES).hurry();
        *lock(&self.0) = Some(hurry);
    }

    pub(super) fn end(&self) {
        let hurry = lock(&self.0).take();
        drop(hurry);
    }
}
