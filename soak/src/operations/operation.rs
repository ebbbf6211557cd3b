//! What an operation is.

use crate::world::Turn;

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was done.
    Done,
    /// There was nothing to do it on, or somebody else was at it.
    Skipped,
}

/// Something that is done again and again.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// As in `--only NAME`.
    pub name: &'static str,
    /// What it does, in a line.
    pub what: &'static str,
    /// How often, beside the others.
    pub weight: u64,
    /// Nothing else is done meanwhile. The load goes on.
    pub alone: bool,
    /// Does it. An error fails the soak.
    pub run: fn(&mut Turn<'_>) -> Result<Outcome, String>,
}

/// What is said of a thin device while its pool is suspended.
pub(super) const POOL_SUSPENDED: &[&str] = &["while pool is suspended"];
