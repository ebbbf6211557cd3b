//! What the targets that inject faults have in common: chance, and how long a delay is.

mod draws;
mod latency;

pub(crate) use draws::{Draw, Draws, Way};
pub(crate) use latency::Latency;
