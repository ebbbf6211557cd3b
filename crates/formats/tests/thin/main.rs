//! Thin metadata at the crate's boundary.

mod audit;
mod crash;
mod damage;
mod disk;
mod kernel;
mod model;
mod oracle;
mod restored;
mod rules;
