//! What is printed of a measurement.

pub(crate) mod human;
pub(crate) mod json;

use crate::{Comparison, Load, Subject};

/// Everything that a report tells of.
pub(crate) struct Report<'a> {
    pub(crate) load: &'a Load,
    pub(crate) subject: &'a Subject,
    pub(crate) against: Option<&'a Subject>,
    pub(crate) found: &'a Comparison,
}
